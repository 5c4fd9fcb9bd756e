"""The routes of a feed together: how far they may go, why they wait, and when they end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.client.reading.route import Route, cancel_all
from penstock.client.reading.stream import FeedContext
from penstock.client.reading.waiting import PAUSE_S, REPORT_S
from penstock.common.prefetch import AHEAD_BYTES, LEAST_AHEAD
from penstock.wire.errors import PenstockError, Unreachable
from penstock.wire.left_reasons import left_reason
from penstock.wire.v1 import feed_pb2

WIDER = 1.25
"""Room that has grown so many times is reported at once, or what a consumer accepts next to its
first batch would come only when that is taken; not each byte more, as batches of a job differ."""


class Prefetch(NamedTuple):
    """How much of what is wanted may be ready.

    Attributes:
        batches: How many own positions beyond the next to be taken; None = as many as the size of
            batches allows, see `Slots`.
        most_bytes: How many bytes of them; the next one comes whatever its size. Every node has an
            equal share of it.
    """

    batches: int | None
    most_bytes: int


class NodeChoice(Protocol):
    """Chooses the nodes that routes lead to; called on the threads of routes."""

    def gives_up(self, route: Route, error: PenstockError, *, is_retried: bool) -> bool:
        """Tell whether a node is left for what has ended its stream: the route ends then."""
        ...

    def landed(self) -> None:
        """Note that batches have come."""
        ...


class RouteSet:
    """The routes from some nodes to the slots: what waiting slots ask, and what each route asks.

    Routes come and go while it is read: all of them are replaced as a whole, by `use`.

    How many positions may come is the slots' horizon. Beside it goes how many bytes each stream may
    have sent in all: so memory is bounded in both. Those are moved by the consumer's thread, which
    takes no lock.

    Args:
        context: What all streams have in common.
        prefetch: How much may be ready.

    Attributes:
        choice: Who chooses the nodes; None = there is one, for good.
        left: The nodes that are not asked, each with why, in words: set by `choice`.
        failovers: How often a node was left, by the name of the reason.
        finished_step: The first step that the consumer has not finished: for people.
    """

    def __init__(self, context: FeedContext, prefetch: Prefetch) -> None:
        self._slots, self._share = context.slots, context.session.share
        self._prefetch = prefetch
        self._routes: tuple[Route, ...] = ()
        self._ended: list[Route] = []
        self._past_reconnects = 0
        self.choice: NodeChoice | None = None
        self.left: tuple[str, ...] = ()
        self.failovers: Mapping[str, int] = {}  # replaced as a whole
        self._untold: deque[feed_pb2.LeftBecause] = deque()
        # Set by the consumer.
        self.finished_step = self._share.step(self._slots.next)
        self._unreported_bytes = 0
        self._reported_room_bytes = self._room_bytes()

    @property
    def reconnects(self) -> int:
        """How often a stream was opened again."""
        return self._past_reconnects + sum(route.reconnects for route in self._routes)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes, as they are now."""
        return self._routes

    def use(self, routes: Sequence[Route], left: Sequence[feed_pb2.LeftBecause] = ()) -> None:
        """Have these routes, in place of those before; one thread at a time calls it.

        No lane is asked of two of them. Those that are not among them are ended, those that are new
        are not started.

        Args:
            routes: All of them.
            left: Why those that end were left, of nodes that were: their lanes are read by streams
                that were opened again, the first of which tells its node.
        """
        kept = set(routes)
        ended = [route for route in self._routes if route not in kept]
        self._ended = [route for route in self._ended if route.is_running] + ended
        self._past_reconnects += len(left) + sum(route.reconnects for route in ended)
        self._routes = tuple(routes)
        self.failovers = Counter(self.failovers) + Counter(map(left_reason, left))
        self._untold.extend(left)
        cancel_all(ended)

    def start(self) -> None:
        """Start reading, once. It takes locks: call it in the background."""
        for route in self._routes:
            route.start()

    def cancel(self) -> None:
        """End the streams; idempotent. It takes locks: call it in the background."""
        cancel_all(self._routes)

    def join(self, deadline_s: float) -> None:
        """Wait until the threads have ended, after `cancel`. It is called there, too."""
        for route in (*self._routes, *self._ended):
            route.join(deadline_s)

    # --- what waiting slots ask, on the consumer's thread: a `Supply` ---

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
                self.extend(1)
            elif stream.reported < position and waited_s >= (
                PAUSE_S if stream.has_room else REPORT_S
            ):
                # Or it holds this batch back, for want of room that is there by now.
                self.extend(0)

    def why(self) -> str:
        """Return what is waited for, in words."""
        routes = self._routes
        reasons = [route.why() for route in routes if not route.has_ended]
        reasons = reasons or [route.why() for route in routes[:1]]
        return "; ".join(dict.fromkeys([*reasons, *self.left]))

    def blocked(self, waited_s: float) -> PenstockError | None:
        """Return what keeps batches from coming: a node that is away; None = nothing."""
        routes, left = self._routes, self.left
        if left or len(routes) > 1:
            if any(route.broken is None for route in routes):
                return None  # it is waited for, and `why` has the others
            return _all_away([*(str(route.broken) for route in routes), *left], waited_s)
        for route in routes:
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

    def given(self, nbytes: int) -> None:
        """Note that the consumer has taken a batch of so many bytes, which makes room."""
        self._unreported_bytes += nbytes

    def extend(self, at_least: int) -> None:
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
            accepted = route.accepted(horizon)
            # A large batch takes the horizon back: what was accepted with it stays accepted.
            has_moved = accepted > stream.sent
            # At the end the horizon stops short: its last move may be less than one own position.
            is_far = has_moved and (
                accepted in (slots.arrivals.end, route.until)
                or self._share.nth_after(stream.sent, at_least) <= accepted
            )
            # Asked for 0, the node learns of the room for bytes though the horizon has not moved.
            if is_far or has_room or not at_least:
                self._unreported_bytes, self._reported_room_bytes = 0, room_bytes
                position, limit = self.room(route.number, stream.received_bytes)
                stream.send(accepted, self.finished_step, position, limit, slots.wait_s)

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
        numbers = {each.number for each in self._routes}
        held = others = 0
        for found in self._slots.ready(position):
            if found.route == route:
                held += found.lease.nbytes
            elif found.route not in numbers:
                others += found.lease.nbytes  # of a node that was left: all have less room
        held += others // max(1, len(numbers))
        return position, max(1, received_bytes + self._room_bytes() - held)

    def _room_bytes(self) -> int:
        """Return what each route's share of the bound is.

        Where nobody has said how many batches lie ahead, small ones may be followed by large ones
        that were accepted with them: no more come than as if all had been large.
        """
        most = self._prefetch.most_bytes
        if self._prefetch.batches is None:
            largest = self._slots.arrivals.largest_bytes
            most = min(most, max(AHEAD_BYTES, LEAST_AHEAD * largest))
        return max(1, most // max(1, len(self._routes)))

    # --- what routes ask and say, on their threads ---

    def others_read(self) -> bool:
        """Tell whether some node has not sent all that it has yet."""
        return not all(route.has_ended for route in self._routes)

    def take_left(self) -> list[feed_pb2.LeftBecause]:
        """Return why nodes were left, as far as no stream has told: the caller's is to do so."""
        found = []
        with suppress(IndexError):  # a stream of another route may take them, too
            while True:
                found.append(self._untold.popleft())
        return found

    def keep_left(self, left: Sequence[feed_pb2.LeftBecause]) -> None:
        """Keep what `take_left` gave for a later stream: this one was not accepted."""
        self._untold.extend(left)

    def completed(self) -> None:
        """End every stream: all that is wanted has come."""
        cancel_all(self._routes)

    def landed(self) -> None:
        """Note that batches have come."""
        if self.choice is not None:
            self.choice.landed()

    def gives_up(self, route: Route, error: PenstockError, *, is_retried: bool) -> bool:
        """Tell whether a node is left for what has ended its stream: the route ends then."""
        choice = self.choice
        return choice is not None and choice.gives_up(route, error, is_retried=is_retried)


def _all_away(reasons: Sequence[str], waited_s: float) -> Unreachable:
    return Unreachable(
        f"no data from any of {len(reasons)} nodes for {waited_s:.0f} s: {'; '.join(reasons)}; "
        "reading goes on at the same position when one is back (deadline_s= waits longer)",
        waited_s=round(waited_s, 3),
    )
