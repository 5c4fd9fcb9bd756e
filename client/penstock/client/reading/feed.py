"""What one rank reads: slots by position, and routes from the nodes that fill them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client.bodies.buffers import BodyAllocator
from penstock.client.calls.background_thread import Patience, in_background
from penstock.client.nodes.known_node import KnownNodes
from penstock.client.reading.ahead import Ahead
from penstock.client.reading.failover import Failover
from penstock.client.reading.route import FeedNode, Route
from penstock.client.reading.route_set import Prefetch, RouteSet
from penstock.client.reading.slots import Delivery, Slots
from penstock.client.reading.stream import FeedContext
from penstock.client.session.session import Session
from penstock.client.values.value_decoder import ValueDecoder
from penstock.common import tracing


@dataclass(frozen=True)
class WantedPositions:
    """Which positions a feed reads, and how much of them may be here.

    Attributes:
        start: The first position that is wanted.
        stop: No position from here on is wanted; None = until the log ends.
        prefetch: How much may be ready.
        max_body_bytes: A batch that announces more is refused before anything is allocated.
    """

    start: int
    stop: int | None
    prefetch: Prefetch
    max_body_bytes: int


class Feed:
    """Delivers a rank's own positions from a start on, in order, whatever breaks.

    Several threads meet here, and the consumer's may be broken off between any two bytecodes, by a
    signal handler that raises: so it takes no lock, and every attribute has one thread that sets
    it. See `Slots`, where batches pass from the others to it.

    Args:
        nodes: Where batches come from.
        session: What streams open with, and which positions are the rank's own.
        wanted: Which positions, and how much of them may be here.
        pool: Where bodies land.

    Attributes:
        ahead: Decodes batches before they are taken; None = the consumer does.
        is_prepared: It is settled who decodes them.
    """

    def __init__(
        self,
        nodes: KnownNodes,
        session: Session,
        wanted: WantedPositions,
        pool: BodyAllocator,
    ) -> None:
        share, prefetch = session.share, wanted.prefetch
        self._slots = Slots(session.job, share, wanted.start, wanted.stop, prefetch.batches)
        self._share = share
        context = FeedContext(session, self._slots, pool, wanted.max_body_bytes)
        self._routes = RouteSet(context, prefetch)
        self._failover: Failover | None = None
        if nodes.is_one:
            [node, *_] = nodes.usable
            alone = FeedNode(node.transport, node.target)
            self._routes.use([Route(0, alone, context, self._routes)])
        else:
            # In the background: it has a lock, and dealing many units takes a while.
            self._failover = in_background(lambda _: Failover(nodes, context, self._routes))
        # Set by the consumer.
        self.ahead: Ahead | None = None
        self.is_prepared = False
        self._is_started = False
        self._session, self._start, self._began_ns = session, wanted.start, 0  # for its span
        self._within: Any = None

    # --- the consumer ---

    @property
    def wait_s(self) -> float:
        """How long the consumer has waited for batches."""
        return self._slots.wait_s

    @property
    def reconnects(self) -> int:
        """How often a stream was opened again."""
        return self._routes.reconnects

    @property
    def failovers(self) -> Mapping[str, int]:
        """How often a node was left, by the name of the reason."""
        return self._routes.failovers

    def take(self, position: int, deadline_s: float) -> Delivery | None:
        """Return the batch at an own position, or None past the end.

        Going upwards; the same position may be asked for again until `release`.

        Raises:
            DataTimeout: It did not come within `deadline_s`; says what the server waits for.
            Unreachable: No server could be reached within `deadline_s`.
            PenstockError: What the server says is wrong.
        """
        if not self._is_started:
            self.start()
        slots, routes = self._slots, self._routes
        delivery = slots.take(position, deadline_s, routes)
        if delivery is None:
            return None
        if slots.given(position):
            routes.given(delivery.lease.nbytes)
        # A message for every batch may cost more than the batch: half of the room at once.
        routes.extend(max(1, slots.prefetch // 2))
        return delivery

    def release(self, position: int, finished_step: int) -> None:
        """Release the own positions below `position`: they will not be asked for again.

        Args:
            position: The first that may be asked for.
            finished_step: The first step that the consumer has not finished: for people.
        """
        self._routes.finished_step = finished_step
        self._slots.release(position)

    def statistics(self, due: int) -> dict[str, int]:
        """Return what is ready from position `due` on, and what the end of the log left out.

        Args:
            due: The position that is taken next.
        """
        ready = self._slots.ready(due)
        batches, samples = self._slots.arrivals.dropped
        return {
            "dropped_batches": batches,
            "dropped_samples": samples,
            "buffered_batches": len(ready),
            "buffer_bytes": sum(delivery.lease.nbytes for delivery in ready),
        }

    def start(self) -> None:
        """Start reading, once: batches come from now on, before they are taken."""
        within = tracing.here()

        def start(_: Patience) -> None:
            if not self._began_ns:
                self._began_ns, self._within = time.time_ns(), within
            (self._failover or self._routes).start()

        in_background(start)
        self._is_started = True

    def decode_ahead(self, decoder: ValueDecoder, most: int) -> None:
        """Have up to `most` batches decoded beyond the one in use, from the next `Ahead.take` on.

        Where it is done again before that, it is done anew.
        """
        self.ahead = Ahead(self._slots, self._share, decoder, most)

    # --- the end, on a thread that no signal handler breaks off ---

    def cancel(self) -> None:
        """End the streams; idempotent. It takes locks: call it in the background."""
        if self._failover is not None:
            self._failover.close()
        self._routes.cancel()
        self._slots.close()

    def join(self, deadline_s: float) -> None:
        """Wait until the background threads have ended, after `cancel`. It is called there, too."""
        if self.ahead is not None:
            self.ahead.join(deadline_s)
        if self._failover is not None:
            self._failover.join(deadline_s)
        self._routes.join(deadline_s)
        if self._began_ns:
            session, began_ns, self._began_ns = self._session, self._began_ns, 0
            about: dict[str, str | int] = {"job": session.job, "group": session.group}
            about |= {"rank": self._share.rank, "position": self._start}
            about["reconnects"] = self.reconnects
            tracing.record("stream", began_ns, about, within=self._within)
