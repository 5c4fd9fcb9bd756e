"""A device of the host's memory, stricter than one: a `Port` that finds what is done wrong with it.

Work waits in streams until the schedule, or somebody who waits, has it done, in any order that
events allow. A copy reads its source when it is done, not when it is queued.

What each piece of work comes after is kept as a vector of the last work of each stream, so that two
that nothing orders are found whichever is done first. Writes of the host into a source are found by
a sum of its bytes, memory that is gone by a weak reference: at the next call of anybody.
"""

from __future__ import annotations

import mmap
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.lifetimes import Lifetimes, release_kept
from penstock.client.calls.background_thread import in_background
from penstock.client.device.trouble import out_of_memory
from penstock.client.testing.misuse import Misuse, Site, site
from penstock.client.testing.schedules import Random, Schedule
from penstock.wire.frame import crc32c

NOT_WRITTEN = 0xA5
"""What memory of the device holds before its copy is over."""

FREED = 0x5A
"""What it holds when its last view is gone and nothing uses it."""

CALLED_BY_OTHERS = frozenset({"query", "unregister"})
"""Calls that any Loader of the process makes on behalf of one that is gone: what is found wrong
there is nothing of its own, so the next other call raises it once more."""

Clock = dict[int, int]
"""By the number of a stream: how much of its work is done before."""


class SimulatedStream:
    """A queue of work. `Simulator.stream` makes them.

    Attributes:
        simulator: Whose it is.
        name: For people.
        site: Where it was made.
    """

    def __init__(self, simulator: Simulator, number: int, name: str, is_host: bool) -> None:
        self.simulator, self.number, self.name = simulator, number, name
        self.site = site(f"stream {name}")
        self.is_host = is_host
        self.work: deque[_Work] = deque()
        self.queued = 0  # pieces of work, ever
        self.clock: Clock = {}  # what the next piece of work comes after

    def __repr__(self) -> str:
        return f"<stream {self.name}>"


class SimulatedEvent:
    """A point in a stream.

    Attributes:
        simulator: Whose it is.
        site: Where it was recorded.
        is_over: Whether it has come to pass.
    """

    def __init__(self, stream: SimulatedStream, clock: Clock, where: Site) -> None:
        self.simulator, self.site, self.clock = stream.simulator, where, clock
        self.is_over = False


class _Work:
    """A piece of work: a copy, a kernel, an event that is recorded, or one that is waited for."""

    def __init__(self, stream: SimulatedStream, where: Site, do: Callable[[], None] | None) -> None:
        self.stream, self.number, self.site, self.do = stream, stream.queued, where, do
        self.clock: Clock = dict(stream.clock)
        self.event: SimulatedEvent | None = None
        self.is_record = False

    @property
    def is_queued(self) -> bool:
        queue = self.stream.work  # in order
        return bool(queue) and queue[0].number <= self.number

    def is_before(self, clock: Clock) -> bool:
        return clock.get(self.stream.number, -1) >= self.number


class _HostSpan:
    """Memory of the host that the device may read."""

    def __init__(self, address: int, nbytes: int, storage: Any, where: Site) -> None:
        self.address, self.nbytes, self.storage, self.site = address, nbytes, storage, where
        self.is_gone = False


class _DeviceBlock:
    """Memory of the device."""

    def __init__(self, nbytes: int, stream: SimulatedStream, where: Site) -> None:
        self.storage = bytearray([NOT_WRITTEN]) * max(1, nbytes)
        self.nbytes, self.stream, self.site = nbytes, stream, where
        self.used: list[tuple[_Work, bool]] = []  # and whether it writes
        self.kept_for: set[int] = set()  # streams that the memory outlives its views for

    def bytes(self) -> NDArray[np.uint8]:
        return np.ndarray((self.nbytes,), np.uint8, self.storage)


class _Reading:
    """A copy that reads a source, until the host knows that its event has come to pass."""

    def __init__(self, work: _Work, span: _HostSpan, source: NDArray[np.uint8]) -> None:
        self.work, self.span, self.crc = work, span, crc32c(source)
        self.source = source


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
        self._schedule = schedule or Random(0)
        self._memory_bytes, self._index, self._goes_on_at = memory_bytes, index, goes_on_at
        self.counts: Counter[str] = Counter()
        self.loops: set[int] = set()
        self.before: Callable[[str], None] | None = None
        self.after: Callable[[str], None] | None = None
        self._lock = threading.RLock()
        self._streams: list[SimulatedStream] = []
        self._host: Clock = {}  # what the host knows to be done
        self._readings: list[_Reading] = []
        self._spans: Lifetimes[_HostSpan] = Lifetimes()
        self._registered: dict[int, _HostSpan] = {}
        self._blocks: Lifetimes[_DeviceBlock] = Lifetimes()
        self._by_address: dict[int, _DeviceBlock] = {}
        self._retired: list[_DeviceBlock] = []
        self._used_bytes = 0
        self._last: Site | None = None
        self._unraised: Misuse | None = None
        self._is_abandoned = False

    # --- the port ---

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory that copies may read; see `Port.pin`."""
        with self._call("pin") as where:
            storage = mmap.mmap(-1, max(1, nbytes))
            array: NDArray[np.uint8] = np.ndarray((nbytes,), np.uint8, storage)
            self._spans.watch(array, _HostSpan(_address(array), nbytes, storage, where))
            return array

    def register(self, array: NDArray[np.uint8]) -> None:
        """Let copies read memory of others; see `Port.register`."""
        with self._call("register") as where:
            address = _address(array)
            if address % mmap.PAGESIZE or address in self._registered:
                known = self._registered.get(address)
                kind = "registered memory is whole pages, and registered once"
                raise Misuse(kind, where if known is None else known.site, where)
            self._registered[address] = _HostSpan(address, array.nbytes, array, where)

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Let copies read it no more; see `Port.unregister`."""
        with self._call("unregister") as where:
            span = self._registered.pop(_address(array), None)
            if span is None:
                raise Misuse("what is unregistered was registered", where, where)
            self._end_span(span, where)

    def allocate(self, nbytes: int, stream: SimulatedStream) -> NDArray[np.uint8]:
        """Return memory of the device as an array, which the host must not read by itself.

        See `Port.allocate`.
        """
        with self._call("allocate", stream) as where:
            if self._used_bytes + nbytes > self._memory_bytes:
                free = self._memory_bytes - self._used_bytes
                raise out_of_memory(self.name, nbytes, free, self._memory_bytes)
            block = _DeviceBlock(nbytes, stream, where)
            self._used_bytes += nbytes
            memory = block.bytes()
            self._blocks.watch(memory, block)
            self._by_address[id(block.storage)] = block
            return memory

    def copy(
        self,
        memory: NDArray[np.uint8],
        source: NDArray[np.uint8],
        nbytes: int,
        stream: SimulatedStream,
    ) -> None:
        """Queue a copy; see `Port.copy`."""
        with self._call("copy", stream) as where:
            block, start = self._block(memory, where), _address(source)
            span = self._span(start, nbytes, where)
            raw = np.ndarray((nbytes,), np.uint8, span.storage, start - span.address)

            def do() -> None:
                block.bytes()[:nbytes] = raw
                self.counts["copied"] += 1

            work = self._queue(stream, where, do)
            self._readings.append(_Reading(work, span, raw))
            self._use(block, work, writes=True)

    def record(self, stream: SimulatedStream) -> SimulatedEvent:
        """Return the end of what is queued; see `Port.record`."""
        with self._call("record", stream) as where:
            work = self._queue(stream, where, None)
            event = SimulatedEvent(stream, dict(stream.clock), where)
            work.event, work.is_record = event, True
            return event

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
                    self._block(kept, where).kept_for.add(stream.number)
                if stream.is_host:
                    self._until(event)
                _join(stream.clock, event.clock)
                self._queue(stream, where, None).event = event

        self._uninterrupted(wait)

    def query(self, event: SimulatedEvent) -> bool:
        """Tell whether an event has come to pass; see `Port.query`."""
        if self._is_abandoned:
            return True
        with self._call("query", event):
            if event.is_over:
                _join(self._host, event.clock)
            return event.is_over

    def synchronize(self, event: SimulatedEvent) -> None:
        """Wait until an event has come to pass; see `Port.synchronize`."""
        with self._call("synchronize", event) as where:
            if threading.get_ident() in self.loops:
                raise Misuse("the loop's thread waits for an event", event.site, where)
            self._until(event)

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
                for an event there takes until it has come to pass.
        """
        with self._lock:
            found = SimulatedStream(self, len(self._streams), name, is_host)
            self._streams.append(found)
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
                read = [self._block(memory, where) for memory in reads]
                written = [self._block(memory, where) for memory in writes]
                blocks = [*read, *written]
                work = self._queue(stream, where, lambda: kernel(*(b.bytes() for b in blocks)))
                for block in read:
                    self._use(block, work, writes=False)
                for block in written:
                    self._use(block, work, writes=True)
                after = self._queue(stream, where, None)
                event = SimulatedEvent(stream, dict(stream.clock), where)
                after.event, after.is_record = event, True
                return event

        found: SimulatedEvent = self._uninterrupted(launch)
        return found

    def finish(self, event: SimulatedEvent) -> None:
        """Wait for an event as a loop does that asks for values on the host."""

        def finish() -> None:
            with self._call("finish", event):
                self._until(event)

        self._uninterrupted(finish)

    def drain(self) -> None:
        """Do everything that is queued."""
        with self._lock:
            self._run_marks()
            while ready := self._ready():
                self._do(ready[self._schedule.choose(len(ready), must=True)])

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
            self._look(where)
            left = [found.site for found in self._spans.alive()]
            left += [found.site for found in self._registered.values()]
            left += [found.site for found in self._blocks.alive()]
            if left:
                raise Misuse(f"{len(left)} handles are left", left[0], where)
            for stream in self._streams:
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
                    if handle.simulator is not self:
                        raise Misuse("a handle of another device", handle.site, where)
                self.counts[name] += 1
                self._look(where)
                yield where
                if self._goes_on_at is None or name in self._goes_on_at:
                    self._progress()
                self._run_marks()
            except Misuse as misuse:
                if name in CALLED_BY_OTHERS and self._unraised is None:
                    self._unraised = misuse.again()
                raise
            self._last = where
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

    def _queue(self, stream: SimulatedStream, where: Site, do: Callable[[], None] | None) -> _Work:
        _join(stream.clock, self._host)
        work = _Work(stream, where, do)
        stream.queued += 1
        stream.clock[stream.number] = work.number
        stream.work.append(work)
        return work

    def _ready(self) -> list[SimulatedStream]:
        return [stream for stream in self._streams if stream.work and stream.work[0].do]

    def _run_marks(self) -> None:
        """Pass events that are next, and waits for those that have come to pass."""
        moved = True
        while moved:
            moved = False
            for stream in self._streams:
                while stream.work and stream.work[0].do is None:
                    event = stream.work[0].event
                    if event is not None and not stream.work[0].is_record and not event.is_over:
                        break
                    if event is not None:
                        event.is_over = True
                    stream.work.popleft()
                    moved = True

    def _progress(self) -> None:
        self._run_marks()
        while ready := self._ready():
            choice = self._schedule.choose(len(ready), must=False)
            if choice < 0:
                return
            self._do(ready[choice])

    def _do(self, stream: SimulatedStream) -> None:
        work = stream.work.popleft()
        do, work.do = work.do, None  # it may hold memory that it used
        assert do is not None
        do()
        self._run_marks()

    def _until(self, event: SimulatedEvent) -> None:
        self._run_marks()
        while not event.is_over:
            ready = self._ready()
            if not ready:
                raise Misuse("an event that nothing brings about", event.site, site("wait"))
            self._do(ready[self._schedule.choose(len(ready), must=True)])
        _join(self._host, event.clock)

    # --- what is wrong ---

    def _block(self, memory: NDArray[np.uint8], where: Site) -> _DeviceBlock:
        storage: Any = memory.base
        block = self._by_address.get(id(storage))
        if block is None or block.storage is not storage:
            raise Misuse("no memory of this device", where, where)
        return block

    def _span(self, address: int, nbytes: int, where: Site) -> _HostSpan:
        spans = [*self._spans.alive(), *self._registered.values()]
        for span in spans:
            if span.address <= address and address + nbytes <= span.address + span.nbytes:
                return span
        raise Misuse("a source that is not pinned, or not any more", where, where)

    def _use(self, block: _DeviceBlock, work: _Work, *, writes: bool) -> None:
        for other, wrote in block.used:
            if (wrote or writes) and other is not work and not other.is_before(work.clock):
                kind = "read before its copy" if not writes else "a second writer"
                raise Misuse(f"memory of the device: {kind}", other.site, work.site)
        if not writes and not any(wrote for _, wrote in block.used):
            raise Misuse("memory of the device: read before its copy", block.site, work.site)
        block.used.append((work, writes))

    def _look(self, where: Site) -> None:
        """Find out what has happened since the last call that was no call."""
        if self._is_abandoned:
            return
        for span in self._spans.take_ended():
            self._end_span(span, where)
        for reading in self._readings:
            is_known = reading.work.is_before(self._host)
            if not is_known and crc32c(reading.source) != reading.crc:
                reading.crc = crc32c(reading.source)  # taken once
                raise Misuse(
                    "the source of a copy was written", reading.work.site, where, self._last
                )
        self._readings = [r for r in self._readings if not r.work.is_before(self._host)]
        for block in self._blocks.take_ended():
            del self._by_address[id(block.storage)]
            self._retired.append(block)
            for work, _ in block.used:
                is_kept = work.stream is block.stream or work.stream.number in block.kept_for
                if not is_kept and not work.is_before(self._host):
                    raise Misuse(
                        "memory of the device: freed while another stream may use it",
                        work.site,
                        where,
                        self._last,
                    )
        for block in list(self._retired):
            if not any(work.is_queued for work, _ in block.used):
                self._retired.remove(block)
                self._used_bytes -= block.nbytes
                block.bytes()[:] = FREED

    def _end_span(self, span: _HostSpan, where: Site) -> None:
        span.is_gone = True
        for reading in self._readings:
            if reading.span is span and not reading.work.is_before(self._host):
                raise Misuse(
                    "the source of a copy was unpinned", reading.work.site, where, self._last
                )


def _address(array: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])


def _join(clock: Clock, other: Clock) -> None:
    for number, last in other.items():
        if clock.get(number, -1) < last:
            clock[number] = last


__all__ = ["FREED", "NOT_WRITTEN", "SimulatedEvent", "SimulatedStream", "Simulator"]
