"""docs/operate.md: figures that the code or the bench has, files that are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from penstock.server.node.arena import IDLE_TAKES
from penstock.server.node.books import KEPT_BATCHES, KEPT_SHARE, MAX_LINES_PER_LANE
from penstock.server.pipeline.planner import LOOK_AHEAD
from penstock.server.store.lanes import CROWDED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text()


def test_memory_is_stated_with_the_figures_that_the_bench_compares_with() -> None:
    """The bench reckons with what the page says."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    try:
        import node_memory as bench  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(ROOT / "tests" / "bench"))
    packages = ", ".join(f"`{name}` {mib} MiB" for name, mib in bench.PACKAGES_MIB.items())

    assert f"| server process | {bench.SERVER_MIB} MiB, " in PAGE
    assert f"| each worker | {bench.WORKER_MIB} MiB, " in PAGE
    assert f"| {packages}, where" in PAGE
    assert f"| tokenizing, in each worker | {bench.TOKENIZING_MIB} MiB |" in PAGE
    assert f"| reading `parquet`, in each worker | {bench.READING_MIB} MiB |" in PAGE
    assert f"| {bench.SPREAD} x (`ready_bytes` + readers x the largest batch) |" in PAGE
    assert f"| {bench.SPREAD} x what its cache holds" in PAGE
    assert bench.AHEAD == LOOK_AHEAD


def test_bounds_are_those_of_the_code() -> None:
    """Numbers in the prose of Memory and Disk."""
    assert f"(`pool_size` + up to {LOOK_AHEAD})" in PAGE
    assert f"A lane processes {LOOK_AHEAD} items at a time" in PAGE
    assert f"at most {MAX_LINES_PER_LANE} per lane" in PAGE
    assert f"{KEPT_BATCHES} batches of a job, or a quarter" in PAGE
    assert KEPT_SHARE == 4
    assert f"empty for {IDLE_TAKES:,} batches" in PAGE
    assert f"at most {CROWDED} snapshots a lane" in PAGE


def test_files_that_it_names_are_there() -> None:
    """Paths below deploy/, and pages."""
    named = re.findall(r"`(deploy/[\w./]+)`", PAGE)

    assert len(named) >= 3
    assert [name for name in named if not (ROOT / name).exists()] == []
