"""Sends batches below a consumer's horizon as they get ready, until the read ends.

Its messages are raw bytes, made by `penstock.wire.frame` with one copy of each body.
"""

from __future__ import annotations

import asyncio
import math
import time

from penstock.server.node.demand.wanted import BatchState, WantedBatch
from penstock.server.rpc.call import ConsumerCall
from penstock.server.rpc.edge import Edge
from penstock.server.rpc.gathering import Parcel, gathers_until
from penstock.server.rpc.opening import OpenedRead, draining, ended
from penstock.server.rpc.streams import OpenRead
from penstock.wire import LENT_BYTES
from penstock.wire.frame import batch_messages, bundle, with_position, without_samples
from penstock.wire.plain import clean_text
from penstock.wire.v1 import feed_pb2

WAITING_EVERY_S = 5.0
"""A consumer that waits is told for what, this often."""

TICK_S = 0.001
"""How finely event loops keep time. A timer may fire so much too early; and on uvloop's clock a
timer's `when()` may lie above the `time()` at which it has fired, by the last bit of a float."""

SHUTTING_DOWN = "the node shuts down"
"""Why a stream left that was drained."""

MAX_TEXT = 300
"""Characters of an item's name, and of a stage."""


class Sender:
    """Sends the batches of one read.

    Args:
        edge: The parts of the node that it works with.
        stream: The read, open.
        opening: What it was opened with.
        call: Where messages go.
        listening: Takes the consumer's horizons, and is done when it has hung up.
    """

    def __init__(
        self,
        edge: Edge,
        stream: OpenRead,
        opening: OpenedRead,
        call: ConsumerCall,
        listening: asyncio.Future[None],
    ) -> None:
        self._node, self._stream, self._opening = edge.node, stream, opening
        self._call, self._listening = call, listening
        self._streams, self._metrics = edge.streams, edge.metrics
        self._hand_over, self._lending = edge.hand_over, edge.lending
        self._reported_at = -math.inf  # when it was told what it waits for, of the monotonic clock

    async def run(self) -> str:
        """Send what the consumer accepts, until one of the ends; return why it ended.

        Raises:
            HungUp: The consumer is gone.
            PenstockError: The next batch cannot be made.
        """
        stream, call, listening = self._stream, self._call, self._listening
        reader, wake = stream.reader, stream.wake
        job, loop = self._opening.job.name, asyncio.get_running_loop()
        while True:
            wake.clear()
            if stream.error is not None:
                raise stream.error
            if listening.done() and not listening.cancelled() and listening.exception():
                raise listening.exception()  # type: ignore[misc]
            drains = self._hand_over.has_begun
            entry = None if drains and not self._hand_over.left_s() else self._node.take(reader)
            if entry is not None:
                length = stream.waits(False)
                if length is not None:
                    self._metrics.waited(job, length)
                await self._write(entry)
                continue
            if reader.finished and (samples := reader.unknown.dropped_samples()) is not None:
                await call.write(self._ended(samples).SerializeToString())
                return "the log's end"
            if drains and self._hand_over.is_over(reader):
                await call.write(draining().SerializeToString())
                return SHUTTING_DOWN
            if listening.done() and (not reader.pending or reader.is_full):
                return "hung up"  # and it has all that it accepted
            waits = bool(reader.pending) and not reader.is_full
            stream.waits(waits)
            if wake.is_set():
                # There is more to look through, and other streams have their turn first.
                await asyncio.sleep(0)
                continue
            left_s = self._reported_in_s() if waits else WAITING_EVERY_S
            if left_s <= 0:
                self._reported_at = time.monotonic()
                await call.write(self._waiting().SerializeToString())
                continue
            if drains:
                left_s = min(left_s, self._hand_over.left_s())
            # Not wait_for: it makes a task for every batch.
            timer = loop.call_later(max(left_s, TICK_S), wake.set)
            await wake.wait()
            timer.cancel()

    def _ended(self, dropped_samples: int) -> feed_pb2.ReadReply:
        """Return the message that ends the log, for a reader that was given all of its own."""
        self._opening.check_start()
        tail = self._opening.tail
        assert tail is not None
        if not tail.pad:
            self._metrics.tail_dropped(self._opening.job.name, tail.dropped, dropped_samples)
        return ended(tail, dropped_samples)

    def _reported_in_s(self) -> float:
        """Return in how many seconds the consumer is told what it waits for; 0 or less = now.

        However often this is woken meanwhile: a consumer that waits sends horizons.
        """
        since = max(self._stream.waiting_since or 0.0, self._reported_at)
        return since + WAITING_EVERY_S - time.monotonic()

    async def _write(self, entry: WantedBatch) -> None:
        """Send a batch, and with it those after it that fit one message."""
        stream, call, reader = self._stream, self._call, self._stream.reader
        parcel = Parcel(entry, stream.bundle_bytes, self._lend)
        try:
            if stream.request.bundles:
                await self._gather(parcel)
            batches = [
                (
                    with_position(self._header(entry), entry.key.position),
                    entry.key.lane,
                    entry.key.offset,
                    lent or entry.body,
                )
                for entry, lent in parcel.content
            ]
            if len(batches) > 1:
                stream.note_bundle(parcel.sent_bytes)
                await stream.unsent.write(call, bundle(batches))
            else:
                chunk = stream.chunk_bytes(len(batches[0][0]), entry.nbytes)
                for message in batch_messages(*batches[0], chunk_bytes=chunk):
                    await stream.unsent.write(call, message)
                    del message  # the next one then lies where the cache is warm
        finally:
            entries = [entry for entry, _ in parcel.content]
            self._node.sent(reader, *entries)
        stream.wrote_at = time.monotonic()
        if stream.caller.horizon is not None:
            self._node.extend(reader, stream.horizon)
        self._metrics.sent(
            reader.job.name,
            (entry.nbytes for entry in entries),
            sum(entry.tokens for entry in entries),
        )
        lent_bytes = [entry.nbytes for entry, lent in parcel.content if lent]
        self._metrics.lent(reader.job.name, lent_bytes)

    def _header(self, entry: WantedBatch) -> bytes:
        """Return what is said of a batch: to whom may not see it, not which items are in it."""
        caller = self._stream.caller
        return entry.header if caller.reads_text else without_samples(entry.header)

    def _lend(self, entry: WantedBatch) -> feed_pb2.Lent | None:
        """Lend a batch to a consumer on this host; None = send it."""
        stream = self._stream
        if stream.lender is None:
            return None
        limit_bytes = self._lending.limit_bytes(stream.lender)
        lent = stream.lender.lend(entry, limit_bytes)
        is_large = entry.span is not None and entry.span.view.nbytes >= LENT_BYTES
        if lent is None and is_large and entry.nbytes > limit_bytes - stream.lender.lent_bytes:
            self._streams.holds(stream, stream.lender.lent_bytes, limit_bytes, entry.nbytes)
        return lent

    async def _gather(self, parcel: Parcel) -> None:
        """Add what is ready to a bundle, and what soon will be as long as `gathers_until` says.

        It never waits in a stream that ends, for a batch that has failed, or for one that the
        consumer has no room for.
        """
        stream, reader, wake = self._stream, self._stream.reader, self._stream.wake
        while parcel.room_bytes > 0:
            if self._node.take(reader, parcel.add) is not None:
                continue
            pending = reader.next_pending
            if pending is None or pending.state is BatchState.FAILED or reader.is_full:
                return
            if stream.error is not None or self._hand_over.has_begun or self._listening.done():
                return
            here, missing = len(parcel.content), len(reader.pending)
            until = gathers_until(stream.opened_at, stream.wrote_at, here, missing)
            left = until - time.monotonic()
            if left <= 0 or not parcel.expects_more:
                return
            wake.clear()
            timer = asyncio.get_running_loop().call_later(left, wake.set)
            await wake.wait()
            timer.cancel()

    def _waiting(self) -> feed_pb2.ReadReply:
        stream = self._stream
        lane, offset, stage, item = self._node.waiting_for(stream.reader)
        since = time.monotonic() - (stream.waiting_since or time.monotonic())
        return feed_pb2.ReadReply(
            waiting=feed_pb2.Waiting(
                lane=lane,
                offset=offset,
                stage=clean_text(stage, MAX_TEXT),
                item=clean_text(item, MAX_TEXT) if stream.caller.sees_item(stage) else "",
                since_s=since,
            )
        )
