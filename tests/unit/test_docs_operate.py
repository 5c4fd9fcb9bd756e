"""docs/operate.md: figures that the code or the bench has, files that are there."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.common import metric_table as metrics
from penstock.common import prefetch
from penstock.server.commands import memory_formula as memory
from penstock.server.node.demand import made_ahead as node_ahead
from penstock.server.node.demand.cached import CACHED_BATCHES, CACHED_SHARE
from penstock.server.node.demand.lane_state import MAX_LINES_PER_LANE
from penstock.server.node.demand.made_ahead import AHEAD_PER_WORKER, CHEAP_AHEAD, CHEAP_S, FAR_AHEAD
from penstock.server.node.workers.arena import IDLE_BYTES, IDLE_TAKES
from penstock.server.pipeline.draws_ahead import AHEAD_BYTES, LOOK_AHEAD
from penstock.server.pipeline.kept_items import KEPT_BYTES, NODE_KEPT_BYTES
from penstock.server.sources.cache import FREE_BYTES
from penstock.server.store.thinning import CROWDED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text()


def test_memory_is_stated_with_the_figures_that_check_reckons_with() -> None:
    """The page says in words what `penstockd check` prints."""
    packages = ", ".join(f"`{name}` {mib} MiB" for name, mib in memory.PACKAGES_MIB.items())

    assert f"| server process | {memory.SERVER_MIB} MiB, " in PAGE
    assert f"| each worker | {memory.WORKER_MIB} MiB, " in PAGE
    assert f"| {packages}, where" in PAGE
    assert f"| tokenizing, in each worker | {memory.TOKENIZING_MIB} MiB |" in PAGE
    blocks = f"{memory.READING_MIB} MiB, and {memory.DECODING_BLOCKS} decoded block"
    assert f"| reading storage blocks, in each worker | {blocks} |" in PAGE
    assert f"at least {FREE_BYTES >> 20} MiB in each worker" in PAGE
    kept = f"{CACHED_BATCHES} batches, at most a quarter of `ready_bytes`, and for each reader"
    far, cheap = (f"{times * AHEAD_PER_WORKER}" for times in (FAR_AHEAD, CHEAP_AHEAD))
    far_bytes = f"take {node_ahead.AHEAD_BYTES >> 20} MiB"
    fetched = (
        f"{prefetch.LEAST_AHEAD} batches, or up to {prefetch.MOST_AHEAD} that take "
        f"{prefetch.AHEAD_BYTES >> 20} MiB"
    )
    ahead = f"{fetched}, and for each worker {AHEAD_PER_WORKER} more, or up to {cheap} that"
    assert f"| {memory.BATCHES_SPREAD} x ({kept} {ahead} {far_bytes})" in PAGE
    beyond = f"a node makes {AHEAD_PER_WORKER} positions of a job for each worker, and up to {far},"
    cheaper = f"or {cheap} where a batch is made in less than {CHEAP_S * 1e3:g} ms, as long as they"
    assert f"{beyond} {cheaper} {far_bytes}, so that" in PAGE
    assert f"| {memory.BATCHES_SPREAD} x `ready_bytes`; 1 x with one worker |" in PAGE
    assert f"| {memory.SAMPLES_SPREAD} x lanes x (`pool_size` + what a lane looks" in PAGE
    assert f"| {memory.SAMPLES_SPREAD} x a batch |" in PAGE


def test_bounds_are_those_of_the_code() -> None:
    """Numbers in the prose of Memory and Disk."""
    ahead = f"up to {LOOK_AHEAD} items at a time, as long as they take {AHEAD_BYTES >> 20} MiB"
    assert f"A lane processes {ahead} together" in PAGE
    kept = f"up to {NODE_KEPT_BYTES >> 20} MiB more, at most {KEPT_BYTES >> 20} in each worker"
    assert kept in PAGE
    assert f"at most {MAX_LINES_PER_LANE} per lane" in PAGE
    assert f"{CACHED_BATCHES} batches of a job, or a quarter" in PAGE
    assert CACHED_SHARE == 4
    assert f"empty for {IDLE_TAKES:,} batches, or {IDLE_BYTES >> 20} MiB of them," in PAGE
    assert f"at most {CROWDED} snapshots a lane" in PAGE


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    """All columns; `python -m penstock.common.metric_table` prints it."""
    assert f"\n{metrics.table()}\n" in PAGE


def test_files_that_it_names_are_there() -> None:
    """Paths below deploy/, and pages."""
    named = re.findall(r"`(deploy/[\w./]+)`", PAGE)

    assert len(named) >= 3
    assert [name for name in named if not (ROOT / name).exists()] == []
