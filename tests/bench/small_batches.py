"""Batches of 1 KB that cost nothing to make: what every batch costs, whatever is in it.

One worker and one reader, with a prefetch of 64, over TCP on this machine. Beside the rate stands
the CPU time of each process for a batch, user and system, as /proc counts it: on a busy machine
that figure stays. `worker` is what a worker spends on a batch for which it has nothing to do.

To see what a change has done to it, run this on both states in turn: imports come from
`PYTHONPATH`, so a checkout of the older one in `OLD` is measured by
`PYTHONPATH=OLD/client:OLD/proto:OLD/server python tests/bench/run.py small_batches`.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from clock import cpu_s, tree_cpu_s
from support import HERE, ROUNDS, compare, constant, in_child, interleaved, middle, node, ranged

NBYTES, PREFETCH, COUNT, WARM = 1000, 64, 10_000, 2_000

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "ready": ("a ready array, items as they are", {}),
    "function": ("a ready array, behind a function:", {"function": f"{HERE / 'cheap.py'}:number"}),
}
"""Job -> what it is, and what it has beside the batcher and the collator."""


def run() -> None:
    """Print the table."""
    jobs = {name: constant(NBYTES, **more) for name, (_, more) in JOBS.items()}
    with node(jobs, workers=1) as served:
        results = interleaved(
            {name: partial(in_child, "small_batches", *served, name) for name in JOBS}
        )
    compare(
        f"Batches of {NBYTES:,} bytes with prefetch {PREFETCH}: median of {ROUNDS} interleaved "
        "rounds (goal: at least 5,000 a second on 2 cores)",
        "CPU us for a batch",
        results,
        ranged("batches/s", "batches_per_s", ",.0f"),
        *(middle(who, who, ".0f") for who in CPU),
        names={name: label for name, (label, _) in JOBS.items()},
    )


CPU = ("worker", "server", "trainer")
"""Whose CPU time is shown, in microseconds a batch."""


def main(address: str, server: int, job: str) -> dict[str, float]:
    """Read the batches in this process, and look at the CPU time of all three."""
    from penstock.client import Loader

    worker = _worker_of(server)
    with Loader(
        address, job, rank=0, world_size=1, batches_per_step=8, prefetch=PREFETCH
    ) as loader:
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        before = _cpu_s(worker, server)
        start = time.perf_counter()
        for _ in range(COUNT):
            next(batches)
        wall = time.perf_counter() - start
        after = _cpu_s(worker, server)
    spent = {
        who: (end - begin) / COUNT * 1e6 for who, begin, end in zip(CPU, before, after, strict=True)
    }
    return {"batches_per_s": COUNT / wall, **spent}


def _worker_of(server: int) -> int:
    """Return the process id of the one worker of a server."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    for child in map(int, children):
        # By its last name alone: in older states its module lies in another folder.
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if any(word.endswith((b".worker", b".worker_main")) for word in words):
            return child
    raise RuntimeError("the server has no worker")


def _cpu_s(worker: int, server: int) -> tuple[float, float, float]:
    """Return the CPU seconds of the worker, of the server without it, and of this process."""
    works = tree_cpu_s(worker)
    return works, tree_cpu_s(server) - works, cpu_s()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        run()
