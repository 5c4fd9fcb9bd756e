"""Whose code an error names: what its author would look for, wherever penstock has called it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import run_command
from penstock.server.jobs.load import load
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.wire.errors import PenstockError

ROLES = '''
from collections.abc import Mapping

from penstock.server.roles import BatchCollator, IndexedSource, MapDistributor, SampleBatcher
from penstock.server.roles import IdentityProcessor


class Rows:
    """A Dataset."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return {"x": index}


class Broken(Rows):
    def __getitem__(self, index):
        raise ValueError("row")


class LazyRow(Mapping):
    def __init__(self, index):
        self.index = index

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(["x"])

    def __getitem__(self, key):
        raise ValueError("lazy")


class Lazy(Rows):
    def __getitem__(self, index):
        return LazyRow(index)


class NeedsMore(Rows):
    def __getitem__(self, index):
        import no_such_package


class NoLength(Rows):
    def __len__(self):
        raise ValueError("length")


class NoPrint(Rows):
    def fingerprint(self):
        raise ValueError("print")


class NoBlocks(IndexedSource):
    version = 1

    def __len__(self):
        return 9

    def fetch(self, indices):
        return [{"x": index} for index in indices]

    def blocks(self):
        raise ValueError("blocks")


class Draws(MapDistributor):
    version = 1

    def draw(self, lane, lanes, k):
        raise ValueError("draw")


class Groups(SampleBatcher):
    version = 1
    needs_sizes = False

    def add(self, ref, sample):
        raise ValueError("add")

    def flush(self):
        return []


class Stacks(BatchCollator):
    version = 1

    def collate(self, rows, context):
        raise ValueError("collate")


class Own(IdentityProcessor):
    version = 1

    def process(self, raw, context):
        raise ValueError("own")


def to_sample(raw):
    raise ValueError("function")
'''

DATASET = "source: {type: torch, factory: './roles.py:%s'}\n    batch_size: 2"
ROWS = "source: {type: torch, factory: './roles.py:Rows'}\n    "
OTHERS = ("TorchDatasetSource", "IdentityProcessor", "FunctionProcessor", "FunctionCollator")

CASES = {
    "a dataset": (DATASET % "Broken", "fails in Broken.__getitem__() (roles.py) with ValueError"),
    "a dataset's row": (DATASET % "Lazy", "fails in Lazy.__getitem__() (roles.py) with ValueErr"),
    "what it imports": (DATASET % "NeedsMore", "NeedsMore.__getitem__() (roles.py) of job 'main'"),
    "its length": (DATASET % "NoLength", "NoLength.__len__() (roles.py) fails with ValueError"),
    "its print": (DATASET % "NoPrint", "NoPrint.fingerprint() (roles.py) fails with ValueError"),
    "a source": (
        "source: {type: './roles.py:NoBlocks'}\n    distributor: {type: map, shuffle: blocks}\n"
        "    batch_size: 2",
        "NoBlocks.blocks() fails with ValueError",
    ),
    "a function": (
        ROWS + "function: './roles.py:to_sample'\n    batch_size: 2",
        "fails in to_sample() (roles.py) with ValueError",
    ),
    "a processor": (
        ROWS + "processor: './roles.py:Own'\n    batch_size: 2",
        "fails in Own.process() with ValueError",
    ),
    "a distributor": (
        ROWS + "distributor: {type: './roles.py:Draws'}\n    batch_size: 2",
        "Draws fails on a draw, in lane 0, of job 'main' with ValueError",
    ),
    "a batcher": (
        ROWS + "batcher: {type: './roles.py:Groups'}\n    collator: {type: default}",
        "Groups fails on sample 0 of item",
    ),
    "a collator": (
        ROWS + "batcher: {type: simple, batch_size: 2}\n    collator: {type: './roles.py:Stacks'}",
        "Stacks fails on the batch at lane 0, offset 0 of job 'main'",
    ),
    "a collating function": (
        ROWS
        + "batcher: {type: simple, batch_size: 2}\n"
        + "    collator: {function: './roles.py:to_sample'}",
        "to_sample (roles.py) fails on the batch at lane 0, offset 0 of job 'main'",
    ),
}


def write(folder: Path, job: str) -> Path:
    (folder / "roles.py").write_text(ROLES)
    file = folder / "job.yaml"
    file.write_text(f"jobs:\n  main:\n    lanes: 2\n    {job}\n")
    return file


def first_batch(file: Path) -> None:
    job = load(str(file)).job("main")
    _ = job.log_id
    line = Line(job, 0, Items(job, retry_deadline_s=0.1))
    line.make(line.advance())


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_the_code_that_raised_it(tmp_path: Path, case: str) -> None:
    """A Dataset, a row of it or a function is blamed itself, with its file; so is each role."""
    job, sentence = CASES[case]

    with pytest.raises(PenstockError) as caught:
        first_batch(write(tmp_path, job))

    assert sentence in caught.value.message
    assert not any(other in caught.value.message for other in OTHERS)
    raised: Any = caught.value.fields.get("traceback", "")
    assert "roles.py" in caught.value.message + raised


@pytest.mark.parametrize("case", ["its length", "its print", "a source", "a distributor"])
def test_check_ends_with_a_sentence_where_a_job_cannot_be_built(tmp_path: Path, case: str) -> None:
    """Whatever is called while a job is built or looked at: no traceback of penstock's own."""
    file = write(tmp_path, CASES[case][0])

    done = run_command(["penstock.server.cli", "check", str(file)], 120.0)

    assert done.returncode == 2
    assert "fails with ValueError" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("[invalid_job]")
    assert "penstock/server" not in done.stderr
