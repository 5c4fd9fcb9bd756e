"""Memory of server and client after 10^4 and after 10^5 small batches."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil
from support import HERE, serving, table, write_job

from penstock.client import Loader

MARKS = (10_000, 100_000)


def run() -> None:
    """Print the table."""
    found: dict[str, list[float]] = {"server": [], "workers": [], "client": []}
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "lanes": 8,
            "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
            "function": f"{HERE / 'cheap.py'}:document",
            "batcher": {"type": "best_fit", "max_tokens": 256, "pool_size": 64},
            "collator": {"type": "packed", "pad_to": 256},
        }
        job_file = write_job(Path(folder), {"cheap": job})
        with (
            serving(job_file, "--workers", "2") as (address, process),
            Loader(address, "cheap", group="memory", batches_per_step=8, prefetch=64) as loader,
        ):
            server = psutil.Process(process.pid)
            for batch in loader:
                done = batch.position + 1
                if done % 800 == 0:
                    loader.commit()
                if done in MARKS:
                    found["server"].append(_mib(server))
                    found["workers"].append(sum(map(_mib, server.children())))
                    found["client"].append(_mib(psutil.Process(os.getpid())))
                if done >= MARKS[-1]:
                    break
    rows = [
        (name, *(f"{value:.1f}" for value in values), f"{values[-1] / values[0] - 1:+.1%}")
        for name, values in found.items()
    ]
    table(
        "Memory (unique set size, MiB) after so many small batches (goal: within 10 %)",
        ("process", *(f"{mark:,}" for mark in MARKS), "growth"),
        rows,
    )


def _mib(process: psutil.Process) -> float:
    return process.memory_full_info().uss / 2**20


if __name__ == "__main__":
    run()
