"""The first rows of packed lanes: how full they are, and what is drawn for them (decision 0036).

The lanes draw the documents of the standard library in the order of a real job, and the real
batcher packs their lengths; nothing is collated. What a planner looks ahead is not in the count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packing import CAPACITY, document_tokens
from support import corpus, table, write_job
from text import job

from penstock.server.core.refs import Row, SampleRef
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.roles.batchers import best_fit_batcher as best_fit

LANES, POOL, SEEDS = 48, 64, 4
SPANS = ((1, 1), (2, 5), (6, 20), (21, 100), (301, 600))
"""Rows of a lane, the first and the last, from 1."""

POOLS = {
    "64 at once": (64, 64, 1),
    "from 4, after 4 rows": (4, 4, 4),
    "from 4, each row to 8, then 4": (4, 8, 4),
    "from 4, each row to 8, then 8": (4, 8, 8),
    "from 6, each row to 10, then 4": (6, 10, 4),
}
"""How many samples a lane's pool begins with, up to how many it grows after each row, and after how
many rows it then holds one more."""


def run() -> None:
    """Print the table."""
    data = corpus()
    lengths = [int(length) for length in document_tokens(data)]
    with tempfile.TemporaryDirectory() as folder:
        texts = {f"text-{seed}": {**job(data, seed), "lanes": LANES} for seed in range(SEEDS)}
        jobs = load(str(write_job(Path(folder), texts))).jobs
        rows = [row for name in POOLS for row in _rows(name, list(jobs.values()), lengths)]
    table(
        f"The first rows of {LANES} lanes in {SEEDS} orders, from pools that grow to {POOL}: "
        f"{len(lengths):,} documents of {sum(lengths):,} tokens, rows of {CAPACITY:,}",
        ("pool", "rows of a lane", "full", "drawn / given so far", "of one document"),
        rows,
    )


def _rows(name: str, jobs: Sequence[Job], lengths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    found = [_Lane(job, lane, lengths, POOLS[name]) for job in jobs for lane in range(LANES)]
    for first, last in SPANS:
        given = [row for lane in found for row in lane.rows[first - 1 : last]]
        tokens = sum(ref.size for row in given for ref in row)
        so_far = sum(ref.size for lane in found for row in lane.rows[:last] for ref in row)
        drawn = sum(lane.drawn[last - 1] for lane in found)
        yield (
            name,
            f"{first} to {last}",
            f"{tokens / len(given) / CAPACITY:.3f}",
            f"{drawn / so_far:.2f}",
            f"{sum(len(row) == 1 for row in given) / len(given):.2f}",
        )


class _Lane:
    """A lane's rows, and for each the tokens that were drawn until it was finished."""

    def __init__(
        self, loaded: Job, lane: int, lengths: Sequence[int], growth: tuple[int, int, int]
    ) -> None:
        before = best_fit.FIRST_POOL, best_fit.QUICK_POOL, best_fit.ROWS_PER_SAMPLE
        best_fit.FIRST_POOL, best_fit.QUICK_POOL, best_fit.ROWS_PER_SAMPLE = growth
        try:
            self._fill(loaded, lane, lengths)
        finally:
            best_fit.FIRST_POOL, best_fit.QUICK_POOL, best_fit.ROWS_PER_SAMPLE = before

    def _fill(self, loaded: Job, lane: int, lengths: Sequence[int]) -> None:
        batcher = best_fit.BestFitPackingBatcher(CAPACITY, POOL)
        self.rows: list[Row] = []
        self.drawn: list[int] = []
        drawn = k = 0
        while len(self.rows) < SPANS[-1][1]:
            item = loaded.role_sets[0].distributor.draw(lane, LANES, k)
            assert item is not None, "the job is endless"
            k += 1
            drawn += lengths[item.index]
            for [row] in batcher.add(SampleRef(item, size=lengths[item.index])):
                self.rows.append(row)
                self.drawn.append(drawn)


if __name__ == "__main__":
    run()
