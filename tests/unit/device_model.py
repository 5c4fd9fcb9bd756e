"""A feed and a training loop over a simulated device, and the same with one thing done wrong.

Whatever is asked of them in whatever order, each batch that the loop reads has its own bytes, and
the device finds no misuse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.client.bodies.buffers import BufferPool, Lease
from penstock.client.device.copier import Copier, Copy
from penstock.client.device.pinned import PinnedMemory
from penstock.client.device.port import DeviceMemory, End, Event, Port, Stream
from penstock.client.testing import Schedule, Simulator, Tape
from penstock.wire.errors import CannotPin

PINNED_BYTES = 24 << 10
"""Room for two of the largest bodies: sooner or later each body finds none."""


class Broken(BaseException):
    """What a signal handler raises, or a device that fails."""


class Read(NamedTuple):
    """What a kernel of the loop has read, once it has run."""

    number: int
    nbytes: int
    found: list[bytes]


class Device(NamedTuple):
    """A simulated device, and by which port it is used.

    Attributes:
        simulator: The device.
        port: Its calls.
        copies: The stream of copies.
        loop: The stream of the loop.
        launch: Queues a kernel that reads memory on the loop's stream.
        release: Has the port give back what was dropped.
    """

    simulator: Simulator
    port: Port
    copies: Stream
    loop: Stream
    launch: Callable[[Callable[..., None], DeviceMemory], object]
    release: Callable[[], None] = lambda: None


def itself(schedule: Schedule, goes_on_at: frozenset[str] | None) -> Device:
    """Return a device that is its own port."""
    simulator = Simulator(schedule, goes_on_at=goes_on_at)
    loop = simulator.stream("loop")
    return Device(
        simulator,
        simulator,
        simulator.stream("copies"),
        loop,
        lambda kernel, memory: simulator.launch(loop, kernel, [memory]),
    )


class Parts(NamedTuple):
    """What a run is made of."""

    copier: type[Copier] = Copier
    port: Callable[[Port], Port] = lambda port: port
    device: Callable[[Schedule, frozenset[str] | None], Device] = itself


class Run:
    """One Loader's device side: bodies land, are copied, received and read.

    Args:
        schedule: Of the device.
        parts: What it is made of.
        goes_on_at: As for `Simulator`.
    """

    def __init__(
        self, schedule: Schedule, parts: Parts, goes_on_at: frozenset[str] | None = None
    ) -> None:
        self._device = parts.device(schedule, goes_on_at)
        self.simulator = self._device.simulator
        port = parts.port(self._device.port)
        pinned = PinnedMemory(port, PINNED_BYTES)
        self._copier = parts.copier(port, self._device.copies, pinned)
        self._pools = {True: BufferPool(1, memory=pinned), False: BufferPool(1)}
        self._begun: deque[tuple[int, int, Copy]] = deque()
        self._kept: list[DeviceMemory] = []
        self._views: list[tuple[int, NDArray[np.uint8]]] = []
        self._reads: list[Read] = []
        self._number = 0
        self._armed: tuple[str, str] | None = None
        self.simulator.before = lambda call: self._fail("before", call)
        self.simulator.after = lambda call: self._fail("after", call)

    def _fail(self, when: str, call: str) -> None:
        if self._armed == (when, call):
            self._armed = None
            raise CannotPin("refused") if call == "pin" and when == "before" else Broken

    def fail(self, when: str, call: str) -> None:
        """Have the next call of a name raise, before it is made or after."""
        self._armed = (when, call)

    def begin(self, nbytes: int, is_pinned: bool, keeps_view: bool = False) -> None:
        """Have a body land, and begin its copy; a view of it on the host may be kept."""
        self._number += 1
        number = self._number % 251
        try:
            lease: Lease = self._pools[is_pinned].lease(nbytes)
            lease.array[:] = number
            copy = self._copier.copy(lease)
        except (Broken, CannotPin):
            return
        self._begun.append((number, nbytes, copy))
        if keeps_view:
            self._views.append((number, lease.array[: nbytes // 2]))

    def take(self, keeps: bool = False) -> None:
        """Have the loop receive the next batch and queue a kernel that reads it."""
        if not self._begun:
            return
        number, nbytes, copy = self._begun.popleft()
        read = Read(number, nbytes, [])
        try:
            self._copier.receive(copy, self._device.loop)
            self._device.launch(lambda data: read.found.append(data.tobytes()), copy.memory)
        except Broken:
            return
        self._reads.append(read)
        if keeps:
            self._kept.append(copy.memory)

    def leave(self) -> None:
        """Have the loop leave out what was copied ahead: it went elsewhere."""
        self._begun.clear()

    def release(self) -> None:
        """Drop what was kept."""
        self._kept.clear()
        self._views.clear()

    def close(self) -> None:
        """End it at any time, and check all that was read."""
        self._armed = self.simulator.before = self.simulator.after = None
        while self._views:
            number, view = self._views.pop()
            assert set(view.tolist()) <= {number}
            del view
        self.leave()
        self.release()
        del self._copier, self._pools
        self.simulator.drain()
        for read in self._reads:
            assert read.found == [bytes([read.number]) * read.nbytes]
        for _ in range(2):
            self._device.release()
            self.simulator.drain()
        self.simulator.close()


# --- any use of it ---

CALLS = ("pin", "allocate", "copy", "record", "wait", "query", "synchronize", "launch")

ACTIONS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, 9000), st.booleans(), st.booleans()),
    st.tuples(st.just("begin"), st.just(4096), st.booleans(), st.just(False)),
    st.tuples(st.just("take"), st.booleans()),
    st.tuples(st.just("take"), st.just(False)),
    st.tuples(st.just("leave")),
    st.tuples(st.just("release")),
    st.tuples(st.just("fail"), st.sampled_from(["before", "after"]), st.sampled_from(CALLS)),
)
RUNS = st.lists(ACTIONS, min_size=8, max_size=40)
TAPES = st.lists(st.integers(0, 5), max_size=80)


def search(examples: int, parts: Parts) -> None:
    """Try that many runs; the same ones each time."""

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(RUNS, TAPES)
    def check(actions: list[tuple[Any, ...]], tape: list[int]) -> None:
        run = Run(Tape(iter(tape)), parts)
        try:
            for name, *given_ in actions:
                getattr(run, name)(*given_)
            run.close()
        except AssertionError:
            run.simulator.abandon()
            raise

    check()


# --- one thing done wrong ---


class Before:
    """A port before another: all calls go on."""

    def __init__(self, port: Port) -> None:
        self.port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)


class NoRecord(Before):
    """Every copy has the event of the first."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._first: Event = None

    def record(self, stream: Stream) -> Event:
        """Return the first event."""
        if self._first is None:
            self._first = self.port.record(stream)
        return self._first


class NoWait(Before):
    """The loop's stream does not wait."""

    def wait(self, stream: Stream, event: Event, memory: DeviceMemory = None) -> None:
        """Do nothing."""


class RecordedBefore(Before):
    """An event is recorded before its copy."""

    def copy(
        self, memory: DeviceMemory, source: NDArray[np.uint8], nbytes: int, stream: Stream
    ) -> None:
        """Keep what is to be copied."""
        self._late = (memory, source, nbytes, stream)

    def record(self, stream: Stream) -> Event:
        """Record, then copy."""
        event = self.port.record(stream)
        self.port.copy(*self._late)
        del self._late
        return event


class NoRecordStream(Before):
    """Memory of the device is given back whatever the loop's stream does with it."""

    def wait(self, stream: Stream, event: Event, memory: DeviceMemory = None) -> None:
        """Wait, for order alone."""
        self.port.wait(stream, event)


class NoSynchronize(Before):
    """Two buffers are used for three copies."""

    def synchronize(self, event: Event) -> None:
        """Do nothing."""


def past(port: Port, stream: Stream, event: Event) -> End:
    """Return an end that comes to pass with an event."""
    end = End(port, stream)
    end.event = event
    return end


class OtherEvent(Copier):
    """A span is used again upon the event of another copy."""

    _other: Event = None

    def copy(self, lease: Lease) -> Copy:
        """Copy, and take the event of the copy before for the lease's."""
        found = super().copy(lease)
        if lease.events and self._other is not None:
            lease.events[:] = [past(self._port, self._stream, self._other)]
        self._other = found.event
        return found


class NoDoubt(Copier):
    """What a copy that failed may still read is used again at once."""

    def copy(self, lease: Lease) -> Copy:
        """Copy, and doubt nothing."""
        try:
            return super().copy(lease)
        except BaseException:
            lease.events.clear()
            raise


MUTANTS = {
    "no record": Parts(port=NoRecord),
    "no wait": Parts(port=NoWait),
    "an event recorded before its copy": Parts(port=RecordedBefore),
    "a span reused upon another event": Parts(copier=OtherEvent),
    "no record_stream": Parts(port=NoRecordStream),
    "two buffers for three copies": Parts(port=NoSynchronize),
    "no doubt of a copy that failed": Parts(copier=NoDoubt),
}

__all__ = ["MUTANTS", "Device", "Parts", "Run", "search"]
