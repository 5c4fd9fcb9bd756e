"""How fast a lane goes and how well it packs, past its start: batches after the pool was filled.

The first rows of a lane are no measure of the others: they are chosen from a pool that was just
filled, or that is still growing, and the first batch also pays for every import.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.server.pipeline.line import Line
from penstock.wire.errors import PastEnd

POOLS_PASSED = 3
"""A lane is past its start when it has drawn this many pools: the first fills it, with the second
every sample of the first has left (the oldest opens each row), the third is for a pool that grows.
"""

MAX_BATCHES, MAX_SECONDS = 64, 5.0
"""Enough batches for two digits; a job of slow batches is measured by fewer of them."""

MAX_PASSING_S = 20.0
"""Seconds for what comes before: a pool of many large items is not waited for, and said to be so.
"""


@dataclass
class Pace:
    """What was found out about a lane past its start.

    Attributes:
        past: The pool had been filled before; None where the batcher has none.
        batches: Batches that were made.
        seconds: What they took, from the source's bytes to the body, in one process.
        counts: Sums of their counts, padding batches of quarantine included.
    """

    past: bool | None = None
    batches: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def efficiency(self) -> float | None:
        """Return tokens / (tokens + padding tokens); None where the collator counts none."""
        tokens, padding = self.counts["tokens"], self.counts["padding_tokens"]
        if "padding_tokens" not in self.counts or tokens + padding == 0:
            return None
        return tokens / (tokens + padding)

    def per_second(self) -> dict[str, float]:
        """Return samples and, where they are counted, tokens per second of one process."""
        if not self.seconds:
            return {}
        return {
            name: self.counts[name] / self.seconds
            for name in ("tokens", "samples")
            if self.counts[name]
        }


def pace(line: Line, least: int, clock: Callable[[], float] = time.perf_counter) -> Pace:
    """Go on with a line past its start, and measure it.

    Args:
        line: A line; its next batches are made.
        least: Batches to make however long they take.
        clock: Seconds.

    Raises:
        PenstockError: What a server would stop with at one of these batches.
    """
    found = Pace()
    try:
        found.past = _pass_start(line, clock)
        begin = clock()
        while found.batches < MAX_BATCHES:
            made = line.make(line.advance())
            made.write(memoryview(bytearray(made.nbytes)))
            found.counts.update(made.counts)
            found.batches += 1
            found.seconds = clock() - begin
            if found.batches >= least and found.seconds > MAX_SECONDS:
                break
    except PastEnd:  # a finite lane: what there is will do
        pass
    return found


def _pass_start(line: Line, clock: Callable[[], float]) -> bool | None:
    """Plan batches that nobody makes until the pool is past its first fill.

    Returns:
        Whether the pool was filled in time; None if the batcher has no pool.
    """
    pool = getattr(line.planner.batcher, "pool_size", None)
    if not isinstance(pool, int):
        return None
    wanted = POOLS_PASSED * pool
    deadline = clock() + MAX_PASSING_S
    while line.planner.counters["drawn"] < wanted:
        if clock() > deadline:
            return False
        line.advance()
        line.planner.forget()
    return True


__all__ = ["MAX_BATCHES", "POOLS_PASSED", "Pace", "pace"]
