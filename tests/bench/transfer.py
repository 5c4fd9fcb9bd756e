"""Ready batches from the server to arrays in the client, on one machine.

A penstock worker copies a ready array into shared memory, the server streams it over TCP, the
client has it as a tensor. Behind a Unix socket the same node lends it instead: the tensor lies in
the worker's memory. Beside them: one worker of a torch DataLoader, which hands its parent what it
has ready, as whole batches or as eight samples to stack; tf.data service with one worker, which
holds the batch in its cache; and Arrow Flight's DoGet of the same bytes, which is C++ on both sides
and produces nothing: the ceiling.

Each is started as its users start it, with its own depth of prefetching. The last table gives all
that have such a setting a deep one, the same for each.

The second table is what a trainer sees. A process that has once freed a large block, as one that
has loaded weights has, keeps freed memory from then on: glibc raises its thresholds with the
largest block up to 32 MiB that it saw freed. For penstock alone the first table is the same: the
first batch of its streams comes in chunks that large.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec

from support import (
    HERE,
    Results,
    against,
    compare,
    constant,
    in_child,
    interleaved,
    middle,
    node,
    ranged,
)

LARGE = (
    "goals: over TCP at least 1.15x of tf.data service, without it 0.8x of DataLoader, ready; "
    "lent 1.3x of that and 0.9x of Flight, at most 0.2 trainer s/GB"
)
SMALL = "goals: over TCP at least 1.3x of DataLoader, ready; lent 4x of that and 0.9x of Flight"

SIZES = {
    f"8 MB, all as it comes ({LARGE})": (8_000_000, 300, 60, 0, 0),
    f"8 MB, where 31 MiB were freed before ({LARGE})": (8_000_000, 300, 60, 0, 31 << 20),
    f"200 KB, all as it comes ({SMALL})": (200_000, 4_000, 800, 0, 0),
    f"200 KB, 64 batches deep ({SMALL})": (200_000, 4_000, 800, 64, 0),
}
"""Title -> bytes, batches, batches to warm up with, depth (0 = each its own), bytes freed before.

Warming up goes through every buffer of both sides once: the first write to a page is costly."""

NAMES = {
    "penstock": "penstock, TCP",
    "lent": "penstock, unix:",
    "stacked": "DataLoader, stacks 8",
    "ready": "DataLoader, ready",
    "tfdata": "tf.data service",
    "flight": "Arrow Flight",
}

TF_PYTHON = "BENCH_TF_PYTHON"


def run() -> None:
    """Print the tables."""
    for title, (size, count, warm, depth, freed) in SIZES.items():
        results = measure(size, count, warm, depth, freed)
        compare(
            f"Ready batches: {title}",
            "way",
            results,
            ranged("GB/s", "gb_per_s", ".2f"),
            against("of ready", "ready", "gb_per_s"),
            against("of tf.data", "tfdata", "gb_per_s"),
            against("of Flight", "flight", "gb_per_s"),
            middle("trainer s/GB", "trainer_s_per_gb", ".2f"),
            middle("others", "server_s_per_gb", ".2f"),
            names=NAMES,
        )


def measure(size: int, count: int, warm: int, depth: int, freed: int) -> Results:
    """Return each way's rounds."""
    numbers = (freed, count, warm)
    with contextlib.ExitStack() as stack:
        jobs = {"data": constant(size)}
        tcp, unix = (
            stack.enter_context(node(jobs, over=over, workers=1)) for over in ("tcp", "unix")
        )
        flight = stack.enter_context(
            _peer([sys.executable, str(HERE / "flight_server.py"), str(size)])
        )
        client = partial(in_child, "transfer_client")
        ways: dict[str, Callable[[], Mapping[str, float]]] = {
            "penstock": partial(client, "penstock", *tcp, *numbers, depth),
            "lent": partial(client, "penstock", *unix, *numbers, depth),
            "stacked": partial(client, "stacked", size, *numbers, depth),
            "ready": partial(client, "ready", size, *numbers, depth),
            "flight": partial(client, "flight", *flight, *numbers),
        }
        if python := tensorflow_python():
            service = stack.enter_context(_peer([python, str(HERE / "tfdata.py"), "serve"]))
            ways["tfdata"] = partial(
                in_child, "tfdata", "read", *service, size, *numbers, python=python
            )
        return interleaved(ways)


def tensorflow_python() -> str:
    """Return an interpreter that has TensorFlow, or nothing."""
    named = os.environ.get(TF_PYTHON, "")
    return named or (sys.executable if find_spec("tensorflow") else "")


@contextlib.contextmanager
def _peer(command: list[str]) -> Iterator[tuple[str, int]]:
    """Run another server; yield the address that it prints first, and its process id."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"{' '.join(command)} did not start")
            yield address, process.pid
        finally:
            process.kill()


if __name__ == "__main__":
    run()
