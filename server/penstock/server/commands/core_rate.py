"""What one core gives of a job: batches made for some seconds, as a worker makes them.

`penstockd check` asks whether a job is right and says a rate beside it; here the rate is what is
asked for, so it is measured longer, in windows whose spread is told, and with what a run of many
ranks depends on: how fast one lane can be planned, and how large batches and snapshots are.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

from penstock.server.commands.pace import lanes_beside, pass_start
from penstock.server.commands.progress import Say, silent
from penstock.server.commands.purity import first_lanes
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.line import Line
from penstock.server.usercode.held_bytes import held_bytes
from penstock.wire.errors import PastEnd

WINDOWS = 20
"""Windows that the time is cut into: two are the slowest tenth of them, and two the fastest."""

MAX_SAMPLES = 64
"""Samples whose size is looked at: enough for a mean of two digits."""


@dataclass
class Window:
    """Some batches, one after another.

    Attributes:
        seconds: What they took.
        counts: Sums of their counts.
    """

    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


class Rate(NamedTuple):
    """A rate per second, and how far it varies.

    Attributes:
        median: Of the windows.
        low: What nine windows of ten exceed.
        high: What one window of ten exceeds.
        mean: Of the whole time.
    """

    median: float
    low: float
    high: float
    mean: float

    @property
    def safe(self) -> float:
        """Return what may be relied on: the mean, where rare windows are much slower."""
        return min(self.median, self.mean)


@dataclass
class CoreRate:
    """What one process gave.

    Attributes:
        left_out_s: What came before, and does not count: imports, pools that are filled.
        filled: The pools were full when the measurement began; None if the batcher has none.
        whole_lanes: Lanes ended within the time, so they are measured from their beginning to
            their end, again and again.
        lanes: Lanes whose batches were made.
        windows: The batches, in the order in which they were made; one at least.
        batches: How many they are.
        counts: Sums of their counts.
        seconds: What they took.
        cpu_s: Processor time of that; more than `seconds` where roles have threads of their own.
        queued_s: How long of that it was ready to run, and other programs had the processors.
        planning_s: The part of `seconds` in which batches were planned.
        wire_bytes: Bodies and headers.
        body_bytes: Bodies.
        snapshot_bytes: The largest snapshot; 0 = the lanes need none.
        sample_bytes: Memory of a sample, in the mean; 0 = batches are made without samples.
    """

    left_out_s: float = 0.0
    filled: bool | None = None
    whole_lanes: bool = False
    lanes: int = 0
    windows: list[Window] = field(default_factory=list)
    batches: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    planning_s: float = 0.0
    wire_bytes: int = 0
    body_bytes: int = 0
    snapshot_bytes: int = 0
    sample_bytes: float = 0.0

    def rate(self, unit: str) -> Rate:
        """Return how many of `tokens` or `samples` were made in a second."""
        return rate_of([(window.seconds, window.counts[unit]) for window in self.windows])

    def planned_per_s(self, unit: str) -> float:
        """Return how many were planned in a second of planning: a lane is planned in order."""
        return self.counts[unit] / max(self.planning_s, 1e-9)  # a clock may stand still


def rate_of(windows: Sequence[tuple[float, int]]) -> Rate:
    """Return the rate of windows of (seconds, count); at least one, none of 0 seconds."""
    rates = sorted(count / seconds for seconds, count in windows)
    tenth = round(0.1 * (len(rates) - 1))
    total_s, total = (sum(column) for column in zip(*windows, strict=True))
    return Rate(statistics.median(rates), rates[tenth], rates[-1 - tenth], total / total_s)


def queued_s() -> float:
    """Return how many seconds this thread was ready to run while others had the processors.

    The second number of `/proc/thread-self/schedstat`, in nanoseconds; 0 where the kernel tells
    none. A thread that waits for a disk or a network is not ready to run, and does not count.
    """
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def measure_core(
    job: Job,
    seconds: float,
    say: Say = silent,
    clock: Callable[[], float] = time.perf_counter,
    cpu: Callable[[], float] = time.process_time,
    queued: Callable[[], float] = queued_s,
) -> CoreRate:
    """Make batches of a job in this process, and measure.

    Of each set of roles the lanes that a worker reads together take part, past their start. Where
    these end within the time, all lanes are measured, from beginning to end.

    Args:
        job: The job.
        seconds: How long.
        say: Told how far it is.
        clock: Seconds.
        cpu: Seconds of processor time of this process.
        queued: Seconds that this thread was ready to run and did not.

    Raises:
        InvalidJob: The job has no batch.
        PenstockError: What a server would stop with at one of these batches.
    """
    begin = clock()
    say(f"job {job.name}: opening its source, and filling pools")
    sets = [_open(job, lanes_beside(job, lane)) for lane in first_lanes(job)]
    lines = [line for of_set in sets for line in of_set]
    filled = pass_start(lines, clock)
    meter = _Meter(job, seconds, say, clock, cpu, queued)
    for of_set in sets:
        meter.make(of_set[0])  # imports and first calls
    left_out_s = clock() - begin
    meter.begin()
    if not meter.run(_in_turn(job, sets)):
        meter.begin()
        meter.found.whole_lanes = True
        meter.run(_whole_lanes(job))
    found = meter.end()
    if not found.batches:
        order = KnownOrder(job)
        order.count()
        job.check_not_empty(order.numbering)
    found.left_out_s, found.filled = left_out_s, filled
    return found


def _open(job: Job, lanes: Sequence[int]) -> list[Line]:
    items = Items(job)
    return [Line(job, lane, items) for lane in lanes]


def _in_turn(job: Job, sets: Sequence[Sequence[Line]]) -> Iterator[Line]:
    """Yield lines without end: of each set in proportion to its share, its own in turn.

    Where each lane has batches of all sets there is one such sequence, and shares are kept there.
    """
    shares = [1.0]
    if len(sets) > 1:
        of_roles = list(job.shares().values())
        shares = [of_roles[job.lane_roles(lines[0].lane)[0].roles.number] for lines in sets]
    turns = [cycle(of_set) for of_set in sets]
    given = [0] * len(sets)
    while True:
        number = min(range(len(sets)), key=lambda each: (given[each] + 1) / shares[each])
        given[number] += 1
        yield next(turns[number])


def _whole_lanes(job: Job) -> Iterator[Line]:
    """Yield lines to their ends, those that a worker has together in turn; then all again.

    Ends where none of them has a batch.
    """
    made = True
    while made:
        made = False
        for lanes in job.lanes_together():
            lines = _open(job, lanes)
            while lines:
                line = lines.pop(0)
                before = line.offset
                yield line
                if line.offset > before:
                    made = True
                    lines.append(line)


class _Meter:
    """Makes batches and adds up."""

    def __init__(
        self,
        job: Job,
        seconds: float,
        say: Say,
        clock: Callable[[], float],
        cpu: Callable[[], float],
        queued: Callable[[], float],
    ) -> None:
        self._job, self._seconds, self._say = job, seconds, say
        self._clock, self._cpu, self._queued = clock, cpu, queued
        self._sizes: list[int] = []
        self._body = bytearray()  # pages that are in use already, as a worker's arena has them
        self.begin()

    def begin(self) -> None:
        """Forget what was measured."""
        self.found = CoreRate()
        self._lanes: set[int] = set()
        self._open = Window()

    def make(self, line: Line) -> bool:
        """Make a batch; False where the lane ends."""
        began = self._clock()
        try:
            plan = line.advance()
        except PastEnd:
            self.found.planning_s += self._clock() - began
            return False
        self.found.planning_s += self._clock() - began
        if len(self._sizes) < MAX_SAMPLES:
            self._sizes += [held_bytes(sample) for sample in line.planner.samples.values()]
        made = line.make(plan)
        if len(self._body) < made.nbytes:
            self._body = bytearray(made.nbytes)
        header = made.write(memoryview(self._body)[: made.nbytes])
        self.found.batches += 1
        self.found.body_bytes += made.nbytes
        self.found.wire_bytes += made.nbytes + len(header)
        self.found.counts.update(made.counts)
        self._open.counts.update(made.counts)
        self._lanes.add(line.lane)
        return True

    def run(self, lines: Iterator[Line]) -> bool:
        """Measure for the time that was asked for; False where a lane ends before, if not whole."""
        found, windows = self.found, self.found.windows
        last: dict[int, Line] = {}
        cpu_began, queued_began, began = self._cpu(), self._queued(), self._clock()
        window_began = now = began
        for line in lines:
            going = self.make(line)
            last[line.lane] = line
            now = self._clock()
            if not (going or found.whole_lanes):
                return False
            if now - window_began >= self._seconds / WINDOWS and self._open.counts:
                windows.append(self._close(now - window_began))
                window_began = now
                done = f"{now - began:.0f} of {self._seconds:.0f} s"
                self._say(f"job {self._job.name}: batches on one core, {done}")
            if now - began >= self._seconds:
                break
        if self._open.counts:
            rest = self._close(now - window_began)
            if windows:
                windows[-1].seconds += rest.seconds
                windows[-1].counts.update(rest.counts)
            else:
                windows.append(rest)
        found.seconds, found.cpu_s = now - began, self._cpu() - cpu_began
        found.queued_s = self._queued() - queued_began
        found.snapshot_bytes = max(map(_snapshot_bytes, last.values()), default=0)
        return True

    def _close(self, seconds: float) -> Window:
        closed, self._open = self._open, Window()
        closed.seconds = seconds
        return closed

    def end(self) -> CoreRate:
        """Return what was found."""
        self.found.lanes = len(self._lanes)
        if self._sizes:
            self.found.sample_bytes = statistics.fmean(self._sizes)
        return self.found


def _snapshot_bytes(line: Line) -> int:
    """Return the bytes of what the store keeps of a lane; 0 = arithmetic leads anywhere."""
    return 0 if line.planner.can_seek() else len(line.planner.snapshot())


__all__ = ["CoreRate", "Rate", "Window", "measure_core", "rate_of"]
