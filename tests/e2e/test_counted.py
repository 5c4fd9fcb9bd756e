"""A finite job whose items give any number of samples is counted once, and then read to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT, refused, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.wire import PROTOCOL
from penstock.wire.errors import LogDiverged, WorkerCrashed
from penstock.wire.v1 import feed_pb2

ROLES = '''
import os
import pathlib
import time

HERE = pathlib.Path(__file__).parent


def sometimes(raw):
    """0, 1 or 2 samples of an item; a word and a file hold it up."""
    number = raw["x"]
    if (HERE / "slow").exists():
        time.sleep(0.2)
    if number == 5 and (HERE / "deadly").exists():
        os.kill(os.getpid(), 9)
    if (HERE / "fewer").exists() and number == 29:
        return None
    return [{"x": number}] * (number % 3)


def bad(raw):
    if raw["x"] % 10 == 3:
        raise ValueError("an old library")
    return sometimes(raw)
'''

COUNT = 30
EXPECTED = sorted(n for n in range(COUNT) for _ in range(n % 3))


def make_jobs(folder: Path, **server: Any) -> Path:
    (folder / "roles.py").write_text(ROLES)
    job = {
        "epochs": 1,
        "lanes": 4,
        "batches_per_step": 2,
        "source": {"type": "items", "items": [{"x": number} for number in range(COUNT)]},
        "function": "./roles.py:sometimes",
        "batch_size": 4,
    }
    quarantine = {**job, "function": "./roles.py:bad", "on_item_error": "quarantine"}
    return write_job_file(
        folder / "jobs.yaml",
        {"val": job, "bad": quarantine, "train": {**job, "epochs": None}},
        **server,
    )


def values(target: str, job: str) -> tuple[list[int], int]:
    """Read a whole pass; return the values of all batches that are none of padding, sorted."""
    found: list[int] = []
    with Loader(target, job, as_numpy=True, mode="eval", deadline_s=120) as loader:
        steps = 0
        for step in loader.steps():
            steps += 1
            for batch in step:
                if not batch.info.is_padding:
                    found += batch["x"].tolist()
    return sorted(found), steps


def test_every_sample_of_an_epoch_comes_once_and_it_is_counted_once(tmp_path: Path) -> None:
    """By a server, after its restart, and in this process: the same batches and steps."""
    file = make_jobs(tmp_path, workers=2)
    with serving(file) as server:
        first = values(server.address, "val")
        bad = values(server.address, "bad")
        counted = server.events("counted", at_least=2)
        server.kill()
        server.start()
        again = values(server.address, "val")

        assert not server.events("counted"), "it was counted twice"

    assert first[0] == EXPECTED
    assert first == again == values(f"local:{file}", "val")
    assert bad[0] == [number for number in EXPECTED if number % 10 != 3]
    assert {event["job"] for event in counted} == {"val", "bad"}
    command = [sys.executable, "-m", "penstock.server.cli", "show", str(file), "val"]
    shown = subprocess.run(
        [*command, "--step", "0", "--json"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    assert [json.loads(line)["position"] for line in shown.stdout.splitlines()] == [0, 1]


def test_a_count_holds_up_no_other_job_and_says_how_far_it_is(tmp_path: Path) -> None:
    """Readers of the job wait, with the reason; the other one is read meanwhile."""
    (tmp_path / "slow").touch()
    with serving(make_jobs(tmp_path)) as server:
        with Loader(server.address, "train", as_numpy=True, deadline_s=120) as loader:
            assert next(iter(loader))["x"].shape == (4,)
        told = refused(server.feed.Describe, feed_pb2.DescribeRequest(protocol=PROTOCOL, job="val"))
        assert told.code == "counting"
        assert "of 30 items were processed" in told.message
        (tmp_path / "slow").unlink()

        assert values(server.address, "val")[0] == EXPECTED


def test_an_item_that_ends_the_count_is_named(tmp_path: Path) -> None:
    """After three deaths; the node and its other jobs go on."""
    (tmp_path / "deadly").touch()
    with (
        serving(make_jobs(tmp_path)) as server,
        Loader(server.address, "val", as_numpy=True, deadline_s=120) as loader,
        pytest.raises(WorkerCrashed, match=r"item main\[5\] .* SIGKILL|main\[5\] in epoch 0 ended"),
    ):
        list(loader)


def test_a_lane_that_ends_elsewhere_than_it_was_counted_stops(tmp_path: Path) -> None:
    """A role gives less than when it was counted: no sample is missing in silence."""
    with serving(make_jobs(tmp_path)) as server:
        eventually(lambda: len(server.events("counted")) == 2, 60, "all is counted")
        (tmp_path / "fewer").touch()

        with pytest.raises(LogDiverged, match="was counted to hold"):
            values(server.address, "val")
