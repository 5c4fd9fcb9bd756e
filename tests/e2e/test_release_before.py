"""The release before runs beside this one, over one store: a rolling update meets both versions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postgres
from harness import Server, call_command, write_job_file
from penstock.client import Loader
from venvs import venv_with

CHECKOUT = Path(__file__).parents[2]

BEFORE = "1451619dc2335a6ee79346675933be0603df57c9"
"""What was released last, as a commit: a wheel is built of it."""

LANES, COUNT = 6, 240
JOBS: dict[str, Any] = {
    "packed": {
        "lanes": LANES,
        "source": {"type": "items", "items": [{"n": number} for number in range(97)]},
        "function": "./roles.py:document",
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 16},
        "collator": {"type": "packed", "pad_to": 64},
        "snapshot_every": 4,
    }
}
ROLES = """
import numpy as np


def document(raw):
    return {"input_ids": np.full(5 + raw["n"] * 7919 % 32, raw["n"], np.int32)}
"""


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in the checkout."""
    return subprocess.run(
        ["git", "-C", str(CHECKOUT), *arguments], capture_output=True, check=False
    )


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of a venv with the release before."""
    folder = tmp_path_factory.mktemp("before")
    archive = git("archive", BEFORE)
    if archive.returncode:
        pytest.skip(f"NOT RUN: git has no commit {BEFORE[:8]} here")
    source = folder / "source"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return venv_with(folder / "venv", str(wheel))


@pytest.fixture
def nodes(tmp_path: Path, before: Path) -> Iterator[tuple[Server, Server]]:
    """Give a node of the release before, which has made the store, and one of this tree."""
    (tmp_path / "roles.py").write_text(ROLES)
    url = postgres.in_schema(postgres.local_18(), postgres.new_schema())
    file = write_job_file(tmp_path / "penstock.yaml", JOBS, store=url)
    old = Server(file, python=before, environment={"PYTHONPATH": ""})
    new = Server(file)
    try:
        old.start()
        new.start()
        yield old, new
    finally:
        old.close()
        new.close()


def read(target: str, count: int = COUNT, group: str | None = None, **more: Any) -> list[bytes]:
    """Read and commit; return what batches hold."""
    given = []
    options = {"rank": 0, "world_size": 1, "batches_per_step": LANES, "as_numpy": True}
    with Loader(target, "packed", group=group, **options, **more) as loader:
        for step in loader.steps():
            given += [batch["input_ids"].tobytes() for batch in step]
            if group is not None:
                loader.commit()
            if len(given) >= count:
                return given
    raise AssertionError("an endless job has ended")


def test_a_run_goes_over_from_the_release_before_to_this_one(
    nodes: tuple[Server, Server], tmp_path: Path
) -> None:
    """Both serve one log with the same bytes; either goes on where the other has committed.

    The older one is drained in the middle, as a rolling update does it.
    """
    old, new = nodes
    truth = read(f"local:{tmp_path / 'penstock.yaml'}", 3 * COUNT)

    assert read(old.address, group="run") == truth[:COUNT]
    both = f"{old.address},{new.address}"
    assert read(both, group="run") == truth[COUNT : 2 * COUNT]
    shown = call_command("penstock", "nodes", both, "--json", "--interval", "0.1")
    assert json.loads(shown.stdout)["left_out"] == []
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "batches_per_step": LANES}
    with Loader(both, "packed", group="run", as_numpy=True, **options) as loader:
        given: list[bytes] = []
        for step in loader.steps():
            given += [batch["input_ids"].tobytes() for batch in step]
            loader.commit()
            if len(given) == COUNT // 2:
                assert old.terminate() == 0
            if len(given) == COUNT:
                break
    assert given == truth[2 * COUNT :]
    assert not new.events("a lane stopped")
