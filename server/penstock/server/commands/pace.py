"""How fast lanes are and how well they pack after their start: batches after the pool was filled.

The first rows of a lane are not typical of the others: they are chosen from a pool that was just
filled, or that is still growing, and the first batch also pays for every import.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.wire.errors import PastEnd

POOLS_PASSED = 3
"""A lane is past its start when it has drawn this many pools: the first fills it, with the second
every sample of the first has left (the oldest opens each row), the third is for a pool that grows.
"""

MAX_BATCHES, MAX_SECONDS = 64, 5.0
"""Enough batches for two digits; a job of slow batches is measured by fewer of them."""

WINDOWS = 8
"""Windows whose rates are compared, to tell how noisy a measurement was."""

RATES = ("tokens", "samples")
"""What rates are of, where it is counted."""

MAX_PASSING_S = 20.0
"""Seconds for that start: a pool of many large items is not waited for, and the output says so.
"""

MAX_LANES = 16
"""Lanes of one reading group that are measured: they share the blocks that are decoded for them."""


@dataclass
class Pace:
    """The results for lanes past their start.

    Attributes:
        past: The pools had been filled before; None if the batcher has none.
        batches: Batches that were made.
        seconds: What they took, from the source's bytes to the body, in one process.
        counts: Sums of their counts, padding batches of quarantine included.
        marks: After each batch the seconds, and the sums of tokens and samples.
    """

    past: bool | None = None
    batches: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    marks: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def efficiency(self) -> float | None:
        """Return tokens / (tokens + padding tokens); None if the collator counts none."""
        tokens, padding = self.counts["tokens"], self.counts["padding_tokens"]
        if "padding_tokens" not in self.counts or tokens + padding == 0:
            return None
        return tokens / (tokens + padding)

    def per_second(self) -> dict[str, float]:
        """Return samples and, where they are counted, tokens per second of one process."""
        if not self.seconds:
            return {}
        return {name: self.counts[name] / self.seconds for name in RATES if self.counts[name]}

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the slowest and the fastest of some windows of batches; empty of too few."""
        each = len(self.marks) // WINDOWS
        if not each:
            return {}
        ends = [(0.0, 0, 0), *self.marks[each - 1 :: each]][: WINDOWS + 1]
        found: dict[str, tuple[float, float]] = {}
        for number, name in enumerate(RATES, start=1):
            rates = [
                (end[number] - begin[number]) / (end[0] - begin[0])
                for begin, end in pairwise(ends)
                if end[0] > begin[0]
            ]
            if self.counts[name] and rates:
                found[name] = (min(rates), max(rates))
        return found


def lanes_beside(job: Job, lane: int) -> list[int]:
    """Return a lane and those that one worker reads with it, because they share storage blocks."""
    group = next(lanes for lanes in job.lanes_together() if lane in lanes)
    return [lane, *(other for other in group if other != lane)][:MAX_LANES]


def pace(lines: Sequence[Line], least: int, clock: Callable[[], float] = time.perf_counter) -> Pace:
    """Go on with lines past their start, and measure them: batches of each in turn.

    Args:
        lines: Their next batches are made.
        least: Batches to make however long they take.
        clock: Seconds.

    Raises:
        PenstockError: What a server would stop with at one of these batches.
    """

    def enough(so_far: Pace) -> bool:
        slow = so_far.batches >= least and so_far.seconds > MAX_SECONDS
        return so_far.batches >= MAX_BATCHES or slow

    past = pass_start(lines, clock)
    return make_batches(lines, enough, clock, past)


def make_batches(
    lines: Sequence[Line],
    enough: Callable[[Pace], bool],
    clock: Callable[[], float] = time.perf_counter,
    past: bool | None = None,
) -> Pace:
    """Make batches of lines in turn until it is enough, or until they end.

    Args:
        lines: The lines.
        enough: Asked after each batch.
        clock: Seconds.
        past: What `pass_start` gave.

    Raises:
        PenstockError: What a server would stop with at one of these batches.
    """
    found = Pace(past)
    going = list(lines)
    begin = clock()
    while going:
        line = going.pop(0)
        try:
            made = line.make(line.advance())
        except PastEnd:  # a finite lane: its batches are enough
            continue
        made.write(memoryview(bytearray(made.nbytes)))
        going.append(line)
        found.counts.update(made.counts)
        found.batches += 1
        found.seconds = clock() - begin
        found.marks.append((found.seconds, found.counts["tokens"], found.counts["samples"]))
        if enough(found):
            break
    return found


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
        pool = sum(roles.batcher.chooses_from() or 0 for roles in drawn)
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


__all__ = [
    "MAX_BATCHES",
    "POOLS_PASSED",
    "Pace",
    "lanes_beside",
    "make_batches",
    "pace",
    "pass_start",
]
