"""The meter of `check` and `size`: batches of lanes, made here as a worker makes them.

The first rows of a lane are not typical of the others: they are chosen from a pool that was just
filled, or that is still growing, and the first batch also pays for every import. So lanes are
measured past their start.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.usercode.held_bytes import held_bytes
from penstock.wire.errors import PastEnd

POOLS_PASSED = 3
"""A lane is past its start when it has drawn this many pools: the first fills it, with the second
every sample of the first has left (the oldest opens each row), the third is for a pool that grows.
"""

MAX_PASSING_S = 20.0
"""Seconds for that start: a pool of many large items is not waited for, and the output says so.
"""

RATES = ("tokens", "samples")
"""What rates are of, where it is counted."""

MAX_LANES = 16
"""Lanes of one reading group that are measured: they share the blocks that are decoded for them."""

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

    def take(self, other: Window) -> None:
        """Add what follows it."""
        self.seconds += other.seconds
        self.counts.update(other.counts)


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


def rate_of(windows: Sequence[tuple[float, int]]) -> Rate:
    """Return the rate of windows of (seconds, count); at least one, none of 0 seconds."""
    rates = sorted(count / seconds for seconds, count in windows)
    tenth = round(0.1 * (len(rates) - 1))
    total_s, total = (sum(column) for column in zip(*windows, strict=True))
    return Rate(statistics.median(rates), rates[tenth], rates[-1 - tenth], total / total_s)


@dataclass
class Metered:
    """What one process gave.

    Attributes:
        lanes: Lanes whose batches were made.
        windows: The batches, in the order in which they were made.
        batches: How many they are.
        counts: Sums of their counts, padding batches of quarantine included.
        seconds: What they took, from the source's bytes to the body.
        cpu_s: Processor time of that; more than `seconds` where roles have threads of their own.
        queued_s: How long of that it was ready to run, and other programs had the processors.
        planning_s: The part of `seconds` in which batches were planned.
        wire_bytes: Bodies and headers.
        body_bytes: Bodies.
        snapshot_bytes: The largest snapshot; 0 = the lanes need none.
        sample_bytes: Memory of a sample, in the mean; 0 = batches are made without samples.
    """

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

    def per_second(self) -> dict[str, float]:
        """Return samples and, where they are counted, tokens per second."""
        if not self.seconds:
            return {}
        return {name: self.counts[name] / self.seconds for name in RATES if self.counts[name]}

    def rate(self, unit: str) -> Rate:
        """Return how many of `tokens` or `samples` were made in a second."""
        return rate_of([(window.seconds, window.counts[unit]) for window in self.windows])

    def ranges(self, parts: int) -> dict[str, tuple[float, float]]:
        """Return the slowest and the fastest of as many parts; empty of too few windows."""
        each = len(self.windows) // parts
        if not each:
            return {}
        merged = [Window() for _ in range(parts)]
        for number, window in enumerate(self.windows[: each * parts]):
            merged[number // each].take(window)
        found: dict[str, tuple[float, float]] = {}
        for name in RATES:
            rates = [part.counts[name] / part.seconds for part in merged if part.seconds > 0]
            if self.counts[name] and rates:
                found[name] = (min(rates), max(rates))
        return found

    def planned_per_s(self, unit: str) -> float:
        """Return how many were planned in a second of planning: a lane is planned in order."""
        return self.counts[unit] / max(self.planning_s, 1e-9)  # a clock may stand still

    @property
    def efficiency(self) -> float | None:
        """Return tokens / (tokens + padding tokens); None if the collator counts none."""
        tokens, padding = self.counts["tokens"], self.counts["padding_tokens"]
        if "padding_tokens" not in self.counts or tokens + padding == 0:
            return None
        return tokens / (tokens + padding)


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


class Clocks(NamedTuple):
    """What time is measured by, in seconds.

    Attributes:
        wall: By the clock.
        cpu: Processor time of this process.
        queued: How long this thread was ready to run and did not.
    """

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    queued: Callable[[], float] = queued_s


REAL = Clocks()


class Meter:
    """Makes batches and adds up.

    Args:
        window_s: Seconds of a window; 0 = each batch is one.
        clocks: What time is measured by.
    """

    def __init__(self, window_s: float = 0.0, clocks: Clocks = REAL) -> None:
        self._window_s, self._clocks = window_s, clocks
        self._sizes: list[int] = []
        self._body = bytearray()  # pages that are in use already, as a worker's arena has them
        self.found = Metered()

    def make(self, line: Line) -> Counter[str] | None:
        """Make a batch and return its counts; None where the lane ends.

        Raises:
            PenstockError: What a server would stop with at this batch.
        """
        found, began = self.found, self._clocks.wall()
        try:
            plan = line.advance()
        except PastEnd:
            return None
        finally:
            found.planning_s += self._clocks.wall() - began
        if len(self._sizes) < MAX_SAMPLES:
            self._sizes += [held_bytes(sample) for sample in line.planner.samples.values()]
            found.sample_bytes = statistics.fmean(self._sizes) if self._sizes else 0.0
        made = line.make(plan)
        if len(self._body) < made.nbytes:
            self._body = bytearray(made.nbytes)
        header = made.write(memoryview(self._body)[: made.nbytes])
        counts = Counter(made.counts)
        found.batches += 1
        found.body_bytes += made.nbytes
        found.wire_bytes += made.nbytes + len(header)
        found.counts.update(counts)
        return counts

    def run(
        self, lines: Iterable[Line], enough: Callable[[Metered], bool], *, past_ends: bool = True
    ) -> bool:
        """Measure anew: make batches of lines in their order until it is enough.

        Args:
            lines: The line of each next batch.
            enough: Asked after each batch.
            past_ends: Go on where a lane ends, with what follows in `lines`.

        Returns:
            False where a lane ended, if it does not go on then.

        Raises:
            PenstockError: What a server would stop with at one of these batches.
        """
        found = self.found = Metered(sample_bytes=self.found.sample_bytes)
        last: dict[int, Line] = {}
        opened, wall = Window(), self._clocks.wall
        cpu_began, queued_began, began = self._clocks.cpu(), self._clocks.queued(), wall()
        window_began = began
        for line in lines:
            counts = self.make(line)
            if counts is None and not past_ends:
                return False
            now = wall()
            found.seconds = now - began
            opened.seconds = now - window_began
            if counts is not None:
                last[line.lane] = line
                opened.counts.update(counts)
            if opened.counts and opened.seconds >= self._window_s:
                found.windows.append(opened)
                opened, window_began = Window(), now
            if enough(found):
                break
        if opened.counts and not found.windows:
            found.windows.append(opened)
        elif found.windows:
            found.windows[-1].take(opened)
        found.lanes = len(last)
        found.cpu_s = self._clocks.cpu() - cpu_began
        found.queued_s = self._clocks.queued() - queued_began
        found.snapshot_bytes = max(map(_snapshot_bytes, last.values()), default=0)
        return True


def _snapshot_bytes(line: Line) -> int:
    """Return the bytes of what the store keeps of a lane; 0 = arithmetic leads anywhere."""
    return 0 if line.planner.can_seek() else len(line.planner.snapshot())


def to_their_ends(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines in turn, each until it gives no batch any more."""
    going = deque(lines)
    while going:
        line = going.popleft()
        before = line.offset
        yield line
        if line.offset > before:
            going.append(line)


def lanes_beside(job: Job, lane: int) -> list[int]:
    """Return a lane and those that one worker reads with it, because they share storage blocks."""
    group = next(lanes for lanes in job.lanes_together() if lane in lanes)
    return [lane, *(other for other in group if other != lane)][:MAX_LANES]


def pass_start(
    lines: Sequence[Line], clock: Callable[[], float] = time.perf_counter
) -> bool | None:
    """Plan batches without making them, until every pool was filled once.

    Returns:
        Whether the pools were filled in time; None if the batcher has none.

    Raises:
        PenstockError: What a server would stop with at one of these batches.
    """
    deadline = clock() + MAX_PASSING_S
    filled: bool | None = None
    for line in lines:
        parts = line.job.lane_roles(line.lane)
        # What is planned comes out of no pool: its first rows are like all others.
        drawn = [part.roles for part in parts if part.roles.planned is None]
        pool = sum(roles.batcher_facts.pool or 0 for roles in drawn)
        if not pool:
            continue
        filled = True
        while line.planner.drawn < POOLS_PASSED * pool:
            if clock() > deadline:
                return False
            try:
                line.advance()
            except PastEnd:
                break
            line.planner.forget()
    return filled
