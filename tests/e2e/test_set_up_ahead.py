"""Idle workers set jobs up before anybody reads them; whatever happens there costs nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import serving, write_job_file
from invariants import eventually
from penstock.wire.errors import InvalidJob, WorkerCrashed

ROLES = '''
import os
import pathlib
import time

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path(__file__).parent


class Fine(RawItemProcessor):
    """Says in which process it was set up."""

    name = "fine"

    def setup(self):
        with open(HERE / self.name, "a") as file:
            file.write(f"{os.getpid()}\\n")

    def process(self, raw, context):
        return {"n": raw["n"]}


class Fails(Fine):
    name = "fails"

    def setup(self):
        super().setup()
        raise ValueError("no model here")


class Crashes(Fine):
    name = "crashes"

    def setup(self):
        super().setup()
        os._exit(7)


class Hangs(Fine):
    name = "hangs"

    def setup(self):
        super().setup()
        while not (HERE / "go").exists():
            time.sleep(0.02)
'''


def write_jobs(folder: Path, *names: str, **server: Any) -> Path:
    """Write jobs that do what their names say."""
    (folder / "roles.py").write_text(ROLES)
    job = {
        "source": {"type": "items", "items": [{"n": n} for n in range(8)]},
        "lanes": 4,
        "batch_size": 1,
    }
    jobs = {
        name: {**job, "processor": {"type": f"./roles.py:{name.capitalize()}"}} for name in names
    }
    return write_job_file(folder / "penstock.yaml", jobs, **server)


def setups(folder: Path, name: str) -> list[str]:
    """Return the processes in which a job was set up, once for each time."""
    path = folder / name
    return path.read_text().split() if path.exists() else []


def test_what_fails_or_ends_a_worker_costs_one_try_and_is_told_to_its_reader(
    tmp_path: Path,
) -> None:
    """The others are set up in every worker, before anybody reads; so is what was there before."""
    with serving(write_jobs(tmp_path, "crashes", "fails", "fine", workers=2)) as server:
        eventually(lambda: len(set(setups(tmp_path, "fine"))) >= 2, 90, "both workers are set up")
        assert len(setups(tmp_path, "crashes")) == 1
        assert len(setups(tmp_path, "fails")) == 1
        [left] = server.events("a job is left for its readers to be set up")
        [failed] = server.events("a job cannot be set up")
        assert (left["job"], failed["job"]) == ("crashes", "fails")
        assert "no model here" in failed["error"]
        before = setups(tmp_path, "fine")

        assert len(list(server.read("fine", horizon=12).take(12))) == 12
        assert set(setups(tmp_path, "fine")[: len(before)]) == set(before)
        with pytest.raises(InvalidJob, match=r"Fails.*of job 'fails' fails with .*no model here"):
            server.read("fails", horizon=4).take(1)
        with pytest.raises(WorkerCrashed, match=r"stage setup ended its worker 3 times"):
            server.read("crashes", horizon=4).take(1)
        assert len(list(server.read("fine", horizon=12).take(12))) == 12


def test_what_hangs_makes_way_for_the_readers_of_another_job(tmp_path: Path) -> None:
    """Though there is one worker, and long before its item's deadline; its own reader waits."""
    with serving(write_jobs(tmp_path, "hangs", "fine", workers=1, item_seconds=300)) as server:
        eventually(lambda: setups(tmp_path, "hangs"), 90, "it is being set up")
        assert len(list(server.read("fine", horizon=12).take(12))) == 12
        [died] = server.events("a worker died")
        assert "for the readers of another job" in died["how"]
        assert len(setups(tmp_path, "hangs")) == 1

        reader = server.read("hangs", horizon=4)
        eventually(lambda: len(setups(tmp_path, "hangs")) == 2, 90, "it is set up for its reader")
        (tmp_path / "go").touch()
        assert len(list(reader.take(4))) == 4
