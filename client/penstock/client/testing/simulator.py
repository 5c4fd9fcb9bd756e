"""A device of the host's memory, stricter than one: a `Port` that finds what is done wrong with it.

Work waits in streams until the schedule, or somebody who waits, has it done, in any order that
events allow (`work_queues`). A copy reads its source when it is done, not when it is queued; what
is wrong with memory is found in `checked_memory`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.lifetimes import release_kept
from penstock.client.calls.background_thread import in_background
from penstock.client.device.trouble import out_of_memory
from penstock.client.testing.checked_memory import CheckedMemory
from penstock.client.testing.misuse import Misuse, Site, site
from penstock.client.testing.schedules import Random, Schedule
from penstock.client.testing.work_queues import SimulatedEvent, SimulatedStream, WorkQueues, join

CALLED_BY_OTHERS = frozenset({"query", "unregister"})
"""Calls that any Loader of the process makes on behalf of one that is gone: what is found wrong
there is nothing of its own, so the next other call raises it once more."""


class Simulator:
    """One simulated device: a `Port`. Any thread may call it.

    Args:
        schedule: When it does what is queued; by default at random, the same each time.
        memory_bytes: How much memory it has.
        index: Its number, for messages.
        goes_on_at: The calls after which it may do something; None = each.

    Attributes:
        counts: How often each call was made, by its name; `"copied"`: how many copies are over.
        loops: Threads that must never wait for an event: those of training loops.
        before: Called with the name of each call before it is made; what it raises, the call
            raises, and has done nothing.
        after: Called after it was made; what it raises, the call raises.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        *,
        memory_bytes: int = 1 << 40,
        index: int = 0,
        goes_on_at: frozenset[str] | None = None,
    ) -> None:
        self._memory_bytes, self._index, self._goes_on_at = memory_bytes, index, goes_on_at
        self._queues = WorkQueues(schedule or Random(0))
        self._memory = CheckedMemory(self._queues.host)
        self.counts: Counter[str] = Counter()
        self.loops: set[int] = set()
        self.before: Callable[[str], None] | None = None
        self.after: Callable[[str], None] | None = None
        self._lock = threading.RLock()
        self._unraised: Misuse | None = None
        self._is_abandoned = False

    # --- the port ---

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory that copies may read; see `Port.pin`."""
        with self._call("pin") as where:
            return self._memory.pin(nbytes, where)

    def register(self, array: NDArray[np.uint8]) -> None:
        """Let copies read memory of others; see `Port.register`."""
        with self._call("register") as where:
            self._memory.register(array, where)

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Let copies read it no more; see `Port.unregister`."""
        with self._call("unregister") as where:
            self._memory.unregister(array, where)

    def allocate(self, nbytes: int, stream: SimulatedStream) -> NDArray[np.uint8]:
        """Return memory of the device as an array, which the host must not read by itself.

        See `Port.allocate`.
        """
        with self._call("allocate", stream) as where:
            free = self._memory_bytes - self._memory.used_bytes
            if nbytes > free:
                raise out_of_memory(self.name, nbytes, free, self._memory_bytes)
            return self._memory.allocate(nbytes, stream, where)

    def copy(
        self,
        memory: NDArray[np.uint8],
        source: NDArray[np.uint8],
        nbytes: int,
        stream: SimulatedStream,
    ) -> None:
        """Queue a copy; see `Port.copy`."""
        with self._call("copy", stream) as where:
            block = self._memory.block(memory, where)
            span, raw = self._memory.source(source, nbytes, where)

            def do() -> None:
                block.bytes()[:nbytes] = raw
                self.counts["copied"] += 1

            work = self._queues.queue(stream, where, do)
            self._memory.note_read(work, span, raw)
            self._memory.use(block, work, writes=True)

    def record(self, stream: SimulatedStream) -> SimulatedEvent:
        """Return the end of what is queued; see `Port.record`."""
        with self._call("record", stream) as where:
            return self._queues.record(stream, where)

    def wait(
        self,
        stream: SimulatedStream,
        event: SimulatedEvent,
        *memory: NDArray[np.uint8],
    ) -> None:
        """Have a stream wait; see `Port.wait`."""

        def wait() -> None:
            with self._call("wait", stream, event) as where:
                for kept in memory:
                    self._memory.block(kept, where).kept_for.add(stream.number)
                if stream.is_host:
                    self._queues.until(event)
                join(stream.clock, event.clock)
                self._queues.queue(stream, where).event = event

        self._uninterrupted(wait)

    def query(self, event: SimulatedEvent) -> bool:
        """Tell whether an event is complete; see `Port.query`."""
        if self._is_abandoned:
            return True
        with self._call("query", event):
            if event.is_over:
                join(self._queues.host, event.clock)
            return event.is_over

    def synchronize(self, event: SimulatedEvent) -> None:
        """Wait until an event is complete; see `Port.synchronize`."""
        with self._call("synchronize", event) as where:
            if threading.get_ident() in self.loops:
                raise Misuse("the loop's thread waits for an event", event.site, where)
            self._queues.until(event)

    # --- what else a device does ---

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"simulated:{self._index}"

    def stream(self, name: str, *, is_host: bool = False) -> SimulatedStream:
        """Return a new stream.

        Args:
            name: For people.
            is_host: Its work is done by the host itself, as tensors on the host do: so waiting
                for an event there takes until it is complete.
        """
        with self._lock:
            streams = self._queues.streams
            found = SimulatedStream(self, len(streams), name, is_host)
            streams.append(found)
            return found

    def launch(
        self,
        stream: SimulatedStream,
        kernel: Callable[..., None],
        reads: Sequence[NDArray[np.uint8]] = (),
        writes: Sequence[NDArray[np.uint8]] = (),
    ) -> SimulatedEvent:
        """Queue a kernel on a stream, and return an event that is recorded after it.

        Args:
            stream: Where.
            kernel: Called with the bytes of what it reads, and then of what it writes, when it is
                its turn; an array that it keeps is a copy.
            reads: Memory of the device.
            writes: Memory of the device.
        """

        def launch() -> SimulatedEvent:
            with self._call("launch", stream) as where:
                read = [self._memory.block(memory, where) for memory in reads]
                written = [self._memory.block(memory, where) for memory in writes]
                blocks = [*read, *written]
                work = self._queues.queue(
                    stream, where, lambda: kernel(*(b.bytes() for b in blocks))
                )
                for block in read:
                    self._memory.use(block, work, writes=False)
                for block in written:
                    self._memory.use(block, work, writes=True)
                return self._queues.record(stream, where)

        found: SimulatedEvent = self._uninterrupted(launch)
        return found

    def finish(self, event: SimulatedEvent) -> None:
        """Wait for an event as a loop does that asks for values on the host."""

        def finish() -> None:
            with self._call("finish", event):
                self._queues.until(event)

        self._uninterrupted(finish)

    def drain(self) -> None:
        """Do everything that is queued."""
        with self._lock:
            self._queues.drain()

    def close(self) -> None:
        """Do everything, and refuse what is left: memory, registrations, work that nothing ends.

        Call it when all that used the device is gone, after a `gc.collect()`.

        Raises:
            Misuse: Something is left.
        """
        for _ in range(2):  # an event may be recorded when it is first asked for
            self.drain()
            with self._lock:
                self._raise_misuse()
            release_kept()  # which asks other devices, too: they may be asking this one
        self.drain()
        with self._lock:
            self._raise_misuse()
            where = site("close")
            if not self._is_abandoned:
                self._memory.look(where)
            if left := self._memory.left():
                raise Misuse(f"{len(left)} handles are left", left[0], where)
            for stream in self._queues.streams:
                if stream.work:
                    raise Misuse("work waits for ever", stream.work[0].site, where)

    def abandon(self) -> None:
        """Have every event count as past, and find nothing more: a test has failed, or meant to."""
        with self._lock:
            self._is_abandoned = True

    # --- what is done, and when ---

    @contextmanager
    def _call(self, name: str, *handles: SimulatedStream | SimulatedEvent) -> Iterator[Site]:
        if self.before is not None:
            self.before(name)
        with self._lock:
            if name not in CALLED_BY_OTHERS:
                self._raise_misuse()
            try:
                where = site(name)
                for handle in handles:
                    if handle.device is not self:
                        raise Misuse("a handle of another device", handle.site, where)
                self.counts[name] += 1
                if not self._is_abandoned:
                    self._memory.look(where)
                yield where
                if self._goes_on_at is None or name in self._goes_on_at:
                    self._queues.progress()
                self._queues.pass_marks()
            except Misuse as misuse:
                if name in CALLED_BY_OTHERS and self._unraised is None:
                    self._unraised = misuse.again()
                raise
            self._memory.passed(where)
        if self.after is not None:
            self.after(name)

    def _raise_misuse(self) -> None:
        """Raise what was found when nobody may have listened."""
        unraised, self._unraised = self._unraised, None
        if unraised is not None and not self._is_abandoned:
            raise unraised

    def _uninterrupted(self, work: Callable[[], Any]) -> Any:
        """Do what a signal handler that raises must not break off: it runs on the loop's thread."""
        return in_background(lambda _: work()) if threading.get_ident() in self.loops else work()
