"""What a Loader's process works for bodies that go to a device, beside those that stay.

The device costs nothing: it pins without pinning, and a copy brings nothing. So what is left is the
client's: threads, spans, leases and events. Batches are of `NBYTES`; `by` is the median of the
differences, or of the ratios, to the same way without a device in the same round. Each way reads
`COUNT` batches, after `WARM` that are not counted, as fast as it can.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from free_device import Free
from support import HERE, Results, interleaved, median, serving, spread, table, write_job

from penstock.client import Loader

NBYTES, COUNT, WARM = 8 << 20, 300, 40


def run() -> None:
    """Print the table."""
    ways: dict[str, Callable[[], dict[str, float]]] = {}
    job = {
        "lanes": 4,
        "source": {"type": "items", "items": [{"n": n} for n in range(64)]},
        "batch_size": 1,
        "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": NBYTES},
    }
    with tempfile.TemporaryDirectory(prefix="pst-") as one, tempfile.TemporaryDirectory() as other:
        lent, sent = Path(one), Path(other)
        with (
            serving(write_job(lent, {"data": job}), "--workers", "1", listen=f"unix:{lent}/n") as a,
            serving(write_job(sent, {"data": job}), "--workers", "1") as b,
        ):
            for how, address in (("lent", a[0]), ("sent", b[0])):
                ways[f"{how}, plain"] = partial(_read, address, None)
                ways[f"{how}, to a device"] = partial(_read, address, Free)
            results = interleaved(ways)
    table(
        f"Bodies of {NBYTES >> 20} MiB: what the Loader's process works",
        ("way", "CPU s/GB", "range", "above plain", "by plain", "GB/s"),
        [
            (
                way,
                f"{median(rounds, 'cpu_s_per_gb'):.3f}",
                spread(rounds, "cpu_s_per_gb", ".3f"),
                *_beside(results, way),
                f"{median(rounds, 'gb_per_s'):.2f}",
            )
            for way, rounds in results.items()
        ],
    )


def _beside(results: Results, way: str) -> tuple[str, str]:
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
