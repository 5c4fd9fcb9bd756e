"""What one rank reads: slots by position, and a route from each node that fills them.

The consumer takes from the slots; each route has a thread that reads `Feed/Read` of its node. How
many positions may come is the slots' horizon. Beside it goes how many bytes each stream may have
sent in all: so memory is bounded in both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from penstock.client.bodies.buffers import BodyAllocator
from penstock.client.calls.background_thread import Patience, in_background
from penstock.client.reading.ahead import Ahead
from penstock.client.reading.route import FeedNode, Route, cancel_all
from penstock.client.reading.slots import Delivery, Slots
from penstock.client.reading.waiting import PAUSE_S, REPORT_S
from penstock.client.session.session import Session
from penstock.client.values.value_decoder import ValueDecoder
from penstock.wire import tracing
from penstock.wire.errors import PenstockError, Unreachable
from penstock.wire.prefetch import AHEAD_BYTES, LEAST_AHEAD

WIDER = 1.25
"""Room that has grown so many times is reported at once, or what a consumer accepts next to its
first batch would come only when that is taken; not each byte more, as batches of a job differ."""


class Feed:
    """Delivers a rank's own positions from `start` on, in order, whatever breaks.

    Several threads meet here, and the consumer's may be broken off between any two bytecodes, by a
    signal handler that raises: so it takes no lock, and every attribute has one thread that sets
    it. See `Slots`, where batches pass from the others to it.

    Args:
        nodes: Where batches come from, one or more; no lane is asked of two of them.
        session: What streams open with, and which positions are the rank's own.
        start: The first position that is wanted.
        stop: No position from here on is wanted; None = until the log ends.
        prefetch: How many own positions may be ready beyond the next to be taken; None = as many as
            the size of batches allows, see `Slots`.
        prefetch_bytes: How many bytes of them; the next one comes whatever its size. Every node has
            an equal share of it.
        max_body_bytes: A batch that announces more is refused before anything is allocated.
        pool: Where bodies land.

    Attributes:
        ahead: Decodes batches before they are taken; None = the consumer does.
        is_prepared: It is settled who decodes them.
        finished_step: The first step that the consumer has not finished: for people.
    """

    def __init__(
        self,
        nodes: Sequence[FeedNode],
        session: Session,
        start: int,
        *,
        stop: int | None,
        prefetch: int | None,
        prefetch_bytes: int,
        max_body_bytes: int,
        pool: BodyAllocator,
    ) -> None:
        share = session.share
        self._slots = Slots(session.job, share, start, stop, prefetch)
        self._share = share
        self._prefetch, self._prefetch_bytes = prefetch, prefetch_bytes
        self._routes = [
            Route(number, node, session, self._slots, pool, self, max_body_bytes)
            for number, node in enumerate(nodes)
        ]
        # Set by the consumer.
        self.ahead: Ahead | None = None
        self.is_prepared = False
        self.finished_step = share.step(start)
        self._unreported_bytes = 0
        self._reported_room_bytes = self._room_bytes()
        self._is_started = False
        self._session, self._start, self._began_ns = session, start, 0  # for its span
        self._within: Any = None

    # --- the consumer ---

    @property
    def wait_s(self) -> float:
        """How long the consumer has waited for batches."""
        return self._slots.wait_s

    @property
    def reconnects(self) -> int:
        """How often a stream was opened again."""
        return sum(route.reconnects for route in self._routes)

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
        delivery = self._slots.take(position, deadline_s, self)
        if delivery is None:
            return None
        if self._slots.given(position):
            self._unreported_bytes += delivery.lease.nbytes
        # A message for every batch may cost more than the batch: half of the room at once.
        self._extend(max(1, self._slots.prefetch // 2))
        return delivery

    def release(self, position: int) -> None:
        """Release the own positions below `position`: they will not be asked for again."""
        self._slots.release(position)

    def statistics(self, due: int) -> dict[str, int]:
        """Return what is ready from position `due` on, and what the end of the log left out.

        Args:
            due: The position that is taken next.
        """
        ready = self._slots.ready(due)
        batches, samples = self._slots.dropped
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
            for route in self._routes:
                route.start()

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
        cancel_all(self._routes)
        self._slots.close()

    def join(self, deadline_s: float) -> None:
        """Wait until the background threads have ended, after `cancel`. It is called there, too."""
        if self.ahead is not None:
            self.ahead.join(deadline_s)
        for route in self._routes:
            route.join(deadline_s)
        if self._began_ns:
            session, began_ns, self._began_ns = self._session, self._began_ns, 0
            about: dict[str, str | int] = {"job": session.job, "group": session.group}
            about |= {"rank": self._share.rank, "position": self._start}
            about["reconnects"] = self.reconnects
            tracing.record("stream", began_ns, about, within=self._within)

    # --- what waiting slots ask: a `Supply` ---

    def may_send(self, position: int) -> bool:
        """Tell whether every node knows that it may send `position`, as far as that is known."""
        return all(
            (stream := route.stream) is None or stream.reported >= position or stream.has_room
            for route in self._routes
        )

    def report(self, position: int, waited_s: float) -> None:
        """Send what was held back, where the nodes need it for `position`."""
        for route in self._routes:
            stream = route.stream
            if stream is None:
                continue  # the next one opens with it
            if position >= stream.sent:
                # Nobody moves the horizon while the only consumer waits: send what was held
                # back. Below it the server is at work already, and a message would cost both.
                self._extend(1)
            elif stream.reported < position and waited_s >= (
                PAUSE_S if stream.has_room else REPORT_S
            ):
                # Or it holds this batch back, for want of room that is there by now.
                self._extend(0)

    def why(self) -> str:
        """Return what is waited for, in words."""
        reasons = [route.why() for route in self._routes if not route.has_ended]
        return "; ".join(dict.fromkeys(reasons)) or self._routes[0].why()

    def blocked(self, waited_s: float) -> PenstockError | None:
        """Return what keeps batches from coming: a node that is away; None = nothing."""
        for route in self._routes:
            broken = route.broken
            if isinstance(broken, Unreachable):
                return Unreachable(
                    f"no data from {route.node.target} for {waited_s:.0f} s: {broken.message}; "
                    "reading goes on at the same position when it is back (deadline_s= waits "
                    "longer)",
                    target=route.node.target,
                    waited_s=round(waited_s, 3),
                )
            if broken is not None:
                return broken
        return None

    # --- how far nodes may go ---

    def _extend(self, at_least: int) -> None:
        """Tell the nodes how far we accept, if that has moved by `at_least` own positions; 0 = now.

        Or if half of the room for bytes is free again, or large batches have made it wider.
        """
        slots, horizon, room_bytes = self._slots, self._slots.horizon, self._room_bytes()
        has_grown = room_bytes > WIDER * self._reported_room_bytes
        has_room = has_grown or self._unreported_bytes > room_bytes // 2
        for route in self._routes:
            stream = route.stream
            if stream is None:
                continue  # the next one opens with it
            # A large batch takes the horizon back: what was accepted with it stays accepted.
            has_moved = horizon > stream.sent
            # At the end the horizon stops short: its last move may be less than one own position.
            is_far = has_moved and (
                horizon == slots.end or self._share.nth_after(stream.sent, at_least) <= horizon
            )
            # Asked for 0, the node learns of the room for bytes though the horizon has not moved.
            if is_far or has_room or not at_least:
                self._unreported_bytes, self._reported_room_bytes = 0, room_bytes
                position, limit = self.room(route.number, stream.received_bytes)
                stream.send(horizon, self.finished_step, position, limit)

    def room(self, route: int, received_bytes: int) -> tuple[int, int]:
        """Return the next position, and how many bytes a stream may have sent from its start on.

        That is what has come of it and what may come: the route's share of the bound, without what
        lies here of it. What is on its way is part of what may come, so the bound holds whatever
        the server knows. All threads call it.

        Args:
            route: The number of the stream's route.
            received_bytes: What has come of it; looked at before what lies here, so that a batch
                that lands in between counts twice and not never.
        """
        position = self._slots.next
        held = sum(
            found.lease.nbytes for found in self._slots.ready(position) if found.route == route
        )
        return position, max(1, received_bytes + self._room_bytes() - held)

    def _room_bytes(self) -> int:
        """Return what each route's share of the bound is.

        Where nobody has said how many batches lie ahead, small ones may be followed by large ones
        that were accepted with them: no more come than as if all had been large.
        """
        most = self._prefetch_bytes
        if self._prefetch is None:
            most = min(most, max(AHEAD_BYTES, LEAST_AHEAD * self._slots.largest_bytes))
        return max(1, most // len(self._routes))

    # --- what routes say, on their threads ---

    def others_read(self) -> bool:
        """Tell whether some node has not sent all that it has yet."""
        return not all(route.has_ended for route in self._routes)

    def completed(self) -> None:
        """End every stream: all that is wanted has come."""
        cancel_all(self._routes)


__all__ = ["Feed"]
