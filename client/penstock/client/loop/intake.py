"""Brings a batch to the training loop as values, and notes why the loop waits for it."""

from __future__ import annotations

import time
from typing import Any

from penstock.client.bodies.borrowing import borrowed_bytes
from penstock.client.bodies.buffers import BufferPool
from penstock.client.bodies.stages import TimedPool, Waited
from penstock.client.calls.background_thread import in_background
from penstock.client.loop.stats import Waits
from penstock.client.reading.feed import Feed, WantedPositions
from penstock.client.reading.route_set import Prefetch
from penstock.client.reading.slots import Delivery
from penstock.client.run.loader_resources import Resources
from penstock.client.run.options import Options
from penstock.client.session.session import Session
from penstock.client.values.arrival import Arrival, steps_of
from penstock.client.values.decoder_choice import check_values, make_decoder
from penstock.client.values.value_decoder import ValueDecoder
from penstock.common.prefetch import LEAST_AHEAD


class Intake:
    """Opens feeds, and takes what they deliver. Used by the loop's thread.

    Args:
        options: What the Loader was given.
        resources: Where its connection and its feeds are kept.

    Attributes:
        waits: How long the loop has waited.
    """

    def __init__(self, options: Options, resources: Resources) -> None:
        self._options, self._resources = options, resources
        self._decoder: ValueDecoder | None = None
        self._pool = TimedPool(
            BufferPool((options.prefetch or LEAST_AHEAD) + 2, options.limits.prefetch_bytes)
        )
        self.waits = Waits()

    def check(self) -> None:
        """Refuse values that cannot be made, before the node is called.

        Raises:
            InvalidRequest, MissingExtra: See `check_values`.
        """
        options = self._options
        if self._decoder is None:
            # In the background, since a search for a module, or an import, that is interrupted can
            # leave locks of the interpreter locked.
            in_background(lambda _: check_values(options.device, options.as_numpy, options.memory))

    def open(self, session: Session, position: int, steps: int | None) -> Feed:
        """Return a new feed, which is among the resources.

        Args:
            session: What its streams open with.
            position: The first position that is wanted.
            steps: How many steps are wanted; None = until the log ends.

        Raises:
            PenstockError: See `Resources.connect` and `LoaderNodes.wait_usable`.
        """
        options = self._options
        nodes = self._resources.connect(options)
        nodes.wait_usable(options.deadline_s)
        feed = Feed(
            nodes,
            session,
            WantedPositions(
                position,
                None if steps is None else steps * session.share.batches_per_step,
                Prefetch(options.prefetch, options.limits.prefetch_bytes),
                options.limits.max_body_bytes,
            ),
            self._pool,
        )
        self._resources.feeds.add(feed)
        return feed

    def prepare(self, feed: Feed) -> None:
        """Have what makes values ready, and begin to make them before they are taken.

        Raises:
            PenstockError: See `make_decoder`.
        """
        options = self._options
        if self._decoder is None:
            # The first batches come while torch is imported, in the background, too.
            feed.start()
            made = in_background(
                lambda _: make_decoder(
                    options.device,
                    options.as_numpy,
                    options.memory,
                    Arrival(steps_of(options.arrive)),
                )
            )
            decoder = made.settle(options.limits.pinned_bytes)
            self._pool.use(decoder.memory)
            self._decoder = decoder
        if feed.ahead is None and self._decoder.is_ahead:
            feed.decode_ahead(self._decoder, options.limits.device_batches)
        feed.is_prepared = True

    def take(self, feed: Feed, position: int, *, is_first: bool) -> Delivery | None:
        """Return the batch at an own position, None past the end; it stays where it is.

        Args:
            feed: Who delivers it.
            position: The position.
            is_first: The loop has been given no batch yet.

        Raises:
            PenstockError: See `Feed.take`.
        """
        lending = self._pool.lending
        waited, lent = feed.wait_s, lending.so_far_s()
        try:
            return feed.take(position, self._options.deadline_s)
        finally:
            if (waited := feed.wait_s - waited) > 0:
                memory_s = lending.share_s(lent, waited)
                found = Waited(network_s=waited - memory_s, memory_s=memory_s)
                self.waits.add(found, is_first=is_first)

    def decode(self, feed: Feed, delivery: Delivery, *, is_first: bool) -> dict[str, Any]:
        """Return the values of a batch, which may have been decoded ahead.

        Args:
            feed: Who delivered it; it is prepared.
            delivery: The batch.
            is_first: The loop has been given no batch yet.

        Raises:
            DataTimeout: See `Ahead.take`.
            Exception: What is done on arrival raises it.
        """
        decoder, ahead = self._decoder, feed.ahead
        assert decoder is not None
        copied, taken = decoder.copying.so_far_s(), decoder.taking.so_far_s()
        began = time.monotonic() if ahead is None else ahead.wait_s
        try:
            if ahead is not None:
                return ahead.take(delivery, self._options.deadline_s)
            return decoder.finish(decoder.begin(delivery.entries, delivery.lease))
        finally:
            # On its own thread the loop waits as long as it decodes.
            waited = (time.monotonic() if ahead is None else ahead.wait_s) - began
            if waited > 0:
                copy_s = decoder.copying.share_s(copied, waited)
                memory_s = decoder.taking.share_s(taken, copy_s)  # which is a part of that
                found = Waited(
                    memory_s=memory_s, copy_s=copy_s - memory_s, decode_s=waited - copy_s
                )
                self.waits.add(found, is_first=is_first)

    def position_value(self, position: int) -> Any:
        """Return `position` as a value of a batch, once a batch was decoded."""
        assert self._decoder is not None
        return self._decoder.position(position)

    def statistics(self, feed: Feed | None) -> dict[str, int]:
        """Return how much memory bodies have here, and what of it is pinned.

        Args:
            feed: The open feed; None = there is none.
        """
        pool = dict(self._pool.statistics())
        pool["leased_bytes"] += borrowed_bytes(self._pool)
        pinned = dict.fromkeys(("bytes", "grown", "overflowed", "staged"), 0)
        if self._decoder is not None and self._decoder.memory is not None:
            pinned |= self._decoder.memory.counts()
        ahead = None if feed is None else feed.ahead
        return (
            {"buffer_bytes_limit": self._options.limits.prefetch_bytes}
            | {f"pool_{name}": value for name, value in pool.items()}
            | {"device_batches": 0 if ahead is None else ahead.ready}
            | {f"pinned_{name}": value for name, value in pinned.items()}
        )
