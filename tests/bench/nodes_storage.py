"""What several nodes read from storage, beside what one reads for the same batches.

Each case is read from step 0 by one, two and four nodes of one worker each; bytes are those that
nodes count as read from storage, when nothing more is made. `drawn` is what the items of all
batches hold.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from node_memory import MIB, _blocks
from nodes_cost import text
from several_nodes import DRAWN, READ, nodes, ranks
from support import HERE, table

READERS, STEPS, COUNTS = 8, 64, (1, 2, 4)


def run(url: str) -> None:
    """Print a table for each case."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        for name, job in _cases(Path(folder)).items():
            found = {count: _read(url, job, count) for count in COUNTS}
            alone = found[1][0]
            table(
                f"{name}: read from storage for the same {READERS * STEPS:,} batches "
                "(goal: at most 1.15x)",
                ("nodes", "read", "to one node", "read / drawn"),
                [
                    (
                        count,
                        f"{read / MIB:,.1f} MiB",
                        f"{read / alone:.2f}x",
                        f"{read / drawn:.2f}",
                    )
                    for count, (read, drawn) in found.items()
                ],
            )


def _cases(folder: Path) -> dict[str, dict[str, Any]]:
    blocks = _blocks(folder / "blocks.parquet", 96, MIB)
    rows = {
        "source": {"type": "parquet", "files": str(blocks)},
        "function": f"{HERE / 'cheap.py'}:array_of",
        "batch_size": 32,
    }

    def grouped(groups: int) -> dict[str, Any]:
        return {**rows, "distributor": {"type": "map", "reading_groups": groups}}

    return {
        "48 lanes in 16 groups": {**grouped(16), "lanes": 48},
        "12 lanes in 4 groups": {**grouped(4), "lanes": 12},
        "text, 48 lanes, groups by default": text(),
    }


def _read(url: str, job: dict[str, Any], count: int) -> tuple[int, int]:
    with (
        nodes(url, {"main": job}, count, workers=1) as served,
        ranks(served.addresses, READERS) as reading,
    ):
        reading.read(STEPS)
        found = served.settled()
        return found[READ], found[DRAWN]
