"""What fetching more batches ahead gives, and what small ones gain by sharing a message.

The figures of `penstock.common.prefetch` and of decision 0003: batches that cost nothing to make,
of 1 KB over TCP and of 200 KB where bodies are lent and where they are sent, with 4 of them ahead,
as many as by default, and twice as many. The last rows of each have the default ahead, and a node
that waits for no further batches before it sends one (`GATHER_S` 0).
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from clock import cpu_s, tree_cpu_s
from support import (
    HERE,
    free_port,
    in_child,
    interleaved,
    median,
    serving,
    spread,
    table,
    write_job,
)

from penstock.common.prefetch import LEAST_AHEAD, fitting_ahead

SIZES = {"1-KB": 1000, "200-KB": 200_000}
WAYS = (("1-KB", "tcp"), ("200-KB", "unix"), ("200-KB", "tcp"))
BATCHES, WARM = 4_000, 500


def run() -> None:
    """Print the table."""
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pst-")))
        jobs = {name: _job(nbytes) for name, nbytes in SIZES.items()}
        nodes = {
            (gather, over): stack.enter_context(_node(folder, jobs, gather, over))
            for gather in ("", "0")
            for over in ("tcp", "unix")
        }
        for size, over in WAYS:
            default = fitting_ahead(SIZES[size])
            ways = {
                (f"{ahead} ahead", ""): (ahead, nodes["", over])
                for ahead in (LEAST_AHEAD, default, 2 * default)
            }
            ways[f"{default} ahead, none waits", "0"] = (default, nodes["0", over])
            results = interleaved(
                {
                    label: partial(in_child, "prefetch", address, str(pid), size, str(ahead))
                    for (label, _), (ahead, (address, pid)) in ways.items()
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


def _job(nbytes: int) -> dict[str, object]:
    return {
        "lanes": 8,
        "source": {"type": "items", "items": [{"n": n} for n in range(64)]},
        "batch_size": 1,
        "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": nbytes},
    }


@contextlib.contextmanager
def _node(
    folder: Path, jobs: dict[str, dict[str, object]], gather: str, over: str
) -> Iterator[tuple[str, int]]:
    """Serve the jobs; yield the address and the process.

    Args:
        folder: For the node's files.
        jobs: What it serves.
        gather: In place of `GATHER_S`; "" = what it is.
        over: `tcp` or `unix`.
    """
    own = folder / f"{over}{gather}"
    own.mkdir()
    listen = f"127.0.0.1:{free_port()}" if over == "tcp" else f"unix:{own / 's'}"
    program = ("-m", "penstock.server.cli")
    if gather:
        program = (str(HERE / "gathering_server.py"), gather)
    job_file = write_job(own, jobs)
    with serving(job_file, "--workers", "1", listen=listen, program=program) as (address, process):
        yield address, process.pid


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
