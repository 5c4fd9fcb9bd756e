"""Workers that are started before their node is made, and are taken by it, or started anew."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from harness import serve_by, write_job_file
from penstock.server.node.early import start_early
from penstock.server.node.messages import FromWorker, Ready
from penstock.server.node.process import WorkerProcess
from penstock.server.sources.catalog import Catalog, pack_catalogs, take_catalogs


async def test_a_worker_of_a_node_is_the_one_that_was_started_before() -> None:
    """It says that it is ready to whoever takes it, and it is taken once."""
    with start_early(2) as early:
        pids = [process.process.pid for process in early.processes.values()]
        heard: asyncio.Queue[FromWorker] = asyncio.Queue()
        worker = WorkerProcess(
            1,
            lambda _, message: heard.put_nowait(message),
            lambda _: None,
            files_fd=early.files_fd,
            early=early,
        )

        worker.start(asyncio.get_running_loop())

        assert worker.pid == pids[1]
        assert isinstance(await asyncio.wait_for(heard.get(), 60), Ready)
        assert early.take(1) is None
        worker.close()


def test_one_that_was_started_in_another_environment_is_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where code that builds jobs changes the environment, or where modules are found."""
    with start_early(1) as early:
        [process] = early.processes.values()
        monkeypatch.setenv("SOMEBODY_SAID", "this")

        assert early.take(0) is None
        assert process.process.returncode is not None


def test_the_memory_of_catalogs_may_be_filled_after_it_was_passed_on(tmp_path: Path) -> None:
    """Whoever has the descriptor sees what was packed, and nobody can change it then."""
    with start_early(0) as early:
        passed_on = os.dup(early.files_fd)

        assert pack_catalogs([Catalog("0" * 64)], early.files_fd) == early.files_fd

        assert os.fstat(passed_on).st_size > 0
        with pytest.raises(PermissionError):
            os.write(passed_on, b"x")
        take_catalogs(passed_on)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(passed_on)


COUNTED = """
import subprocess, sys

class Counted(subprocess.Popen):
    def __init__(self, command, *rest, **how):
        super().__init__(command, *rest, **how)
        print(" ".join(command[3:4]), file=open("started", "a"))

subprocess.Popen = Counted
from penstock.server.cli import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_node_starts_each_worker_once(tmp_path: Path) -> None:
    """What it settles between their start and its own, such as its log, is not another start."""
    job = {"source": {"type": "items", "items": [1]}, "lanes": 1, "batch_size": 1}
    file = write_job_file(tmp_path / "jobs.yaml", {"one": job}, workers=2)

    serve_by(COUNTED, "serve", str(file), "--log-format", "json", folder=tmp_path)

    started = (tmp_path / "started").read_text().split()
    assert started == ["penstock.server.node.worker_main"] * 2
