"""What an item costs in a batch of 64 and in one of 16,384: planned, made and written, one core.

The items cost next to nothing, so what is measured is penstock's own work for each of them. It must
not depend on the size of the batch that they are in.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

from support import HERE, ROUNDS, interleaved, median, table

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources import ItemsSource

SIZES = (64, 256, 1024, 4096, 16_384)
ITEMS = 16_384
"""Items of every row of a round: whole batches of each size."""


def run() -> None:
    """Print CPU microseconds an item by the size of the batch, for three processors."""
    sys.path.insert(0, str(HERE))
    source = ItemsSource([{"n": number} for number in range(2 * ITEMS)])
    ways: dict[str, dict[str, Any]] = {
        "identity": {},
        "function:": {"processor": FunctionProcessor(f"{HERE / 'cheap.py'}:number")},
        "function:, draws nothing": {
            "processor": FunctionProcessor(f"{HERE / 'cheap.py'}:number_without_drawing")
        },
    }
    jobs = {
        (name, size): Job(source, batch_size=size, lanes=1, **roles)
        for name, roles in ways.items()
        for size in SIZES
    }
    results = interleaved({str(key): _way(job) for key, job in jobs.items()})
    rows = []
    for name in ways:
        medians = [median(results[str((name, size))], "us") for size in SIZES]
        rows.append([name, *(f"{us:.1f}" for us in medians), f"{max(medians) / min(medians):.2f}"])
    table(
        f"CPU us an item, by batch size: median of {ROUNDS} rounds of {ITEMS:,} items (goal: "
        "max/min at most 1.2; `function:` at most 15 us above items as they are)",
        ["", *(f"{size:,}" for size in SIZES), "max/min"],
        rows,
    )


def _way(job: Job) -> Any:
    line = Line(job, 0)
    size = job.role_sets[0].batcher.batch_size  # type: ignore[attr-defined]  # they are all simple

    def way() -> dict[str, float]:
        gc.collect()
        start = time.process_time()
        for _ in range(ITEMS // size):
            made = line.make(line.advance())
            made.write(memoryview(bytearray(made.nbytes)))
        return {"us": (time.process_time() - start) / ITEMS * 1e6}

    return way


if __name__ == "__main__":
    run()
