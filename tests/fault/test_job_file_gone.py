"""A job file that is edited or deleted under a running node changes nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.jobs import write_jobs
from harness import children, kill_process, serving, write_job_file
from invariants import Purity
from penstock.server.jobs.definition import rebuild
from penstock.server.jobs.load import load
from penstock.server.store import SqliteStore

pytestmark = pytest.mark.fault

CODE = """
from penstock.server.job.job import Job
from penstock.server.sources import ItemsSource


def main():
    items = ItemsSource([{"x": number} for number in range(40)])
    return Job(items, batch_size=2, lanes=3, seed=5, name="main")
"""


@pytest.mark.parametrize("edit", ["deleted", "edited"])
async def test_a_replaced_worker_makes_the_same_bytes(tmp_path: Path, edit: str) -> None:
    """The node sends what its workers build; its store holds it for whoever comes later."""
    file = write_jobs(tmp_path, workers=1)
    job = load(str(file)).job("packed")
    purity = Purity(job)
    with serving(file) as server:
        reader = server.read("packed", horizon=12)
        batches = iter(reader)
        for _ in range(12):
            purity.saw(*next(batches))
        file.unlink()
        if edit == "edited":
            other = {"seed": 1, "source": {"type": "items", "items": [1]}, "batch_size": 1}
            write_job_file(file, {"packed": other, "sized": other})
        for pid in children(server.process.pid):
            kill_process(pid)
        reader.extend(60)
        for _ in range(48):
            purity.saw(*next(batches))
        reader.cancel()
        assert server.events("a worker was replaced", at_least=1)
        assert server.terminate() == 0

    store = SqliteStore(tmp_path / "penstock.db")
    await store.open()
    kept = await store.definition(job.log_id)
    await store.close()
    assert kept == job.definition
    assert rebuild(kept, job.log_id).log_id == job.log_id
    assert purity.seen == 60


def test_code_that_builds_jobs_runs_again_in_a_replaced_worker(tmp_path: Path) -> None:
    """No text says what code may build, so the workers run it, as long as it is what it was."""
    code = tmp_path / "jobs.py"
    code.write_text(CODE)
    purity = Purity(load(f"{code}:main").job("main"))
    listen = ("--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "1")
    with serving(f"{code}:main", *listen, "--log-format", "json") as server:
        reader = server.read("main", horizon=6)
        batches = iter(reader)
        for _ in range(6):
            purity.saw(*next(batches))
        for pid in children(server.process.pid):
            kill_process(pid)
        reader.extend(18)
        for _ in range(12):
            purity.saw(*next(batches))
        reader.cancel()

    assert purity.seen == 18
