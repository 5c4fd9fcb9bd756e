"""Chooses the nodes that a feed reads from, and leaves those that break, drain or say nothing.

`Placement` decides; here it is told what happens, and routes are made as it says.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from penstock.client.calls.background_thread import log_in_background
from penstock.client.nodes.dealing import deal
from penstock.client.nodes.known_node import KnownNode, KnownNodes
from penstock.client.nodes.placement import LeftNode, Placement, UnitMove
from penstock.client.nodes.read_lanes import read_lanes
from penstock.client.reading.route import FeedNode, Route
from penstock.client.reading.route_set import RouteSet
from penstock.client.reading.silence import SILENT_S, Silence
from penstock.client.reading.stream import FeedContext
from penstock.wire import PROTOCOL
from penstock.wire.errors import (
    ChecksumMismatch,
    Forbidden,
    JobChanged,
    LogDiverged,
    OtherStore,
    PenstockError,
    ProtocolMismatch,
    StoreUnavailable,
    Unauthenticated,
    UnknownJob,
    Unreachable,
)
from penstock.wire.parse import parse
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

REFUSALS = (
    ChecksumMismatch,
    Forbidden,
    JobChanged,
    LogDiverged,
    OtherStore,
    ProtocolMismatch,
    Unauthenticated,
    UnknownJob,
)
"""What a node may say that others do not: it has another job file, store, environment or list of
tokens, or memory that flips bits. Where others serve, it is left. All else that is not of the
moment is said of the job, such as `stale_generation` or `bad_item`: every node would say it."""

TICK_S = 0.5
"""How often it is looked whether nodes say nothing, came, or went."""

LATE_S = 5.0
"""Where it was not looked for so long, this process has not run."""

RECONNECT_S, TRY_AGAIN_S = 2.0, (0.1, 0.3)
"""A node whose stream broke is asked whether it is there, for so long, and again after these pauses
where it refuses: while gRPC has not noticed that a connection is gone, a call still goes by it.
Where only the connection was reset, nothing moves."""

OPEN_S, PROBE_S = 3.0, 5.0
"""A stream that was not accepted for so long is a reason to ask its node; and how long that may
take."""

AGAIN_S, TRIAL_S = 3.0, 10.0
"""How often a node that was left is asked whether it is back, and how often one on trial whether it
still is. Half of it more or less, by chance."""

JITTER_S, MAX_JITTER_S = 0.00025, 1.0
"""For each rank of the run: its streams move within so long, so that a node that takes over opens a
few thousand of them in a second and not at once."""


class Failover:
    """Has the routes of a feed lead to the nodes that make its lanes now.

    Its thread looks for what only time shows. What breaks is noticed at once, by the route that it
    breaks for. The consumer's thread takes no lock, and has no part in it.

    Args:
        nodes: The nodes, as they are known.
        context: What all streams have in common.
        routes: The routes.
        rng: Where jitter comes from.
    """

    def __init__(
        self,
        nodes: KnownNodes,
        context: FeedContext,
        routes: RouteSet,
        rng: random.Random | None = None,
    ) -> None:
        self._known, self._context, self._routes = nodes, context, routes
        self._slots, self._session = context.slots, context.session
        self._units = units = self._session.units
        self._rng = rng or random.Random()  # seeded by the system: ranks must not move in step
        self._placement = Placement(len(units.members), units.row, partial(deal, salt=units.salt))
        share = self._session.share
        # In a finite log positions move up as lanes end: any rank may come to read any lane.
        self._lanes = (
            frozenset(range(units.lanes))
            if self._session.is_finite
            else read_lanes(units.lanes, share)
        )
        self._jitter_s = min(MAX_JITTER_S, JITTER_S * (share.world_size - 1))
        self._nodes: dict[str, KnownNode] = {}
        self._numbers: dict[str, int] = {}
        self._silences: dict[Route, Silence] = {}
        self._probed_s: dict[str, float] = {}  # when a node is asked next
        self._probing: set[str] = set()
        self._refused: dict[str, str] = {}  # the start of a node that refuses
        self._left: dict[str, LeftNode] = {}
        self._made: object = None  # what routes were made of last
        self._is_reading = False
        self._looked_s = time.monotonic()
        self._next_look_s = TICK_S
        self._boundary: int | None = None  # where something is planned; looked at without the lock
        self._lock = threading.RLock()
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        with self._lock:
            self._take_known(time.monotonic())
            self._settle(time.monotonic())
        routes.choice = self

    # --- in the background ---

    def start(self) -> None:
        """Start reading, once."""
        with self._lock:
            self._is_reading = True
            self._routes.start()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="penstock-failover", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Make no more routes; idempotent."""
        with self._lock:
            self._closed.set()
        self._wake.set()

    def join(self, deadline_s: float) -> None:
        """Wait until the thread has ended, after `close`."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(deadline_s)

    # --- on the threads of routes ---

    def landed(self) -> None:
        """Note that batches have come."""
        boundary = self._boundary
        if boundary is not None and self._slots.arrivals.missing >= boundary:
            self._wake.set()

    def gives_up(self, route: Route, error: PenstockError, *, is_retried: bool) -> bool:
        """Leave a route's node for what has ended its stream, if that is a reason; tell whether."""
        name, now_s = route.node.node_id, time.monotonic()
        if isinstance(error, REFUSALS) and not is_retried:
            return self._refuses(route, error)
        if error.status != "UNAVAILABLE":
            return False
        self._known.look_again(name)
        if not self._has_other(name):
            return False  # it is tried again, as it would be alone
        because = feed_pb2.LEFT_BROKE
        troubled_s = now_s - (route.troubled_s or now_s)
        if route.drains:
            why, because = f"{route.node.target} shuts down", feed_pb2.LEFT_DRAINS
        elif troubled_s >= SILENT_S:
            why = error.message
        elif type(error) not in (Unreachable, StoreUnavailable) or self._is_back(name):
            return False  # it is there, and only the stream broke, or it says what it waits for
        else:
            why = error.message
        return self._leave(name, why, because)

    def _is_back(self, name: str) -> bool:
        """Tell whether a node is there whose stream has broken a moment ago."""
        end_s = time.monotonic() + RECONNECT_S
        for pause_s in (*TRY_AGAIN_S, 0.0):
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not self._trouble(name, left_s):
                return left_s > 0
            self._closed.wait(pause_s)
        return False

    def _refuses(self, route: Route, error: PenstockError) -> bool:
        """Leave a node that refuses what others serve."""
        name = route.node.node_id
        self._known.look_again(name)
        with self._lock:
            left = self._placement.left
            others = [other for other in self._nodes if other != name]
            if all(other in left and left[other].for_good for other in others):
                return False  # then it is said of the job
        return self._leave(name, error.message, feed_pb2.LEFT_REFUSES, for_good=True)

    # --- its own thread ---

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._wake.wait(self._next_look_s)
                self._wake.clear()
                if self._closed.is_set() or self._slots.arrivals.is_complete:
                    return
                self._look(time.monotonic())
        except BaseException as error:  # the edge of the thread: the consumer raises it
            self._slots.fail(error)

    def _look(self, now_s: float) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            if now_s - self._looked_s > LATE_S:
                # This process was stopped, not the nodes: what they said meanwhile is not read yet.
                self._silences = {route: Silence(route) for route in self._routes.routes}
            self._looked_s = now_s
            self._take_known(now_s)
            self._look_for_silence(now_s)
            self._settle(now_s)
            asked = self._due(now_s)
        for name in asked:
            self._ask(name)

    def _take_known(self, now_s: float) -> None:
        """Take over which nodes are known, and which of them have come to drain."""
        nodes, draining = self._known.usable, []
        for node in nodes:
            before, self._nodes[node.node_id] = self._nodes.get(node.node_id), node
            self._numbers.setdefault(node.node_id, len(self._numbers))
            left = self._placement.left.get(node.node_id)
            if left and left.for_good and before and before.incarnation != node.incarnation:
                # It has started again.
                self._placement.leave(node.node_id, left.why, now_s, left.because)
            # What is known may be old: a node that has drained, and is back, is asked itself.
            if node.draining and not (before and before.draining):
                draining.append(node)
        self._placement.know({node.node_id: node.workers for node in nodes}, now_s)
        for node in draining:
            if node.node_id not in self._placement.left:
                self._placement.leave(
                    node.node_id, f"{node.target} shuts down", now_s, feed_pb2.LEFT_DRAINS
                )

    def _look_for_silence(self, now_s: float) -> None:
        """Leave nodes that say nothing though they owe something, where there are others."""
        self._next_look_s = TICK_S
        for route in self._routes.routes:
            silence = self._silences.get(route)
            name = route.node.node_id
            if silence is None or not self._has_other(name):
                continue
            silent_s = silence.look(now_s, self._slots, self._session.share)
            if silent_s >= SILENT_S and silence.is_certain:
                self._leave(
                    name,
                    f"{route.node.target} has said nothing for {silent_s:.0f} s, though it owed "
                    "something",
                    feed_pb2.LEFT_SILENT,
                )
            elif silence.is_suspect(silent_s, OPEN_S):
                self._ask(name, silence)
            elif silent_s:  # ranks wait meanwhile: not longer than that
                self._next_look_s = min(self._next_look_s, max(0.01, SILENT_S - silent_s))

    # --- nodes that were left, or may have to be ---

    def _due(self, now_s: float) -> list[str]:
        """Return the nodes that are to be asked now whether they are there."""
        placement = self._placement
        waits = dict.fromkeys(placement.left, AGAIN_S) | dict.fromkeys(
            placement.on_trial(now_s), TRIAL_S
        )
        self._probed_s = {name: at for name, at in self._probed_s.items() if name in waits}
        found = []
        for name, wait_s in waits.items():
            at = self._probed_s.get(name)
            if at is None or at <= now_s:
                # A node that was left a moment ago is not back.
                self._probed_s[name] = now_s + wait_s * (0.5 + self._rng.random())
            if at is not None and at <= now_s:
                found.append(name)
        return found

    def _ask(self, name: str, silence: Silence | None = None) -> None:
        """Ask a node whether it is there, on a thread of its own."""
        with self._lock:
            if name in self._probing or name not in self._nodes:
                return
            self._probing.add(name)

        def ask() -> None:
            try:
                trouble = self._trouble(name, PROBE_S)
            finally:
                with self._lock:
                    self._probing.discard(name)
            if self._closed.is_set():
                return
            with self._lock:
                left = self._placement.left.get(name)
                if left is not None and not trouble and not left.for_good:
                    self._placement.answers(name, time.monotonic())
                    self._known.look_again(name)
                    self._wake.set()
                elif left is None and trouble and self._has_other(name):
                    self._leave(name, *trouble)
                elif silence is not None and not trouble:
                    silence.note_answer(time.monotonic())

        threading.Thread(target=ask, name="penstock-ask-node", daemon=True).start()

    def _trouble(self, name: str, timeout_s: float) -> tuple[str, feed_pb2.LeftBecause] | None:
        """Return why a node cannot be read now; None = it is there, serves the log, and stays."""
        node, session = self._nodes[name], self._session
        request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job=session.job)
        try:
            data = node.transport.unary("Feed/Describe", request.SerializeToString(), timeout_s)
            reply = parse(feed_pb2.DescribeReply, data)
        except (PenstockError, ValueError):  # gRPC's, of a channel that was closed meanwhile
            return f"{node.target} does not answer within {PROBE_S:.0f} s", feed_pb2.LEFT_SILENT
        with self._lock:
            left = self._placement.left.get(name)
            if left is not None and left.for_good and reply.node:
                before = self._refused.setdefault(name, reply.node)
                if before == reply.node:
                    return left.why, left.because
                del self._refused[name]
                # Not for good any more.
                self._placement.leave(name, left.why, time.monotonic(), left.because)
        if reply.draining:
            return f"{node.target} shuts down", feed_pb2.LEFT_DRAINS
        if reply.log_id != session.log_id or (session.group and reply.store != session.store):
            why = f"{node.target} serves another log now, or from another store"
            return why, feed_pb2.LEFT_REFUSES
        if session.token and reply.unchecked:
            why = f"{node.target} has not reached the store for a minute, so it serves no attempt"
            return why, feed_pb2.LEFT_REFUSES
        return None

    # --- what changes ---

    def _has_other(self, name: str) -> bool:
        with self._lock:
            return any(other != name for other in self._placement.usable)

    def _leave(
        self, name: str, why: str, because: feed_pb2.LeftBecause, *, for_good: bool = False
    ) -> bool:
        """Leave a node, unless it is the last that may be asked; tell whether it was left.

        One that refuses is left even then: others are waited for, which have only broken.
        """
        with self._lock:
            if self._closed.is_set() or self._slots.arrivals.is_complete:
                return True
            if not for_good and not self._has_other(name):
                return False
            now_s = time.monotonic()
            self._placement.leave(name, why, now_s, because, for_good=for_good)
            self._settle(now_s)
            return True

    def _settle(self, now_s: float) -> None:
        """Have the placement decide, and make routes as it says."""
        placement, before = self._placement, self._left
        moves = placement.settle(now_s, self._slots.arrivals.missing, self._slots.horizon)
        left = self._left = placement.left
        self._boundary = None if placement.planned is None else placement.planned.position
        if left or before:
            self._routes.left = tuple(
                f"{self._nodes[name].target} was left {now_s - node.since_s:.0f} s ago: {node.why}"
                for name, node in left.items()
            )
        self._make_routes()
        for name in left.keys() - before.keys():
            self._say(
                logger.warning,
                f"{self._nodes[name].target} is left: {left[name].why}",
                [move for move in moves if move.before == name],
            )
        returned = [move for move in moves if move.before not in left]
        if returned:
            self._say(logger.info, "nodes have come or gone", returned)

    def _make_routes(self) -> None:
        """Have a route to each node that makes lanes of this rank, and none else."""
        owners, planned = self._placement.owners, self._placement.planned
        refusing = frozenset(name for name, node in self._left.items() if node.for_good)
        made = owners, planned, refusing, [self._nodes[name] for name in sorted(set(owners))]
        if made == self._made:
            return
        self._made = made
        lanes: dict[str, list[int]] = {}
        losing: set[str] = set()
        for lane in sorted(self._lanes) if owners else ():
            unit = self._units.of_lane[lane]
            if owners[unit] not in refusing:
                lanes.setdefault(owners[unit], []).append(lane)
            if planned is not None and planned.owners[unit] != owners[unit]:
                losing.add(owners[unit])
        before = {route.node.node_id: route for route in self._routes.routes}
        routes, fresh = [], []
        for name, own in sorted(lanes.items()):
            node = self._nodes[name]
            asked = () if len(set(owners)) == 1 else tuple(own)
            feed_node = FeedNode(node.transport, node.target, asked, name)
            route = before.get(name)
            if route is None or route.node != feed_node or route.is_over:
                delay_s = self._jitter_s * self._rng.random() if before else 0.0
                route = Route(
                    self._numbers[name], feed_node, self._context, self._routes, route, delay_s
                )
                fresh.append(route)
            route.until = planned.position if planned is not None and name in losing else None
            routes.append(route)
        gone = [name for name in before if name in self._left and name not in lanes]
        self._routes.use(routes, left=[self._left[name].because for name in gone])
        self._silences = {route: self._silences.get(route) or Silence(route) for route in routes}
        if self._is_reading:
            for route in fresh:
                route.start()

    def _say(self, write: Callable[..., None], what: str, moves: Sequence[UnitMove]) -> None:
        """Say once what has changed, and how many units go where."""
        to = Counter(self._nodes[move.after].target for move in moves)
        text = ", ".join(f"{count} to {target}" for target, count in sorted(to.items()))
        log_in_background(
            write,
            "job %r: %s; %d of %d units move%s; going on at position %d",
            self._session.job,
            what,
            len(moves),
            len(self._units.members),
            f" ({text})" if text else "",
            self._slots.arrivals.missing,
        )
