"""What a worker's memory is over many pictures: it must not grow after the first thousand.

One worker decodes small JPEGs of a folder, each many times, and resizes them; BENCH_PICTURES says
how many (20,000). Its resident memory, shared pages among it, is read after 1,000 pictures, and
then after each thousand.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from images import job, write_pictures
from support import interleaved, median, node, spread, table

PICTURES = int(float(os.environ.get("BENCH_PICTURES", "2e4")))
FIRST = 1_000
"""Pictures after which memory is not to grow: by then every buffer is there."""

GOAL_MIB = 32

WAYS = (("2", "pillow"), ("2", "torch"), ("1", "opencv"))
"""`scale` and `kernel`."""


def resident_mib(server: int) -> float:
    """Return the resident memory of the largest process that a node's process has started."""
    children = [
        int(child)
        for task in Path(f"/proc/{server}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    largest = max(
        next(
            int(line.split()[1])
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmRSS:")
        )
        for pid in _below(children)
    )
    return largest / 1024


def _below(pids: list[int]) -> list[int]:
    """Return processes and all that they have started."""
    found = list(pids)
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += _below([int(child) for child in (task / "children").read_text().split()])
    return found


def measure(folder: Path, scale: str, kernel: str) -> Mapping[str, float]:
    """Read pictures, and look at the worker meanwhile."""
    from penstock.client import Loader

    with node({"images": job(folder, scale, kernel)}, over="unix", workers=1) as (address, pid):
        seen, looked = 0, [0.0]
        with Loader(address, "images", rank=0, world_size=1) as loader:
            for batch in loader:
                seen += len(batch["image"])
                if seen >= FIRST * len(looked):
                    looked.append(resident_mib(pid))
                if seen >= PICTURES:
                    break
    return {"first": looked[1], "most": max(looked), "grown": max(looked) - looked[1]}


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder, 160, 120, 256)
        found = interleaved(
            {
                f"{scale}, {kernel}": partial(measure, folder, scale, kernel)
                for scale, kernel in WAYS
            }
        )
    rows = [
        (
            label,
            f"{median(rounds, 'first'):.1f}",
            f"{median(rounds, 'most'):.1f}",
            f"{median(rounds, 'grown'):.1f}",
            spread(rounds, "grown", ".1f"),
        )
        for label, rounds in found.items()
    ]
    table(
        f"A worker's memory over {PICTURES:,} pictures of 160 x 120, MiB (goal: it grows by at "
        f"most {GOAL_MIB} after {FIRST:,})",
        ("scale, kernel", f"after {FIRST:,}", "most", "grown", "range"),
        rows,
    )


if __name__ == "__main__":
    run()
