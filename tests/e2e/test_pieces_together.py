"""A node processes a document of a planned job once, though many batches hold pieces of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness import call_command, serving, write_job_file
from invariants import Purity
from penstock.client import Loader
from penstock.server.jobs.load import load
from planned import write_index_of

ROLES = '''
import os
import pathlib

CALLS = os.open(pathlib.Path(__file__).parent / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def spelled(raw):
    """Give the tokens of a document, and note it."""
    os.write(CALLS, b"%d\\n" % raw["number"])
    return {"input_ids": list(range(raw["size"]))}
'''

ROW, COUNT, G = 128, 900, 12
MOST = {"shuffled": 1.05, "balanced": 1.2}
"""What may be processed, by the tokens of the documents. An order that scatters the pieces of a
document takes 3 times."""

BESIDE = 0.05
"""What is processed beside: for the padding batches of the last step, and for one batch in 1,000
that is made twice, to compare it."""


def sizes() -> list[int]:
    """Return sizes of documents: those longer than a row hold most of the tokens."""
    chance = random.Random(6)
    return [
        int(ROW * min(25.0, 1 + chance.paretovariate(1.2) / 2))
        if chance.random() < 0.2
        else chance.randint(1, ROW - 1)
        for _ in range(COUNT)
    ]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job file of two planned jobs, and their index."""
    (tmp_path / "roles.py").write_text(ROLES)
    items = [{"number": number, "size": size} for number, size in enumerate(sizes())]
    job: dict[str, Any] = {
        "lanes": 12,
        "epochs": 1,
        "batches_per_step": G,
        "source": {"type": "items", "items": items},
        "function": "./roles.py:spelled",
        "batcher": {"type": "best_fit_decreasing", "max_tokens": ROW},
        "collator": {"type": "packed", "pad_to": ROW},
    }
    bare = write_job_file(tmp_path / "bare.yaml", {"bare": job})
    write_index_of(load(str(bare)).jobs["bare"], tmp_path / "sizes")
    plans: dict[str, dict[str, Any]] = {
        "shuffled": {"index": "sizes"},
        "balanced": {"index": "sizes", "balance": f"tokens + squares / {ROW}"},
    }
    planned = {name: {**job, "plan": plan} for name, plan in plans.items()}
    (tmp_path / "calls").unlink()
    return write_job_file(tmp_path / "jobs.yaml", planned, workers=2)


def processed(folder: Path) -> float:
    """Return the tokens that were processed since it was last asked, by those of all documents."""
    calls = Counter(map(int, (folder / "calls").read_text().split()))
    (folder / "calls").write_text("")
    every = sizes()
    assert len(calls) == COUNT
    return sum(every[number] * times for number, times in calls.items()) / sum(every)


@pytest.mark.parametrize("name", MOST)
def test_an_epoch_takes_the_processing_that_its_plan_says(jobs: Path, name: str) -> None:
    """By a node of two workers, and in this process; with the same bytes in any order."""
    folder = jobs.parent
    told = call_command("penstockd", "plan", "jobs.yaml", name, "--json", folder=folder)
    says = json.loads(told.stdout)["processing"]
    options: dict[str, Any] = {"mode": "eval", "as_numpy": True, "deadline_s": 90}

    with Loader(f"local:{jobs}", name, **options) as loader:
        here = {batch.position: bytes(batch.body) for batch in loader}
    assert 0 <= processed(folder) - says["times"] <= BESIDE
    with serving(jobs) as server:
        with Loader(server.address, name, **options) as loader:
            batches = list(loader)
        taken = processed(folder)
        assert not server.events("a bug")

    assert {batch.position: bytes(batch.body) for batch in batches} == here
    assert 0 <= taken - says["times"] <= BESIDE
    assert says["times"] <= MOST[name]
    scattered = Purity(load(str(jobs)).jobs[name])
    for batch in random.Random(1).sample(batches[:-G], 40):
        scattered.saw(batch.header, bytes(batch.body))
