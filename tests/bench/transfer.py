"""Ready batches from the server to arrays in the client, over TCP on one machine.

A penstock worker copies a ready array into shared memory, the server streams it, the client has
it as a tensor. Beside it: a torch DataLoader's worker that hands its parent what it has ready, as
whole batches or as eight samples to stack, each with the same depth of prefetching; and Arrow
Flight's DoGet of the same bytes, which is C++ on both sides and produces nothing: the ceiling.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from support import HERE, best, free_port, in_child, interleaved, serving, table, write_job

SIZES = {"8 MB": (8_000_000, 600, 100, 32), "200 KB": (200_000, 6_000, 1_000, 128)}
"""Label -> bytes, batches, batches to warm up with, batches that both sides may prefetch.

Warming up goes through every buffer of both sides once: the first write to a page is dear."""

WAYS = {
    "penstock": "penstock",
    "stacked": "DataLoader, 8 samples stacked",
    "ready": "DataLoader, ready batches",
    "flight": "Arrow Flight",
}
ROUNDS = 6


def run() -> None:
    """Print the table."""
    rows = []
    for label, (size, count, warm, prefetch) in SIZES.items():
        results = measure(size, count, warm, prefetch)
        found = {way: best(rounds, "gb_per_s") for way, rounds in results.items()}
        for way, one in found.items():
            ratios = [
                f"{one['gb_per_s'] / found[other]['gb_per_s']:.2f}x"
                for other in ("stacked", "ready")
            ]
            rows.append(
                (
                    f"{label}  {WAYS[way]}",
                    f"{one['batches_per_s']:,.0f}",
                    f"{one['gb_per_s']:.2f}",
                    *ratios,
                    f"{one['cpu_s_per_gb']:.2f}",
                )
            )
    table(
        f"Ready batches over TCP, best of {ROUNDS} interleaved rounds (goal, against a DataLoader: "
        "8 MB at least 1.2x, 200 KB at least 2.5x; client CPU at 8 MB at most 0.5 s/GB)",
        ("batch", "batches/s", "GB/s", "of stacked", "of ready", "client CPU s/GB"),
        rows,
    )


def measure(size: int, count: int, warm: int, prefetch: int) -> dict[str, list[dict[str, float]]]:
    """Return each way's rounds."""
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "lanes": 8,
            "source": {"type": "items", "items": [{"x": 1}] * 8},
            "batcher": {"type": "simple", "batch_size": 1},
            "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": size},
        }
        job_file = write_job(Path(folder), {"data": job})
        port = free_port()
        flight = subprocess.Popen(
            [sys.executable, str(HERE / "flight_server.py"), str(port), str(size)],
            stdout=subprocess.PIPE,
        )
        assert flight.stdout is not None
        flight.stdout.readline()
        numbers = (str(count), str(warm), str(prefetch))
        try:
            with serving(job_file, "--workers", "1") as (address, _):
                places = {
                    "penstock": address,
                    "stacked": str(size),
                    "ready": str(size),
                    "flight": f"127.0.0.1:{port}",
                }
                return interleaved(
                    ROUNDS,
                    {
                        way: partial(in_child, "transfer_client", way, place, *numbers)
                        for way, place in places.items()
                    },
                )
        finally:
            flight.kill()
            flight.wait()


if __name__ == "__main__":
    run()
