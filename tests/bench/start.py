"""From `penstockd serve` to the first batch, over a corpus of 10,000 Parquet files.

Once with an empty cache of hashes, as on the first start, and once with what that start has left;
with 1, 2 and 4 workers. The clock runs from the start of the server's process to the first batch in
a client that has been imported before; CPU is that of the server and all of its workers.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import interleaved, serving, table, write_job

from penstock.client import Loader
from penstock.server.sources.catalog import SETTLED_S

FILES, ROWS, FILES_PER_FOLDER = 10_000, 8, 1000
ROUNDS = 6
WORKERS = (1, 2, 4)


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "data")
        job = {"source": {"type": "parquet", "files": "data"}, "batch_size": 4}
        job_file = write_job(folder, {"files": job})
        ways: dict[str, Callable[[], dict[str, float]]] = {}
        for workers in WORKERS:
            cache = folder / f"cache-{workers}"
            # In this order: what the first start of a round leaves, the second one finds.
            ways[f"{workers}, first"] = partial(first_batch, job_file, workers, cache, empty=True)
            ways[f"{workers}, cached"] = partial(first_batch, job_file, workers, cache, empty=False)
        results = interleaved(ROUNDS, ways)
    rows = []
    for way, rounds in results.items():
        wall = sorted(one["wall_s"] for one in rounds)
        cpu = statistics.median(one["cpu_s"] for one in rounds)
        rows.append(
            (
                way,
                f"{statistics.median(wall):.2f}",
                f"{wall[0]:.2f} to {wall[-1]:.2f}",
                f"{cpu:.2f}",
            )
        )
    table(
        f"Server start to first batch, {FILES:,} files of {ROWS} rows (goal: cached, under 2 s)",
        ("workers, hashes", "median s", "range", "CPU s"),
        rows,
    )


def write_corpus(folder: Path) -> None:
    """Write the files, and wait: what changed a moment ago is not cached."""
    for number in range(FILES):
        path = folder / f"{number // FILES_PER_FOLDER:02d}" / f"{number:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = [np.arange(40, dtype=np.int32) + row for row in range(ROWS)]
        first = number * ROWS
        pq.write_table(pa.table({"id": list(range(first, first + ROWS)), "input_ids": ids}), path)
    time.sleep(SETTLED_S + 1)


def first_batch(job_file: Path, workers: int, cache: Path, *, empty: bool) -> dict[str, float]:
    """Start a server, read one batch, and end it."""
    if empty:
        for kept in cache.glob("*"):
            kept.unlink()
    os.environ["PENSTOCK_HASH_CACHE"] = str(cache)
    before = children_cpu_s()
    start = time.perf_counter()
    try:
        with (
            serving(job_file, "--workers", str(workers)) as (address, _),
            Loader(address, "files", rank=0, world_size=1) as loader,
        ):
            next(iter(loader))
            took = time.perf_counter() - start
    finally:
        del os.environ["PENSTOCK_HASH_CACHE"]
    return {"wall_s": took, "cpu_s": children_cpu_s() - before}


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    run()
