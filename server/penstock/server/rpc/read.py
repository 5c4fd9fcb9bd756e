"""One `Feed/Read`: it takes horizons from its consumer, and sends what lies below them.

Its messages are raw bytes, made by `penstock.wire.frame` with one copy of each body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from penstock.server.core.frames import error_line
from penstock.server.metrics import Metrics
from penstock.server.node.entry import Entry, State
from penstock.server.node.node import Node
from penstock.server.rpc.lending import Lending
from penstock.server.rpc.opening import (
    OpenedRead,
    ended,
    open_read,
    opened,
    parse_horizon,
    parse_open,
)
from penstock.server.rpc.present import Present
from penstock.server.rpc.story import UNCHECKED
from penstock.server.rpc.streams import Stream, Streams
from penstock.server.store.base import Store
from penstock.wire import CHUNK_BYTES, LENT_BYTES, frame
from penstock.wire.errors import (
    Internal,
    PenstockError,
    StaleGeneration,
    StoreUnavailable,
    clean_text,
)
from penstock.wire.v1 import feed_pb2

WAITING_EVERY_S, CHECK_DEADLINE_S = 5.0, 10.0

SHUTTING_DOWN = "the node shuts down"
"""Why a stream left that was drained."""

GATHER_S = 0.03
"""How old a stream's last message is, at most, when a small batch waits for others to share the
next: 33 messages a second are nothing to either side, and no training step notices the delay."""

MAX_TEXT = 300
"""Characters of an item's name, and of a stage."""

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs leave it out


class HungUp(Exception):
    """The consumer is gone, or its connection is."""


class Call:
    """A gRPC call as a handler uses it: what fails in it is the consumer's end, and no bug.

    gRPC says it with several errors, and may not know yet that the call is done.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> Any:
        """Return the consumer's next message, or EOF.

        Raises:
            HungUp: The connection broke.
        """
        try:
            return await self._context.read()
        except Exception as error:
            raise HungUp(error_line(error)) from error

    async def write(self, data: bytes) -> None:
        """Send a message.

        Raises:
            HungUp: The connection broke.
        """
        try:
            await self._context.write(data)
        except Exception as error:
            raise HungUp(error_line(error)) from error


class Parcel:
    """The batches of one message: bodies of some size in all, and lent ones, which take none.

    Args:
        first: Goes into it, however large it is.
        room_bytes: How much it may hold.
        lend: Lends a batch; None = it must be sent.

    Attributes:
        content: The batches, each with its loan.
        room_bytes: How many more bytes it holds.
        sent_bytes: How many it holds.
    """

    def __init__(
        self, first: Entry, room_bytes: int, lend: Callable[[Entry], feed_pb2.Lent | None]
    ) -> None:
        self.content: list[tuple[Entry, feed_pb2.Lent | None]] = []
        self._lend, self.room_bytes, self.sent_bytes = lend, room_bytes, 0
        self._first_bytes = first.nbytes
        lent = lend(first)
        self._put(first, lent)
        if lent is None and first.nbytes >= CHUNK_BYTES:
            self.room_bytes = 0  # it goes in chunks, alone

    def add(self, entry: Entry) -> bool:
        """Add a batch, if there is room for it."""
        if len(entry.header) > self.room_bytes:
            return False
        lent = self._lend(entry)
        if lent is None and entry.nbytes > self.room_bytes:
            return False
        self._put(entry, lent)
        return True

    def _put(self, entry: Entry, lent: feed_pb2.Lent | None) -> None:
        self.content.append((entry, lent))
        nbytes = entry.nbytes if lent is None else len(entry.header)
        self.room_bytes -= nbytes
        self.sent_bytes += nbytes

    @property
    def expects_more(self) -> bool:
        """Tell whether small batches come, and there is room for one as large as the first."""
        return self._first_bytes <= self.room_bytes


class Reads:
    """Serves reads.

    Args:
        node: The node, started.
        store: Its store, open.
        streams: The open ones.
        present: Looks for a job's files before a run begins.
        metrics: Where batches and waits are counted.
        draining: Set once the node shuts down.
        lending: Knows the processes on this host that bodies are lent to.
    """

    def __init__(
        self,
        node: Node,
        store: Store,
        streams: Streams,
        present: Present,
        metrics: Metrics,
        draining: asyncio.Event,
        lending: Lending,
    ) -> None:
        self.node, self.store, self.streams, self.present = node, store, streams, present
        self.metrics, self.draining, self.lending = metrics, draining, lending

    async def serve(self, call: Call, peer: str) -> None:
        """Answer a call to its end.

        Args:
            call: The call.
            peer: Where it comes from, as gRPC says it.

        Raises:
            HungUp: The consumer is gone.
            PenstockError: What it asks for cannot be given.
        """
        first = await call.read()
        if first is EOF:
            return
        request = parse_open(first)
        opening = open_read(self.node.jobs, request)
        if self.draining.is_set():
            # A client that was sent away reconnects at once: accepting it would keep the node up.
            await call.write(_draining().SerializeToString())
            return
        await self._check_token(request)
        if not request.token and opening.given_from is None:
            await self.present.check(opening.job)  # it begins: nothing was given yet
        wake = asyncio.Event()
        self.node.note_given(request.job, opening.given())
        reader = self.node.open(
            request.job, opening.share, opening.tail, opening.start, opening.lanes, wake.set
        )
        stream = Stream(request, reader, wake, peer, self.lending.find(request.borrower))
        number = self.streams.add(stream)
        listening = asyncio.ensure_future(self._listen(stream, call))
        listening.add_done_callback(lambda _: wake.set())
        try:
            self.streams.joined(stream)
            reply = opened(opening, self.node.incarnation, lends=stream.lender is not None)
            await call.write(reply.SerializeToString())
            self.node.extend(reader, request.horizon, request.next, request.bytes_limit)
            stream.ending = await self._send(stream, opening, call, listening)
        except asyncio.CancelledError:
            if self.draining.is_set():
                stream.ending = SHUTTING_DOWN
            raise
        except Exception as error:
            stream.ending = _why(error)
            raise
        finally:
            # First what may not fail: a reader that stays would want its batches for ever.
            self.node.leave(reader)
            listening.cancel()
            self.streams.remove(number)
            await asyncio.gather(listening, return_exceptions=True)

    async def _check_token(self, request: feed_pb2.Open) -> None:
        if not request.group or not request.token:
            return
        try:
            async with asyncio.timeout(CHECK_DEADLINE_S):
                await self.store.check_token(
                    request.job, request.group, request.token, request.generation
                )
        except StaleGeneration as error:
            self.streams.refused(error, "Read")
            raise
        except (StoreUnavailable, TimeoutError) as error:
            # Reading goes on without the store; commits will tell whether this attempt was fenced.
            self.streams.story.tell(
                UNCHECKED,
                level="warning",
                job=request.job,
                group=request.group,
                rank=request.rank,
                error=str(error) or f"the store did not answer within {CHECK_DEADLINE_S:.0f} s",
            )

    async def _listen(self, stream: Stream, call: Call) -> None:
        """Take the consumer's horizons until it hangs up."""
        while True:
            data = await call.read()
            if data is EOF:
                return
            moved = parse_horizon(data)
            stream.note_finished(moved.finished_step)
            self.node.extend(stream.reader, moved.horizon, moved.next, moved.bytes_limit)
            stream.wake.set()

    async def _send(
        self, stream: Stream, opening: OpenedRead, call: Call, listening: asyncio.Future[None]
    ) -> str:
        """Send what the consumer accepts, until one of the ends; return why it ended."""
        reader, wake = stream.reader, stream.wake
        job, loop = opening.job.name, asyncio.get_running_loop()
        while True:
            wake.clear()
            if stream.error is not None:
                raise stream.error
            if listening.done() and not listening.cancelled() and listening.exception():
                raise listening.exception()  # type: ignore[misc]
            if self.draining.is_set():
                await call.write(_draining().SerializeToString())
                return SHUTTING_DOWN
            entry = self.node.take(reader)
            if entry is not None:
                length = stream.waits(False)
                if length is not None:
                    self.metrics.waited(job, length)
                await self._write(stream, entry, call, listening)
                continue
            if reader.finished:
                assert opening.tail is not None
                await call.write(ended(opening.tail).SerializeToString())
                return "the log's end"
            if listening.done() and (not reader.pending or reader.is_full):
                return "hung up"  # and it has all that it accepted
            waits = bool(reader.pending) and not reader.is_full
            stream.waits(waits)
            if wake.is_set():
                # There is more to look through, and everybody else shall have a turn before it.
                await asyncio.sleep(0)
                continue
            # Not wait_for: it makes a task for every batch.
            timer = loop.call_later(WAITING_EVERY_S, wake.set)
            await wake.wait()
            timer.cancel()
            if waits and loop.time() >= timer.when():
                await call.write(self._waiting(stream).SerializeToString())

    async def _write(
        self, stream: Stream, entry: Entry, call: Call, listening: asyncio.Future[None]
    ) -> None:
        """Send a batch, and with it those after it that fit one message."""
        reader, parcel = (
            stream.reader,
            Parcel(entry, stream.bundle_bytes, partial(self._lend, stream)),
        )
        try:
            if stream.request.bundles:
                await self._gather(stream, parcel, listening)
            batches = [
                (
                    frame.with_position(one.header, one.key.position),
                    one.key.lane,
                    one.key.offset,
                    lent or one.body,
                )
                for one, lent in parcel.content
            ]
            if len(batches) > 1:
                stream.note_bundle(parcel.sent_bytes)
                await call.write(frame.bundle(batches))
            else:
                chunk = stream.chunk_bytes(len(batches[0][0]), entry.nbytes)
                for message in frame.batch_messages(*batches[0], chunk_bytes=chunk):
                    await call.write(message)
                    del message  # the next one then lies where the cache is warm
        finally:
            for one, _ in parcel.content:
                self.node.sent(reader, one)
        stream.wrote_at = time.monotonic()
        for one, _ in parcel.content:
            self.metrics.sent(reader.log.job.name, one.nbytes)

    def _lend(self, stream: Stream, entry: Entry) -> feed_pb2.Lent | None:
        """Lend a batch to a consumer on this host; None = send it."""
        if stream.lender is None:
            return None
        limit_bytes = self.lending.limit_bytes(stream.lender)
        lent = stream.lender.lend(entry, limit_bytes)
        is_large = entry.span is not None and entry.span.view.nbytes >= LENT_BYTES
        if lent is None and is_large and entry.nbytes > limit_bytes - stream.lender.lent_bytes:
            self.streams.holds(stream, stream.lender.lent_bytes, limit_bytes, entry.nbytes)
        return lent

    async def _gather(
        self, stream: Stream, parcel: Parcel, listening: asyncio.Future[None]
    ) -> None:
        """Add what is ready to a bundle, and what soon will be as long as `gathers_until` says.

        Nothing waits in a stream that ends, whatever the reason, nor for a batch that has failed
        or that the consumer has no room for.
        """
        reader, wake = stream.reader, stream.wake
        while parcel.room_bytes > 0:
            if self.node.take(reader, parcel.add) is not None:
                continue
            owed = reader.owed
            if owed is None or owed.state is State.FAILED or reader.is_full:
                return
            if stream.error is not None or self.draining.is_set() or listening.done():
                return
            until = gathers_until(stream.wrote_at, len(parcel.content), len(reader.pending))
            left = until - time.monotonic()
            if left <= 0 or not parcel.expects_more:
                return
            wake.clear()
            timer = asyncio.get_running_loop().call_later(left, wake.set)
            await wake.wait()
            timer.cancel()

    def _waiting(self, stream: Stream) -> feed_pb2.ReadReply:
        lane, offset, stage, item = self.node.waiting_for(stream.reader)
        since = time.monotonic() - (stream.waiting_since or time.monotonic())
        return feed_pb2.ReadReply(
            waiting=feed_pb2.Waiting(
                lane=lane,
                offset=offset,
                stage=clean_text(stage, MAX_TEXT),
                item=clean_text(item, MAX_TEXT),
                since_s=since,
            )
        )


def gathers_until(wrote_at: float, gathered: int, missing: int) -> float:
    """Return until when small batches wait for others to share their message.

    A message costs as much as several of them, on both sides, and where batches come one by one
    each would have one of its own. So they wait for each other until half of what the consumer
    accepts is here: it works on one half while the other is made. The first batch after a pause
    waits for nothing.

    Args:
        wrote_at: When the stream's last message was sent, in seconds.
        gathered: How many batches are here.
        missing: How many more the consumer accepts, none of which can be sent yet.

    Returns:
        A time on the clock of `wrote_at`; one that has passed = send at once.
    """
    return wrote_at + GATHER_S if gathered < missing else wrote_at


def _why(error: Exception) -> str:
    """Return in a word or two why a stream ends with an error."""
    if isinstance(error, StaleGeneration):
        return "fenced"
    if isinstance(error, HungUp):
        return "hung up"
    return error.code if isinstance(error, PenstockError) else Internal.code


def _draining() -> feed_pb2.ReadReply:
    text = "this node is shutting down; read on from another, or from this one when it is back"
    return feed_pb2.ReadReply(draining=feed_pb2.Draining(detail=text))


__all__ = ["EOF", "GATHER_S", "Call", "HungUp", "Reads", "gathers_until"]
