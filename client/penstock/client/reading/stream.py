"""One stream: reads one `Feed.Read` call, and assembles batches into slots."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.bodies.assembly import Assembly
from penstock.client.bodies.borrowing import Borrower
from penstock.client.bodies.buffers import BodyAllocator
from penstock.client.bodies.landing import Landing
from penstock.client.calls.background_thread import log_in_background
from penstock.client.reading.agreement import check_batch, check_end, check_opened
from penstock.client.reading.slots import Delivery, Slots
from penstock.client.session.session import Session
from penstock.wire.errors import BadFrame
from penstock.wire.frame import Reply, check_header, check_sealed, sent_bytes
from penstock.wire.order import Order
from penstock.wire.transports import ReadCall
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")


@dataclass(frozen=True)
class FeedContext:
    """What all streams of a feed have in common.

    Attributes:
        session: What they open with.
        slots: Where batches go.
        pool: Where bodies land.
        max_body_bytes: A batch that announces more is refused before anything is allocated.
    """

    session: Session
    slots: Slots
    pool: BodyAllocator
    max_body_bytes: int


@dataclass(frozen=True)
class Opening:
    """What a stream is opened with, beside its session.

    Attributes:
        horizon: Positions below it may come.
        position: The next position that the consumer takes.
        bytes_limit: How many bytes may come in all.
        borrower: Bodies may be lent to it; None = none are.
    """

    horizon: int
    position: int
    bytes_limit: int
    borrower: Borrower | None = None


class OpenStream:
    """An open call, read by one thread; another one, the consumer's, moves its horizon.

    Args:
        call: The call.
        target: Where the node is, for messages.
        route: The number of the route that this is a stream of.
        context: What it has in common with the feed's other streams.
        opening: What it was opened with.

    Attributes:
        allowed: The horizon up to which positions may come: set before it is sent.
        sent: The horizon that the server knows of: set after it was sent.
        reported: The next position that the server knows of.
        received_bytes: The bodies of all batches that came whole, copies of known ones, too.
        has_opened: The node has accepted it.
        lends: The node lends it bodies.
        has_ended: The node has sent all that it has of the log.
        drains: The node shuts down.
        heard_s: When something came last, on the monotonic clock.
        told_s: When the server was told last how far we accept, on the same.
        order: Of an endless log, once the stream is open.
        waits_for: What it waits for, in words.
        landed: How many batches have come.
        landing: Where bodies land.
    """

    def __init__(
        self, call: ReadCall, target: str, route: int, context: FeedContext, opening: Opening
    ) -> None:
        self._call, self._target, self._route = call, target, route
        self._session, self._slots = context.session, context.slots
        self._arrivals, self._share = context.slots.arrivals, context.session.share
        self._max_body_bytes = context.max_body_bytes
        self.landing = Landing(context.pool, opening.borrower)
        self.allowed = self.sent = opening.horizon
        self.reported, self._bytes_limit = opening.position, opening.bytes_limit
        self._largest_bytes = 0  # of the bodies that have come
        self.received_bytes = 0
        self.has_opened = self.has_ended = self.lends = self.drains = False
        self.heard_s = self.told_s = time.monotonic()
        self.waits_for = ""
        self.landed = 0
        self.order: Order | None = None
        self._assembling: dict[tuple[int, int], Assembly] = {}
        self._in_bundle = False

    def send(
        self, horizon: int, finished_step: int, position: int, bytes_limit: int, waited_s: float
    ) -> None:
        """Tell the server how far we accept; takes no lock. The consumer's thread calls it."""
        message = feed_pb2.Horizon(
            horizon=horizon,
            finished_step=finished_step,
            next=position,
            bytes_limit=bytes_limit,
            waited_ms=int(1000 * waited_s),
        )
        self.allowed = max(self.allowed, horizon)
        self._call.send(feed_pb2.ReadRequest(horizon=message).SerializeToString())
        self.sent, self.reported = max(self.sent, horizon), position
        self._bytes_limit = max(self._bytes_limit, bytes_limit)
        self.told_s = time.monotonic()

    @property
    def has_room(self) -> bool:
        """Whether the server knows of room for one more batch, as large as any so far."""
        return self.received_bytes + self._largest_bytes <= self._bytes_limit

    def take_in(self, replies: Sequence[Reply]) -> bool:
        """Take in what came in one message; tell whether it could have completed the reading.

        Raises:
            BadFrame, ChecksumMismatch, JobChanged: What came is not what was opened, or is damaged.
        """
        self.heard_s = time.monotonic()
        if len(replies) == 1:
            return self._handle(replies[0])
        # A bundle is there at once: its first batch shall not wake the consumer to fight for the
        # interpreter with those after it.
        self._in_bundle = True
        try:
            # A list, as every reply is to be handled.
            return any([self._handle(reply) for reply in replies])  # noqa: C419
        finally:
            self._in_bundle = False
            self._slots.wake()

    def _handle(self, reply: Reply) -> bool:
        if reply.kind == "batch":
            return self._handle_batch(reply)
        message: Any = reply.message
        if reply.kind == "opened":
            self._opened(message)
        elif reply.kind == "waiting":
            self.waits_for = _describe_waiting(message)
        elif reply.kind == "draining":
            self.waits_for = f"{self._target} is shutting down: {message.detail}"
            self.drains = True
            log_in_background(logger.info, "job %r: %s", self._session.job, self.waits_for)
        else:
            self._ended(message)
        return reply.kind == "end"

    def _opened(self, message: feed_pb2.Opened) -> None:
        self.order = check_opened(message, self._session, self._target)
        self.has_opened, self.lends = True, message.lends
        self.waits_for = f"{self._target} has opened the stream and sent nothing yet"

    def _ended(self, message: feed_pb2.End) -> None:
        check_end(message, self._session, self._target)
        self.has_ended = True
        dropped = (message.dropped_batches, message.dropped_samples)
        if message.dropped_batches and self._arrivals.dropped != dropped:
            log_in_background(
                logger.info,
                "job %r: the last %d of %d batches, with %d samples, fill no step and were left "
                "out (tail='drop')",
                self._session.job,
                message.dropped_batches,
                message.batches,
                message.dropped_samples,
            )
        self._arrivals.dropped = dropped
        self._arrivals.end_at(message.steps * self._share.batches_per_step)
        self._slots.wake()

    def _handle_batch(self, reply: Reply) -> bool:
        header, chunk = reply.header, reply.chunk
        if header is not None:
            assembly = self._begin(header)
            if reply.lent is not None:
                assembly.take(reply.lent)
            else:
                self.landing.note_sent(sent_bytes(header), lends=self.lends)
            if chunk is None and assembly.is_whole:
                return self._finish(assembly)
        if chunk is None:
            return False
        found = self._assembling.get((chunk.lane, chunk.offset))
        if found is None:
            raise BadFrame(
                f"lane {chunk.lane}, offset {chunk.offset} sent a part of a batch without its "
                "header; check that client and server are of the same version"
            )
        found.add(chunk)
        return found.is_whole and self._finish(found)

    def _begin(self, header: feed_pb2.BatchHeader) -> Assembly:
        check_sealed(header)
        entries = check_header(header, max_body_bytes=self._max_body_bytes)
        check_batch(header, self._session, self.allowed, self.order)
        is_wanted = not self._arrivals.has(header.position)
        assembly = Assembly(header, entries, self.landing, is_wanted=is_wanted)
        self._assembling[header.lane, header.offset] = assembly
        return assembly

    def _finish(self, assembly: Assembly) -> bool:
        header = assembly.header
        del self._assembling[header.lane, header.offset]
        lease = assembly.finish()
        if lease is None:
            self.received_bytes += header.body_bytes
            return False
        self._largest_bytes = max(self._largest_bytes, header.body_bytes)
        self.waits_for = "the server has sent nothing since the last batch"
        is_new = self._slots.put(Delivery(header, assembly.entries, lease, self._route))
        self.received_bytes += header.body_bytes  # after it lies there: see `Feed.room`
        if not is_new:
            return False
        self.landed += 1
        if not self._in_bundle:
            self._slots.wake()
        return True


def _describe_waiting(message: feed_pb2.Waiting) -> str:
    item = f", item {message.item}" if message.item else ""
    stage = "waiting for the store" if message.stage == "store" else message.stage
    return (
        f"lane {message.lane}, offset {message.offset} is {stage} for {message.since_s:.0f} s{item}"
    )
