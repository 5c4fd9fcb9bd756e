"""Batches of 1 KB that cost nothing to make: what every batch costs, whatever is in it.

One worker and one reader, with a prefetch of 64, over TCP on this machine. Beside the rate stands
the CPU time of each process for a batch: on a busy machine that figure stays.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from support import HERE, cpu_s, in_child, interleaved, serving, table, write_job

NBYTES, PREFETCH, COUNT, WARM, ROUNDS = 1000, 64, 20_000, 2_000, 6

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "ready": ("a ready array, items as they are", {}),
    "function": ("a ready array, behind a function:", {"function": f"{HERE / 'cheap.py'}:number"}),
}
"""Job -> what it is, and what it has beside the batcher and the collator."""


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {
            name: {
                "lanes": 8,
                "source": {"type": "items", "items": [{"n": n} for n in range(64)]},
                "batcher": {"type": "simple", "batch_size": 1},
                "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": NBYTES},
                **more,
            }
            for name, (_, more) in JOBS.items()
        }
        with serving(write_job(Path(folder), jobs), "--workers", "1") as (address, process):
            results = interleaved(
                ROUNDS, {name: partial(_read, address, process.pid, name) for name in JOBS}
            )
    rows = []
    for name, (label, _) in JOBS.items():
        rates = sorted(one["batches_per_s"] for one in results[name])
        rows.append(
            (
                label,
                f"{median(rates):,.0f}",
                f"{rates[0]:,.0f} to {rates[-1]:,.0f}",
                *(f"{median(one[who] for one in results[name]):.0f}" for who in CPU),
            )
        )
    table(
        f"Batches of {NBYTES:,} bytes with prefetch {PREFETCH}: median of {ROUNDS} interleaved "
        "rounds (goal: at least 5,000 a second on 2 cores)",
        ("batch", "batches/s", "range", *(f"{who} us" for who in CPU)),
        rows,
    )


CPU = ("worker", "server", "client")
"""Whose CPU time is shown, in microseconds a batch."""


def _read(address: str, server: int, job: str) -> dict[str, float]:
    return in_child("small_batches", address, str(server), job)


def main(address: str, server: int, job: str) -> dict[str, float]:
    """Read the batches in this process, and look at the CPU time of all three."""
    from penstock.client import Loader
    from penstock.wire.malloc import keep_memory

    keep_memory()
    worker = _worker_of(server)
    with Loader(
        address, job, rank=0, world_size=1, batches_per_step=8, prefetch=PREFETCH
    ) as loader:
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        before = _cpu_s(worker), _cpu_s(server), cpu_s()
        start = time.perf_counter()
        for _ in range(COUNT):
            next(batches)
        wall = time.perf_counter() - start
        after = _cpu_s(worker), _cpu_s(server), cpu_s()
    spent = {
        who: (end - begin) / COUNT * 1e6 for who, begin, end in zip(CPU, before, after, strict=True)
    }
    return {"batches_per_s": COUNT / wall, **spent}


def _worker_of(server: int) -> int:
    """Return the process id of the one worker of a server."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    for child in map(int, children):
        if b"penstock.server.pipeline.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise RuntimeError("the server has no worker")


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        run()
