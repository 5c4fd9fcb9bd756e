"""From the start of the server's process to the first batch, when a stopped job resumes.

The job is cheap and packs small documents through a pool, so its lines restart from snapshots. It
is read to each position and the server is killed with SIGKILL. Then it is started again, several
times, by `penstockd serve` as its users start it; the clock runs from the start of that process to
the first batch at that position in a reader that waits for it.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from support import HERE, Rounds, interleaved, median, serving, spread, table, write_job

from penstock.client import Loader

POSITIONS = (100, 10_000, 100_000)


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        files = {position: _read_to(position, Path(folder)) for position in POSITIONS}
        results = interleaved(
            {
                f"{position:,}": partial(_restart, files[position], position)
                for position in POSITIONS
            }
        )
    table(
        "Restart: start of the server's process to the first batch (goal: flat, under 2,000 ms)",
        ("position", "ms", "range", "of which until `ready`"),
        [
            (name, *_ms(rounds, "first_s"), f"{median(rounds, 'ready_s') * 1000:.0f}")
            for name, rounds in results.items()
        ],
    )


def _ms(rounds: Rounds, key: str) -> tuple[str, str]:
    in_ms = [{key: found[key] * 1000} for found in rounds]
    return f"{median(in_ms, key):,.0f}", spread(in_ms, key, ",.0f")


def _read_to(position: int, folder: Path) -> Path:
    """Read a job of its own up to `position`, kill its server; return the job file."""
    job = {
        "lanes": 4,
        "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
        "function": f"{HERE / 'cheap.py'}:document",
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 64},
        "collator": {"type": "packed", "pad_to": 64},
    }
    place = folder / str(position)
    place.mkdir()
    job_file = write_job(place, {"cheap": job}, snapshot_seconds=1)
    with serving(job_file, "--workers", "2") as (address, process):
        with _loader(address, 0, prefetch=64) as loader:
            for batch in loader:
                if batch.position >= position:
                    break
        process.kill()
        process.wait()
    return job_file


def _restart(job_file: Path, position: int) -> dict[str, float]:
    start = time.perf_counter()
    with serving(job_file, "--workers", "2") as (address, process):
        ready = time.perf_counter()
        with _loader(address, position) as loader:
            batch = next(iter(loader))
            first = time.perf_counter()
        assert batch.position == position
        process.kill()  # as before: what it has at the end is not saved for the next round
        process.wait()
    return {"ready_s": ready - start, "first_s": first - start}


def _loader(address: str, position: int, **given: int) -> Loader:
    return Loader(address, "cheap", rank=0, world_size=1, start=position, **given)


if __name__ == "__main__":
    run()
