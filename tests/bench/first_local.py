"""From `iter(Loader("local:..."))` to the first batch, and the CPU time of what was started for it.

A job of four items, so that the start is all of it; in a trainer that has imported the client. To
compare an older state, run this with its code in turn, as `small_batches.py` says; where others use
the machine, seconds of the CPU say more than those of the clock.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from support import in_child, interleaved, median, spread, table, write_job

WAYS = {"local:": "local:{}", "spawn:, 1 worker": "spawn:{}?workers=1"}


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        source = {"type": "items", "items": [{"n": n} for n in range(4)]}
        file = write_job(Path(folder), {"one": {"source": source, "lanes": 2, "batch_size": 2}})
        results = interleaved(
            {
                name: partial(in_child, "first_local", target.format(file))
                for name, target in WAYS.items()
            }
        )
    rows = [
        (
            name,
            *(
                cell
                for key in ("first_s", "cpu_s", "close_s")
                for cell in (f"{median(rounds, key):.2f}", spread(rounds, key, ".2f"))
            ),
        )
        for name, rounds in results.items()
    ]
    header = ("", "first s", "range", "CPU s", "range", "close s", "range")
    table("A Loader of a job file: from the first call to the first batch", header, rows)


def main(target: str) -> dict[str, float]:
    """Read one batch in this process."""
    from penstock.client import Loader

    began = time.perf_counter()
    with Loader(target, "one", rank=0, world_size=1, as_numpy=True) as loader:
        next(iter(loader))
        first = time.perf_counter()
    closed, used = time.perf_counter(), os.times()
    return {
        "first_s": first - began,
        "close_s": closed - first,
        "cpu_s": used.children_user + used.children_system,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(main(sys.argv[1])))
    else:
        run()
