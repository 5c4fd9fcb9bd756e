"""From `penstockd serve` to the first batch, over a corpus of 10,000 Parquet files.

Once with an empty cache of hashes, as on the first start, and once with what that start has left;
with 1, 2 and 4 workers. The clock runs from the start of the server's process to the first batch in
a client that has been imported before; CPU is that of the server and all of its workers. Before
that what a start takes over small corpora (`first_batch.py`).
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

import first_batch
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import interleaved, median, serving, spread, table, write_job

from penstock.client import Loader
from penstock.server.files.catalog import SETTLED_S

FILES, ROWS, FILES_PER_FOLDER = 10_000, 8, 1000
WORKERS = (1, 2, 4)


def run() -> None:
    """Print the tables."""
    first_batch.run()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "data")
        job = {"source": {"type": "parquet", "files": "data"}, "batch_size": 4}
        job_file = write_job(folder, {"files": job})
        results = interleaved(
            {str(workers): partial(twice, job_file, workers) for workers in WORKERS}
        )
    rows = [
        (
            f"{workers} workers, {what}",
            f"{median(rounds, f'{key}_s'):.2f}",
            spread(rounds, f"{key}_s", ".2f"),
            f"{median(rounds, f'{key}_cpu_s'):.2f}",
        )
        for workers, rounds in results.items()
        for key, what in (("first", "nothing is cached"), ("cached", "hashes are cached"))
    ]
    table(
        f"Server start to first batch, {FILES:,} files of {ROWS} rows (goal: cached, under 2 s)",
        ("", "median s", "range", "CPU s"),
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


def twice(job_file: Path, workers: int) -> dict[str, float]:
    """Start a server with an empty cache, and again with what that start has left."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PENSTOCK_HASH_CACHE"] = cache
        try:
            first, first_cpu = served(job_file, workers)
            cached, cached_cpu = served(job_file, workers)
        finally:
            del os.environ["PENSTOCK_HASH_CACHE"]
    return {
        "first_s": first,
        "first_cpu_s": first_cpu,
        "cached_s": cached,
        "cached_cpu_s": cached_cpu,
    }


def served(job_file: Path, workers: int) -> tuple[float, float]:
    """Start a server, read one batch, and end it; return the seconds to it, and the CPU's."""
    before = children_cpu_s()
    start = time.perf_counter()
    with (
        serving(job_file, "--workers", str(workers)) as (address, _),
        Loader(address, "files", rank=0, world_size=1) as loader,
    ):
        next(iter(loader))
        took = time.perf_counter() - start
    return took, children_cpu_s() - before


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    run()
