"""What reads pictures in the benchmarks shares: batches, sizes, and images per CPU second.

Only the standard library and NumPy are imported: interpreters without penstock run this, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clock import Stopwatch

SIDE, BATCH = 224, 32

WARM, IMAGES = {500: 640, 1920: 128}, {500: 3200, 1920: 640}
"""By the width of the pictures: how many are read before the clock starts, and after that."""


def files(folder: str) -> list[str]:
    """Return the pictures of a folder, in order."""
    return sorted(str(path) for path in Path(folder).glob("*.jpg"))


def rates(counts: Iterable[int], servers: int, width: int) -> dict[str, float]:
    """Read batches and return what an image costs.

    Args:
        counts: The images of each batch, as it comes.
        servers: The process whose tree serves this one; 0 where children of this one do.
        width: Of the pictures.
    """
    seen = warm = 0
    watch: Stopwatch | None = None
    for count in counts:
        seen += count
        if watch is None and seen >= WARM[width]:
            warm, watch = seen, Stopwatch(servers)
        elif watch is not None and seen - warm >= IMAGES[width]:
            found = watch.read()
            cpu_s = found["trainer_cpu_s"] + found["server_cpu_s"]
            return {
                "images_per_cpu_s": (seen - warm) / cpu_s,
                "cpu_ms": 1e3 * cpu_s / (seen - warm),
                "trainer_ms": 1e3 * found["trainer_cpu_s"] / (seen - warm),
                "images_per_s": (seen - warm) / found["wall_s"],
            }
    raise RuntimeError(f"the data ended after {seen} images")


__all__ = ["BATCH", "SIDE", "files", "rates"]
