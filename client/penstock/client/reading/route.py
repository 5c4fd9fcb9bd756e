"""The way from one node to the slots: a thread that reads streams, one after another.

When a stream breaks, the next one opens at the first position that is missing; later ones that have
come are kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.client.bodies.borrower_socket import Absent, NotLent
from penstock.client.bodies.borrowing import Borrower
from penstock.client.calls.background_thread import log_in_background
from penstock.client.calls.backoff import Backoff
from penstock.client.reading.stream import FeedContext, Opening, OpenStream
from penstock.wire import PROTOCOL
from penstock.wire.errors import ChecksumMismatch, Forbidden, PenstockError, Unreachable
from penstock.wire.transports import ReadCall, Transport
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")


class _BorrowsNow(Exception):
    """A stream gives way to one whose bodies are lent: the node was away when it was opened."""


SETTLED_S = 15.0
"""A stream that lasted so long had no trouble, even if nothing was sent by it."""

FREED_S = 3.0
"""For so long streams are opened again that are too many at a node."""

JOIN_S = 1.0
"""How long a route waits for the one before it: it was cancelled, and ends in milliseconds."""

MAX_REREADS = 2
"""How often one position is read again after its checksum was wrong."""


@dataclass(frozen=True)
class FeedNode:
    """A node that a feed reads from.

    Attributes:
        transport: The way to it.
        target: Where it is, for messages.
        lanes: The lanes that it is asked for; empty = all.
        node_id: Its id; empty = it is the only one.
    """

    transport: Transport
    target: str
    lanes: tuple[int, ...] = ()
    node_id: str = ""


class Routes(Protocol):
    """What a route asks and reports to its feed, on its own thread."""

    def room(self, route: int, received_bytes: int) -> tuple[int, int]:
        """Return the next position, and how many bytes a stream may have sent from its start on."""
        ...

    def others_read(self) -> bool:
        """Tell whether some node has not sent all that it has yet."""
        ...

    def take_left(self) -> list[feed_pb2.LeftBecause]:
        """Return why nodes were left, as far as no stream has told: the caller's is to do so."""
        ...

    def keep_left(self, left: Sequence[feed_pb2.LeftBecause]) -> None:
        """Keep what `take_left` gave for a later stream: this one was not accepted."""
        ...

    def completed(self) -> None:
        """End every stream: all that is wanted has come."""
        ...

    def landed(self) -> None:
        """Note that batches have come."""
        ...

    def gives_up(self, route: Route, error: PenstockError, *, is_retried: bool) -> bool:
        """Tell whether a node is left for what has ended its stream: the route ends then."""
        ...


class Route:
    """Reads one node's share of the positions into slots, on a thread of its own.

    Every attribute but `until` is set by that thread alone; the consumer's looks at them, and takes
    no lock.

    Args:
        number: The node's, among those that the feed reads from.
        node: The node, with the lanes that it is asked for, which stay the same.
        context: What all streams of the feed have in common.
        routes: The feed's, with those from other nodes.
        after: The route that this one takes the place of: it ends before this one begins.
        delay_s: How long to wait before that, in seconds.

    Attributes:
        until: Nothing from this position on is asked for: other nodes have some of its lanes there.
            None = there is no such position.
        stream: The open stream; None = there is none now.
        broken: Why there is none.
        reconnects: How often a stream was opened again.
        has_ended: The node has sent all that it has of the log.
        drains: It has said that it shuts down.
        is_over: It has ended, and the node has not sent all that it has.
        troubled_s: Since when streams break without a batch in between, on the monotonic clock.
    """

    def __init__(
        self,
        number: int,
        node: FeedNode,
        context: FeedContext,
        routes: Routes,
        after: Route | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.number, self.node, self._routes = number, node, routes
        self._context, self._session, self._slots = context, context.session, context.slots
        self._arrivals = context.slots.arrivals
        self.stream: OpenStream | None = None
        self.broken: PenstockError | None = None
        self.reconnects = 0
        self.has_ended = self.drains = False
        self.until: int | None = None
        self.troubled_s: float | None = None
        self._opened_s = 0.0
        self._after, self._delay_s = after, delay_s
        self.is_over = False
        self._reason = f"connecting to {node.target}"
        self._cause = ""  # what broke the stream last, as long as no batch has come since
        self._rereads: dict[int, int] = {}
        self._backoff = Backoff()
        self._sent_because = ""  # why bodies are not lent, as it was said last
        self._cannot_map = False
        self._borrower: Borrower | None = None  # for the next stream
        # Set and taken by threads that nothing breaks off.
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._call: ReadCall | None = None
        self._thread: threading.Thread | None = None

    # --- from other threads ---

    def why(self) -> str:
        """Return what is waited for, and what went wrong before that."""
        stream = self.stream
        reason = (stream.waits_for if stream is not None else "") or self._reason
        cause = self._cause
        return reason if cause in reason else f"{reason}, after: {cause}"

    def accepted(self, horizon: int) -> int:
        """Return how far this node may send, of what the feed accepts."""
        until = self.until
        return horizon if until is None else min(horizon, until)

    def start(self) -> None:
        """Start reading, once. It takes a lock: call it in the background."""
        with self._guard:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="penstock-feed", daemon=True)
                self._thread.start()

    def cancel(self) -> None:
        """End the stream; idempotent. It takes locks: call it in the background."""
        with self._guard:
            self._closed.set()
            call = self._call
        if call is not None:
            call.cancel()

    @property
    def is_running(self) -> bool:
        """Whether its thread has not ended. It takes a lock: ask in the background."""
        with self._guard:
            return self._thread is not None and self._thread.is_alive()

    def join(self, deadline_s: float) -> None:
        """Wait until the thread has ended, after `cancel`. It is called there, too."""
        with self._guard:
            thread = self._thread
        if thread is not None:
            thread.join(deadline_s)

    # --- its own thread ---

    def _run(self) -> None:
        try:
            self._begin()
            while not self._closed.is_set() and not self._arrivals.is_complete:
                try:
                    self._read()
                    if self._arrivals.is_complete:
                        return
                    # Then what is missing is theirs. If all have sent all that they have, and yet
                    # something is missing, it is asked for again.
                    if self.has_ended and self._routes.others_read():
                        return
                    raise Unreachable(
                        f"{self.node.target} closed the stream", target=self.node.target
                    )
                except _BorrowsNow:
                    continue
                except NotLent as error:
                    self._cannot_map = True
                    self._note_sent(str(error))
                except PenstockError as error:
                    if self._closed.is_set() or self._arrivals.is_complete:
                        return
                    is_retried = self._may_retry(error)
                    self._note_trouble(time.monotonic())
                    if self._routes.gives_up(self, error, is_retried=is_retried):
                        return
                    if not is_retried:
                        raise
                    self._note_break(error)
                    self._closed.wait(self._backoff.next_s())
        except BaseException as error:  # the edge of the thread: the consumer raises it
            self._slots.fail(error)
        finally:
            self.is_over = not self.has_ended
            if self._borrower is not None:
                self._borrower.close()
            if self._arrivals.is_complete:
                self._routes.completed()
            self._slots.wake()

    def _note_trouble(self, now_s: float) -> None:
        if self.troubled_s is None or now_s - self._opened_s >= SETTLED_S:
            self.troubled_s = now_s

    def _begin(self) -> None:
        """Wait for the route that this one takes the place of, and for its turn."""
        after, self._after = self._after, None
        if after is not None:
            after.join(JOIN_S)
        if self._delay_s:
            self._closed.wait(self._delay_s)

    def _may_retry(self, error: PenstockError) -> bool:
        if isinstance(error, ChecksumMismatch):
            # A damaged header names no position: it holds up the first that has not come.
            position = self._arrivals.missing if error.position is None else error.position
            self._rereads[position] = self._rereads.get(position, 0) + 1
            return self._rereads[position] <= MAX_REREADS
        if isinstance(error, Forbidden) and error.bound == "streams":
            # The node may not have noticed yet that the stream before this one has ended.
            since_s = self.troubled_s
            return since_s is None or time.monotonic() - since_s < FREED_S
        return error.status == "UNAVAILABLE"

    def _note_break(self, error: PenstockError) -> None:
        first = self.broken is None
        self.broken = error
        self._reason = self._cause = error.message
        self.reconnects += 1
        if first:
            log_in_background(
                logger.info,
                "job %r: %s; going on at position %d",
                self._session.job,
                error,
                self._arrivals.missing,
            )

    def _read(self) -> None:
        """Read one stream until it ends, or until nothing more is to come."""
        prepared, self._borrower = self._borrower, None
        borrower = prepared or self._borrow()
        try:
            self._read_stream(borrower, may_borrow=prepared is None)
        finally:
            if borrower is not None:
                borrower.close()

    def _read_stream(self, borrower: Borrower | None, *, may_borrow: bool) -> None:
        position, limit = self._routes.room(self.number, 0)
        opening = Opening(self.accepted(self._slots.horizon), position, limit, borrower)
        self._opened_s = time.monotonic()
        left = self._routes.take_left()
        call = self.node.transport.read(self._open_message(opening, left))
        with self._guard:
            self._call = call
        stream = OpenStream(call, self.node.target, self.number, self._context, opening)
        self.has_ended = False
        self.stream = stream
        self._slots.wake()  # a consumer that waits beyond the horizon may move it now
        try:
            if not self._closed.is_set():
                self._take_all(call, stream, may_borrow=may_borrow)
        finally:
            if not stream.has_opened:
                self._routes.keep_left(left)
            self._note_sent(stream.landing.sent_because)
            self._reason = stream.waits_for or self._reason
            self.has_ended, self.drains = stream.has_ended, stream.drains
            self.stream = None
            with self._guard:
                self._call = None
            call.cancel()
            with contextlib.suppress(PenstockError):  # it is over, whatever else it says
                for _ in call:
                    pass

    def _take_all(self, call: ReadCall, stream: OpenStream, *, may_borrow: bool) -> None:
        landed = 0
        for replies in call:
            could_complete = stream.take_in(replies)
            # Free them before the next one is made: that one then lies where the cache is warm.
            del replies
            stream.landing.settle(self._slots.prefetch)
            if stream.has_opened:
                self.broken = None
                if may_borrow and not stream.lends:
                    self._borrow_now()
                may_borrow = False
            if stream.landed != landed:
                landed, self._cause, self.troubled_s = stream.landed, "", None
                self._routes.landed()
                self._backoff.reset()
                for position in [at for at in self._rereads if self._arrivals.has(at)]:
                    del self._rereads[position]
            if could_complete and self._arrivals.is_complete:
                return

    def _borrow(self) -> Borrower | None:
        """Connect to the node's memory socket, where there is one."""
        path = self.node.transport.memory
        if path is None or self._cannot_map:
            return None
        try:
            return Borrower(path, self._context.pool)
        except NotLent as error:
            if not (isinstance(error, Absent) and self.stream is None):
                self._note_sent(str(error))
        return None

    def _borrow_now(self) -> None:
        """Try once more, for a node that is open: as this stream opened it may have been away.

        Raises:
            _BorrowsNow: It lends to us now.
        """
        self._borrower = self._borrow()
        if self._borrower is not None:
            raise _BorrowsNow

    def _note_sent(self, reason: str) -> None:
        """Say once why bodies are sent that could be lent."""
        if reason and reason != self._sent_because:
            self._sent_because = reason
            log_in_background(
                logger.info, "job %r: batches are sent, not lent: %s", self._session.job, reason
            )

    def _open_message(self, opening: Opening, left: Sequence[feed_pb2.LeftBecause]) -> bytes:
        session, start = self._session, self._arrivals.missing
        borrower = opening.borrower
        message = feed_pb2.Open(
            protocol=PROTOCOL,
            job=session.job,
            log_id=session.log_id,
            group=session.group,
            token=session.token,
            generation=session.generation,
            rank=session.share.rank,
            world_size=session.share.world_size,
            batches_per_step=session.share.batches_per_step,
            start=start,
            lanes=self.node.lanes,
            tail=feed_pb2.TAIL_PAD if session.tail_pad else feed_pb2.TAIL_DROP,
            horizon=opening.horizon,
            next=opening.position,
            bytes_limit=opening.bytes_limit,
            bundles=True,
            borrower=b"" if borrower is None else borrower.token,
            uneven=session.share.uneven,
            left=left,
        )
        if session.given_from is not None and session.given_from < start:
            # A node that has just started does not know it, and nothing of it may move.
            message.given_from = session.given_from
        return feed_pb2.ReadRequest(open=message).SerializeToString()


def cancel_all(routes: Iterable[Route]) -> None:
    """End every stream; idempotent. It takes locks: call it in the background."""
    for route in routes:
        route.cancel()
