"""One rank's stream: a background thread keeps the next batches ready, in order, whatever breaks.

The thread reads `Feed/Read`; the consumer takes from it. Between them stand **slots by position**:
the horizon ("I accept my positions below H") is the consumer's next position plus `prefetch` own
positions, and beside it goes how many bytes the stream may have sent in all: so memory is bounded
in both, and a late position always has its slot. When a stream breaks, the
next one opens at the first position that is missing; later ones that have arrived are kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.client.aside import Patience, aside, tell
from penstock.client.backoff import Backoff
from penstock.client.reading.buffers import BufferPool
from penstock.wire import PROTOCOL, frame
from penstock.wire.errors import (
    BadFrame,
    ChecksumMismatch,
    DataTimeout,
    JobChanged,
    PenstockError,
    Unreachable,
)
from penstock.wire.order import Order, Share
from penstock.wire.transport import ReadCall, Transport
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

LOG_EVERY_S = 30.0
"""A waiting consumer says so, with the reason, this often."""

PAUSE_S = 0.5
"""A waiting consumer looks up this often: a signal handler runs soon on every platform."""

TELL_S = 0.005
"""A consumer that waits longer tells the server where it is, in case that holds a batch back for
want of room. What is made as fast as it is read comes sooner, and a message for each would cost
both sides. Where the server knows of room for a batch like the largest so far, `PAUSE_S` it is."""

MAX_REREADS = 2
"""How often one position is read again after its checksum was wrong."""


@dataclass(frozen=True)
class Opening:
    """What every stream of one reader opens with.

    Attributes:
        target: Where the node is, for messages.
        job: The job's name.
        log_id: The log that the reader expects, 32 bytes.
        group: Empty = ephemeral.
        token: The attempt; empty = look only.
        generation: What Begin gave.
        tail_pad: Fill the last step, or leave it out.
        steps: How many steps the job has, as it was described; None = endless.
        given_from: Own positions from here to where a stream opens were given before; None = none.
    """

    target: str
    job: str
    log_id: bytes
    group: str = ""
    token: str = ""
    generation: int = 0
    tail_pad: bool = True
    steps: int | None = None
    given_from: int | None = None


class Delivery(NamedTuple):
    """A whole batch, checked.

    Attributes:
        header: Its header; `header.position` says which it is.
        body: uint8 (nbytes,), a lease of the pool.
    """

    header: feed_pb2.BatchHeader
    body: NDArray[np.uint8]


@dataclass
class _Assembly:
    """A batch whose chunks are arriving; `body` is None where it is a copy of one that is there."""

    header: feed_pb2.BatchHeader
    body: NDArray[np.uint8] | None
    filled: int = 0
    crc: int = 0


@dataclass
class _Stream:
    """One open call.

    Attributes:
        call: The call.
        allowed: The horizon up to which positions may come: set before it is sent.
        sent: The horizon that the server was told: set after it was sent.
        told: The next position that the server was told.
        bytes_limit: What it may have sent in all, as it was told.
        received_bytes: The bodies of all batches that came whole, copies of known ones, too.
    """

    call: ReadCall
    allowed: int
    sent: int
    told: int
    bytes_limit: int
    received_bytes: int = 0


class Feed:
    """Delivers a rank's own positions from `start` on.

    Two threads meet here, and the consumer's may be broken off between any two bytecodes, by a
    signal handler that raises: so it takes no lock. Every attribute has one thread that sets it;
    batches lie in a dict by position, where they stay until the consumer says that it is past
    them; and what it does is right also when it is done twice. It is woken by a lock that is a
    semaphore: whoever changes something lets it go, and the consumer looks again.

    Args:
        transport: The way to the node.
        opening: What streams open with.
        share: Which positions are the rank's own.
        start: The first position that is wanted.
        stop: No position from here on is wanted; None = until the log ends.
        prefetch: How many own positions may be ready beyond the next to be taken.
        prefetch_bytes: How many bytes of them; the next one comes whatever its size.
        max_body_bytes: A batch that announces more is refused before anything is allocated.
        pool: Where bodies land.
    """

    def __init__(
        self,
        transport: Transport,
        opening: Opening,
        share: Share,
        start: int,
        *,
        stop: int | None,
        prefetch: int,
        prefetch_bytes: int,
        max_body_bytes: int,
        pool: BufferPool,
    ) -> None:
        self._transport, self._opening, self._share = transport, opening, share
        self._prefetch_bytes, self._untold_bytes = prefetch_bytes, 0
        self._prefetch, self._max_body_bytes, self._pool = prefetch, max_body_bytes, pool
        first = share.at_or_after(start)
        # Both threads put in and take out; one call of a dict is whole or has not happened.
        self._ready: dict[int, Delivery] = {}
        self._changed = threading.Lock()  # a semaphore: free = something has changed
        # Set by the consumer.
        self.finished_step = share.step(start)
        self._next = first  # the first position that it has not been given
        self._kept = first  # the first position that it may ask for once more
        self.wait_s = 0.0
        # Set by the background thread.
        self._missing = first  # the first position that has not arrived
        self._landed: set[int] = set()  # those above it that have
        self._end = stop  # the first position that will not come
        self._order: Order | None = None  # of an endless log, once the stream is open
        self._stream: _Stream | None = None
        self._error: BaseException | None = None
        self._broken: PenstockError | None = None  # why there is no stream now
        self._reason = f"connecting to {opening.target}"
        self._cause = ""  # what broke the stream last, as long as no batch has come since
        self.reconnects = 0
        self._assembling: dict[tuple[int, int], _Assembly] = {}
        self._rereads: dict[int, int] = {}
        self._in_bundle = False
        self._largest_bytes = 0  # of the bodies that have come
        self._backoff = Backoff()
        # Set and taken by threads that nothing breaks off.
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._call: ReadCall | None = None
        self._thread: threading.Thread | None = None
        self._is_started = False

    # --- the consumer ---

    def take(self, position: int, deadline_s: float) -> Delivery | None:
        """Return the batch at an own position, or None past the end.

        Going upwards; the same position may be asked for again until `release`.

        Raises:
            DataTimeout: It did not come within `deadline_s`; says what the server waits for.
            Unreachable: No server could be reached within `deadline_s`.
            PenstockError: What the server says is wrong.
        """
        if position > self._next:
            self._next = position  # what was skipped takes no room any more
        delivery = self._ready.get(position)
        if delivery is None:
            delivery = self._wait(position, deadline_s)
            if delivery is None:
                return None
        if position >= self._next:
            self._next = self._share.nth_after(position, 1)
            self._untold_bytes += delivery.body.nbytes
        # A message for every batch may cost more than the batch: half of the room at once.
        self._extend(at_least=max(1, self._prefetch // 2))
        return delivery

    def release(self, position: int) -> None:
        """Release the own positions below `position`: they will not be asked for again."""
        while self._kept < position:
            self._ready.pop(self._kept, None)
            self._kept = self._share.nth_after(self._kept, 1)

    def statistics(self, due: int) -> dict[str, int]:
        """Return what is ready from position `due` on: `buffered_batches`, `buffer_bytes`."""
        ready = [d for d in list(self._ready.values()) if d.header.position >= due]
        return {
            "buffered_batches": len(ready),
            "buffer_bytes": sum(delivery.body.nbytes for delivery in ready),
        }

    # --- the end, on a thread that no signal handler breaks off ---

    def cancel(self) -> None:
        """End the stream; idempotent. It takes locks: call it aside."""
        with self._guard:
            self._closed.set()
            call = self._call
        self._wake()
        if call is not None:
            call.cancel()

    def join(self, deadline_s: float) -> None:
        """Wait until the background thread has ended, after `cancel`. It too is called aside."""
        with self._guard:
            thread = self._thread
        if thread is not None:
            thread.join(deadline_s)

    # --- waiting ---

    def start(self) -> None:
        """Start the background thread, once: batches come from now on, before they are taken."""

        def start(_: Patience) -> None:
            with self._guard:
                if self._thread is None and not self._closed.is_set():
                    self._thread = threading.Thread(
                        target=self._run, name="penstock-feed", daemon=True
                    )
                    self._thread.start()

        aside(start)
        self._is_started = True

    def _wait(self, position: int, deadline_s: float) -> Delivery | None:
        if not self._is_started:
            self.start()
        began = time.monotonic()
        log_at = LOG_EVERY_S
        try:
            while (delivery := self._ready.get(position)) is None:
                if self._end is not None and position >= self._end:
                    return None
                # After the look for the batch: those before an error have come.
                error, ended = self._error, self._closed.is_set()
                if position in self._ready:
                    continue
                if error is not None:
                    raise _again(error)
                if ended:
                    raise PenstockError("the Loader was closed while a batch was waited for")
                waited = time.monotonic() - began
                stream = self._stream
                is_told = stream is None or stream.told >= position
                tell_s = PAUSE_S if stream is None or self._has_room(stream) else TELL_S
                if stream is not None and position >= stream.sent:
                    # Nobody moves the horizon while the only consumer waits: send what was held
                    # back. Below it the server is at work already, and a message would cost both.
                    self._extend(at_least=1)
                elif not is_told and waited >= tell_s:
                    # Or it holds this batch back, for want of room that is there by now.
                    self._extend(at_least=0)
                if waited >= deadline_s:
                    raise self._timeout(position, waited)
                if waited >= log_at:
                    log_at += LOG_EVERY_S
                    tell(
                        logger.warning,
                        "job %r: waiting %.0f s for the batch at position %d: %s",
                        self._opening.job,
                        waited,
                        position,
                        self._why(),
                    )
                pause_s = PAUSE_S if is_told or waited >= tell_s else tell_s
                self._changed.acquire(timeout=max(0.0, min(pause_s, deadline_s - waited)))
            return delivery
        finally:
            self.wait_s += time.monotonic() - began

    def _has_room(self, stream: _Stream) -> bool:
        """Tell whether the server knows of room for one more batch, as large as any so far."""
        return stream.received_bytes + self._largest_bytes <= stream.bytes_limit

    def _wake(self) -> None:
        """Have the consumer look again, now or when it comes to wait."""
        with contextlib.suppress(RuntimeError):  # it was told, and has not looked yet
            self._changed.release()

    def _timeout(self, position: int, waited: float) -> PenstockError:
        target, broken = self._opening.target, self._broken
        if isinstance(broken, Unreachable):
            return Unreachable(
                f"no data from {target} for {waited:.0f} s: {broken.message}; "
                "reading goes on at the same position when it is back (deadline_s= waits longer)",
                target=target,
                waited_s=round(waited, 3),
            )
        if broken is not None:
            return broken
        return DataTimeout(
            f"the batch at position {position} of job {self._opening.job!r} did not come within "
            f"{waited:.0f} s: {self._why()}; raise deadline_s= if that is to be expected",
            position=position,
            waited_s=round(waited, 3),
            reason=self._why(),
        )

    def _extend(self, at_least: int) -> None:
        """Tell the server how far we accept, if that has moved by `at_least` own positions.

        Or if half of the room for bytes is free again.
        """
        stream = self._stream
        if stream is None:
            return  # the next one opens with it
        horizon = self._horizon()
        moved = horizon - stream.sent
        # At the end the horizon stops short: its last move may be less than one own position.
        is_far = moved >= at_least * self._share.world_size or (moved > 0 and horizon == self._end)
        if not is_far and self._untold_bytes <= self._prefetch_bytes // 2:
            return
        self._untold_bytes = 0
        position, limit = self._room(stream.received_bytes)
        message = feed_pb2.Horizon(
            horizon=horizon, finished_step=self.finished_step, next=position, bytes_limit=limit
        )
        stream.allowed = max(stream.allowed, horizon)
        stream.call.send(feed_pb2.ReadRequest(horizon=message).SerializeToString())
        stream.sent, stream.told = max(stream.sent, horizon), position
        stream.bytes_limit = max(stream.bytes_limit, limit)

    def _room(self, received_bytes: int) -> tuple[int, int]:
        """Return the next position, and how many bytes a stream may have sent from its start on.

        That is what has come of it and what may come: the bound without what lies here. What is on
        its way is part of what may come, so the bound holds whatever the server knows. Both threads
        call it.

        Args:
            received_bytes: What has come of it; looked at before what lies here, so that a batch
                that lands in between counts twice and not never.
        """
        position = self._next
        ready = list(self._ready.items())
        held = sum(found.body.nbytes for at, found in ready if at >= position)
        return position, max(1, received_bytes + self._prefetch_bytes - held)

    def _horizon(self) -> int:
        horizon = self._share.nth_after(self._next, self._prefetch)
        return horizon if self._end is None else min(horizon, self._end)

    def _complete(self) -> bool:
        return self._end is not None and self._missing >= self._end

    # --- the background thread ---

    def _run(self) -> None:
        try:
            while not self._closed.is_set() and not self._complete():
                try:
                    self._read()
                except PenstockError as error:
                    if self._closed.is_set():
                        return
                    if not self._may_retry(error):
                        raise
                    self._note_break(error)
                    self._closed.wait(self._backoff.next_s())
        except BaseException as error:  # the edge of the thread: the consumer raises it
            self._error = error
        finally:
            self._wake()

    def _why(self) -> str:
        """Return what is waited for, and what went wrong before that."""
        cause = self._cause
        return self._reason if cause in self._reason else f"{self._reason}, after: {cause}"

    def _may_retry(self, error: PenstockError) -> bool:
        if isinstance(error, ChecksumMismatch):
            # A damaged header names no position: it holds up the first that has not come.
            position = int(error.fields.get("position", self._missing))
            self._rereads[position] = self._rereads.get(position, 0) + 1
            return self._rereads[position] <= MAX_REREADS
        return error.status == "UNAVAILABLE"

    def _note_break(self, error: PenstockError) -> None:
        first = self._broken is None
        self._broken = error
        self._reason = self._cause = error.message
        self.reconnects += 1
        if first:
            tell(
                logger.info,
                "job %r: %s; going on at position %d",
                self._opening.job,
                error,
                self._missing,
            )

    def _read(self) -> None:
        """Read one stream until it ends; return when nothing more is to come."""
        self._assembling.clear()
        horizon = self._horizon()
        position, limit = self._room(0)
        call = self._transport.read(self._open_message(self._missing, horizon, position, limit))
        with self._guard:
            self._call = call
        self._stream = _Stream(call, horizon, horizon, position, limit)
        self._wake()  # who waits beyond the horizon may move it now
        try:
            if self._closed.is_set():
                return
            for message in call:
                if self._handle_all(frame.parse_replies(message)) and self._complete():
                    return
                # Free it before the next one is made: that one then lies where the cache is warm.
                del message
        finally:
            self._stream = None
            with self._guard:
                self._call = None
            call.cancel()
            with contextlib.suppress(PenstockError):  # it is over, whatever else it says
                for _ in call:
                    pass
        if not self._complete():
            raise Unreachable(
                f"{self._opening.target} closed the stream", target=self._opening.target
            )

    def _open_message(self, start: int, horizon: int, position: int, limit: int) -> bytes:
        opening, share = self._opening, self._share
        message = feed_pb2.Open(
            protocol=PROTOCOL,
            job=opening.job,
            log_id=opening.log_id,
            group=opening.group,
            token=opening.token,
            generation=opening.generation,
            rank=share.rank,
            world_size=share.world_size,
            batches_per_step=share.batches_per_step,
            start=start,
            tail=feed_pb2.TAIL_PAD if opening.tail_pad else feed_pb2.TAIL_DROP,
            horizon=horizon,
            next=position,
            bytes_limit=limit,
            bundles=True,
        )
        if opening.given_from is not None and opening.given_from < start:
            # A node that has just started does not know it, and nothing of it may move.
            message.given_from = opening.given_from
        return feed_pb2.ReadRequest(open=message).SerializeToString()

    def _handle_all(self, replies: list[frame.Reply]) -> bool:
        """Take in what came in one message; tell whether it could have completed the reading."""
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
            self._wake()

    def _handle(self, reply: frame.Reply) -> bool:
        """Take in one message; tell whether it could have completed the reading."""
        if reply.kind == "batch":
            return self._handle_batch(reply)
        message: Any = reply.message
        if reply.kind == "opened":
            self._opened(message)
        elif reply.kind == "waiting":
            self._reason = _describe_waiting(message)
        elif reply.kind == "draining":
            self._reason = f"{self._opening.target} is shutting down: {message.detail}"
            tell(logger.info, "job %r: %s", self._opening.job, self._reason)
        else:
            if message.steps != self._opening.steps:
                raise BadFrame(
                    f"{self._opening.target} ends job {self._opening.job!r} after {message.steps} "
                    f"steps, and described it as {_length(self._opening.steps)}: nothing is left "
                    "out silently; check that both sides run the same version"
                )
            end = message.steps * self._share.batches_per_step
            self._end = end if self._end is None else min(self._end, end)
            self._wake()
            if message.dropped_batches:
                tell(
                    logger.info,
                    "job %r: the last %d of %d batches fill no step and were left out "
                    "(tail='drop')",
                    self._opening.job,
                    message.dropped_batches,
                    message.batches,
                )
        return reply.kind == "end"

    def _opened(self, message: feed_pb2.Opened) -> None:
        if message.log_id != self._opening.log_id:
            raise JobChanged(
                f"job {self._opening.job!r} at {self._opening.target} is another log than the one "
                f"that was being read: {message.log_id.hex()[:12]}, not "
                f"{self._opening.log_id.hex()[:12]}; serve the job as it was, or start a new group",
                log_id=message.log_id.hex(),
                expected=self._opening.log_id.hex(),
            )
        # Where the lanes of a finite log end is the server's to know.
        self._order = None if message.HasField("batches") else Order(max(1, message.lanes))
        self._broken = None
        self._reason = f"{self._opening.target} has opened the stream and sent nothing yet"

    def _handle_batch(self, reply: frame.Reply) -> bool:
        header, chunk = reply.header, reply.chunk
        if header is not None:
            assembly = self._begin(header)
            if header.body_bytes == 0 and chunk is None:
                return self._finish(assembly)
        if chunk is None:
            return False
        found = self._assembling.get((chunk.lane, chunk.offset))
        if found is None:
            raise BadFrame(
                f"lane {chunk.lane}, offset {chunk.offset} sent a part of a batch without its "
                "header; check that client and server are of the same version"
            )
        after = frame.check_chunk(found.header, chunk, found.filled)
        if found.body is not None:
            # First the sum, while the message is in the cache: the copy pushes it out.
            found.crc = frame.crc32c(chunk.data, found.crc)
            # An array over the message's bytes: slices of ndarrays copy at memory speed.
            found.body[found.filled : after] = np.frombuffer(chunk.data, np.uint8)
        found.filled = after
        return after == found.header.body_bytes and self._finish(found)

    def _begin(self, header: feed_pb2.BatchHeader) -> _Assembly:
        frame.check_sealed(header)
        frame.check_header(header, max_body_bytes=self._max_body_bytes)
        position = header.position
        if header.log_id != self._opening.log_id:
            raise BadFrame(
                f"the batch at position {position} is of log {header.log_id.hex()[:12]}, and the "
                f"stream of {self._opening.log_id.hex()[:12]}: the node mixed up two jobs",
                position=position,
            )
        known = position < self._missing or position in self._landed
        stream = self._stream
        assert stream is not None  # it is what we read
        horizon = stream.allowed
        if not self._share.owns(position) or position >= horizon:
            raise BadFrame(
                f"position {position} was sent to rank {self._share.rank} of "
                f"{self._share.world_size}, which did not ask for it (horizon {horizon}); check "
                "that client and server are of the same version",
                position=position,
            )
        address = (header.lane, header.offset)
        if self._order is not None and self._order.address(position) != address:
            raise BadFrame(
                f"the batch at position {position} says that it is offset {header.offset} of lane "
                f"{header.lane}, which is another position of {self._order.lanes} lanes; check "
                "that client and server are of the same version",
                position=position,
            )
        body = None if known else self._pool.lease(header.body_bytes)
        assembly = _Assembly(header, body)
        self._assembling[header.lane, header.offset] = assembly
        return assembly

    def _finish(self, assembly: _Assembly) -> bool:
        header, body = assembly.header, assembly.body
        del self._assembling[header.lane, header.offset]
        stream = self._stream
        assert stream is not None  # it is what we read
        if body is None:
            stream.received_bytes += header.body_bytes
            return False
        frame.check_crc(header, body, assembly.crc)
        self._largest_bytes = max(self._largest_bytes, header.body_bytes)
        self._backoff.reset()
        self._reason, self._cause = "the server has sent nothing since the last batch", ""
        self._ready[header.position] = Delivery(header, body)
        stream.received_bytes += header.body_bytes  # after it lies here: see `_room`
        self._landed.add(header.position)
        while self._missing in self._landed:
            self._landed.remove(self._missing)
            self._missing = self._share.nth_after(self._missing, 1)
        if not self._in_bundle:
            self._wake()
        self._rereads.pop(header.position, None)
        return True


def _describe_waiting(message: feed_pb2.Waiting) -> str:
    item = f", item {message.item}" if message.item else ""
    return (
        f"lane {message.lane}, offset {message.offset} is {message.stage} "
        f"for {message.since_s:.0f} s{item}"
    )


def _length(steps: int | None) -> str:
    return "endless" if steps is None else f"{steps} steps long"


def _again(error: BaseException) -> BaseException:
    """Return a fresh error to raise: the traceback of one would grow with every call."""
    if isinstance(error, PenstockError):
        return type(error)(error.message, **error.fields)
    return RuntimeError(f"the feed's thread failed: {error!r}").with_traceback(error.__traceback__)


__all__ = ["LOG_EVERY_S", "MAX_REREADS", "Delivery", "Feed", "Opening"]
