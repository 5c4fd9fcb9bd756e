"""Time to first batch when a stopped, cheap job resumes at positions 10^2, 10^4 and 10^5.

The job packs small documents through a pool, so its lines restart from snapshots. It is read to
each position, the server is killed with SIGKILL and started again, and the clock runs from the
moment the new server is ready to the first batch at that position.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from support import HERE, serving, table, write_job

from penstock.client import Loader

POSITIONS = (100, 10_000, 100_000)


def run() -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "lanes": 4,
            "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
            "function": f"{HERE / 'cheap.py'}:document",
            "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 64},
            "collator": {"type": "packed", "pad_to": 64},
        }
        job_file = write_job(Path(folder), {"cheap": job}, snapshot_seconds=1)
        read_to = 0
        for position in POSITIONS:
            with serving(job_file, "--workers", "2") as (address, process):
                with _loader(address, read_to) as loader:
                    for batch in loader:
                        if batch.position >= position:
                            break
                process.kill()
                process.wait()
            read_to = position
            with serving(job_file, "--workers", "2") as (address, _):
                start = time.perf_counter()
                with _loader(address, position) as loader:
                    batch = next(iter(loader))
                    took = time.perf_counter() - start
                assert batch.position == position
            rows.append((f"{position:,}", f"{took * 1000:.0f}"))
    table(
        "Time to first batch after a restart, from `ready` (goal: flat, under 1,000 ms)",
        ("position", "ms"),
        rows,
    )


def _loader(address: str, position: int) -> Loader:
    return Loader(
        address, "cheap", rank=0, world_size=1, batches_per_step=1, start=position, prefetch=64
    )


if __name__ == "__main__":
    run()
