"""What a Loader's process works for bodies that go to a device, beside those that stay.

The device costs nothing: it pins without pinning, and a copy brings nothing. So what is left is the
client's: threads, spans, leases and events. Batches are of `NBYTES`; `by` is the median of the
differences, or of the ratios, to the same way without a device in the same round. Each way reads
`COUNT` batches, after `WARM` that are not counted, as fast as it can.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from free_device import Free
from support import Column, Results, compare, constant, interleaved, middle, node, ranged

from penstock.client import Loader

NBYTES, COUNT, WARM = 8 << 20, 300, 40


def run() -> None:
    """Print the table."""
    ways: dict[str, Callable[[], dict[str, float]]] = {}
    jobs = {"data": constant(NBYTES, lanes=4)}
    with node(jobs, over="unix", workers=1) as lent, node(jobs, workers=1) as sent:
        for how, (address, _) in (("lent", lent), ("sent", sent)):
            ways[f"{how}, plain"] = partial(_read, address, None)
            ways[f"{how}, to a device"] = partial(_read, address, Free)
        results = interleaved(ways)
    compare(
        f"Bodies of {NBYTES >> 20} MiB: what the Loader's process works",
        "way",
        results,
        ranged("CPU s/GB", "cpu_s_per_gb", ".3f"),
        Column(("above plain", "by plain"), _beside),
        middle("GB/s", "gb_per_s", ".2f"),
    )


def _beside(results: Results, way: str) -> Sequence[str]:
    plain = f"{way.split(',')[0]}, plain"
    pairs = [
        (ours["cpu_s_per_gb"], theirs["cpu_s_per_gb"])
        for ours, theirs in zip(results[way], results[plain], strict=True)
    ]
    above = statistics.median(ours - theirs for ours, theirs in pairs)
    return f"{above:.3f}", f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f}"


def _read(address: str, make: type[Free] | None) -> dict[str, float]:
    options: dict[str, Any] = {"as_numpy": True} if make is None else {"device": make(NBYTES)}
    with Loader(address, "data", rank=0, world_size=1, **options) as loader:
        batches = iter(loader)
        for _ in islice(batches, WARM):
            pass
        began, used = time.perf_counter(), time.process_time()
        nbytes = sum(batch.nbytes for batch in islice(batches, COUNT))
        used, took_s = time.process_time() - used, time.perf_counter() - began
    return {"cpu_s_per_gb": used / nbytes * 1e9, "gb_per_s": nbytes / took_s / 1e9}


if __name__ == "__main__":
    run()
