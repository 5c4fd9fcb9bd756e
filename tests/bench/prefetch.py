"""What fetching more batches ahead gives, and what small ones gain by sharing a message.

The figures of `penstock.wire.prefetch` and of decision 0003: batches that cost nothing to make, of
1 KB over TCP and of 200 KB where bodies are lent and where they are sent, with 4 of them ahead, as
many as by default, and twice as many. The last rows of each have the default ahead, and a node that
waits for no further batches before it sends one (`GATHER_S` 0).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from functools import partial
from typing import Any

from clock import cpu_s, tree_cpu_s
from support import HERE, constant, in_child, interleaved, median, node, spread, table

from penstock.wire.prefetch import LEAST_AHEAD, fitting_ahead

SIZES = {"1-KB": 1000, "200-KB": 200_000}
WAYS = (("1-KB", "tcp"), ("200-KB", "unix"), ("200-KB", "tcp"))
BATCHES, WARM = 4_000, 500


def run() -> None:
    """Print the table."""
    rows = []
    with contextlib.ExitStack() as stack:
        jobs = {name: constant(nbytes) for name, nbytes in SIZES.items()}
        waiting: dict[str, Any] = {"program": (str(HERE / "gathering_server.py"), "0")}
        nodes = {
            (gather, over): stack.enter_context(node(jobs, over=over, workers=1, **program))
            for gather, program in (("", {}), ("0", waiting))
            for over in ("tcp", "unix")
        }
        for size, over in WAYS:
            default = fitting_ahead(SIZES[size])
            ways = {
                f"{ahead} ahead": (ahead, nodes["", over])
                for ahead in (LEAST_AHEAD, default, 2 * default)
            }
            ways[f"{default} ahead, none waits"] = (default, nodes["0", over])
            results = interleaved(
                {
                    label: partial(in_child, "prefetch", *served, size, ahead)
                    for label, (ahead, served) in ways.items()
                }
            )
            usual = median(results[f"{default} ahead"], "batches_per_s")
            rows += [
                (
                    f"{size.replace('-', ' ')}, {over}",
                    label,
                    f"{median(found, 'batches_per_s'):,.0f}",
                    spread(found, "batches_per_s", ",.0f"),
                    f"{median(found, 'batches_per_s') / usual:.2f}x",
                    f"{median(found, 'trainer_us'):.0f}",
                    f"{median(found, 'others_us'):.0f}",
                )
                for label, found in results.items()
            ]
    table(
        f"Batches fetched ahead: {BATCHES:,} that cost nothing, one worker. CPU us for a batch.",
        ("batches", "fetched", "batches/s", "range", "of default", "trainer", "others"),
        rows,
    )


def main(address: str, server: int, job: str, prefetch: int) -> dict[str, float]:
    """Read the batches in this process; look at the CPU time of both sides."""
    from penstock.client import Loader

    with Loader(
        address, job, rank=0, world_size=1, batches_per_step=8, prefetch=prefetch
    ) as loader:
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        before, served, start = cpu_s(), tree_cpu_s(server), time.perf_counter()
        for _ in range(BATCHES):
            next(batches)
        wall = time.perf_counter() - start
        trainer, others = cpu_s() - before, tree_cpu_s(server) - served
    return {
        "batches_per_s": BATCHES / wall,
        "trainer_us": trainer / BATCHES * 1e6,
        "others_us": others / BATCHES * 1e6,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
    else:
        run()
