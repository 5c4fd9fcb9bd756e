"""Windows of a planned job that several processes add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.commands.plan_windows import Apart
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.planning.index.block import ItemSizes
from penstock.server.planning.index.index_file import SourceBlocks, blocks_of, write_index
from penstock.server.planning.index.inputs import index_inputs
from penstock.server.planning.report.figures import Figures
from penstock.server.planning.report.planned_figures import figures_of_planned
from penstock.wire.errors import BadBatch, BadItem

JOBS = """
jobs:
  fits: &job
    lanes: 4
    epochs: 2
    batches_per_step: 4
    source: {type: parquet, files: data.parquet}
    distributor: {type: map, reading_groups: 1}
    batcher: {type: best_fit_decreasing, max_tokens: 64, rows: 2}
    collator: {type: packed, pad_to: 64}
    plan: {index: sizes.index, window: 40, balance: squares}
  refuses:
    <<: *job
    batcher: {type: best_fit_decreasing, max_tokens: 64, overlong: error}
  crowded:
    <<: *job
    collator: {type: packed, pad_to: 64, max_documents: 3}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job file, 200 rows of 1 to 80 tokens, and their sizes."""
    sizes = 1 + np.arange(200) ** 2 % 80
    rows = pa.array([list(range(size)) for size in sizes], pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": rows}), tmp_path / "data.parquet")
    (tmp_path / "jobs.yaml").write_text(JOBS)
    job = opened(tmp_path, "fits")
    told = SourceBlocks("main", 200, blocks_of(ItemSizes(None, sizes)))
    write_index(str(tmp_path / "sizes.index"), index_inputs(job.role_sets[0], job.seed), [told])
    return tmp_path


def opened(folder: Path, name: str) -> Job:
    return load(str(folder / "jobs.yaml")).jobs.unplanned(name)  # type: ignore[attr-defined]


def figures(job: Job, processes: int, said: list[str]) -> Figures:
    return figures_of_planned(job, add=Apart(job, said.append, processes, least=0))


def test_processes_find_what_one_finds(folder: Path) -> None:
    """Each takes some of the windows; the command says how many are done."""
    said: list[str] = []
    one, two = (figures(opened(folder, "fits"), count, said) for count in (1, 2))

    assert (two.tally.batches, two.positions) == (one.tally.batches, one.positions)
    assert (two.counts, two.sources) == (one.counts, one.sources)
    for name, costs in one.costs.items():
        assert two.costs[name].tolist() == costs.tolist()
    windows = len(said) // 2
    assert windows > 2
    every = [f"{number} of {windows} windows packed" for number in range(1, windows + 1)]
    assert said == [*every, *every]


def test_what_a_process_meets_is_told_as_it_is(folder: Path) -> None:
    """An item that does not fit: the sentence names it."""
    with pytest.raises(BadItem, match=r"main\[\d+\] in epoch 0: \d+ tokens do not fit into a row"):
        figures(opened(folder, "refuses"), 2, [])


def test_batches_that_nobody_can_make_are_named_as_one_process_names_them(folder: Path) -> None:
    """Whichever process has packed the window of the one that needs most."""
    said = []
    for processes in (1, 2, 3):
        with pytest.raises(BadBatch) as caught:
            figures(opened(folder, "crowded"), processes, [])
        said.append(caught.value.message)

    assert "documents, padding among them, and max_documents of the collator is 3" in said[0]
    assert said == [said[0]] * 3
