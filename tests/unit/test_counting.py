"""The pass that finds where lanes end, in processes of its own: what it says arrives, or waits."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

from structlog.testing import capture_logs

from harness import write_job_file
from penstock.server.job import Job
from penstock.server.jobs.load import load
from penstock.server.node.counting import Count

ROLES = """
def one(raw):
    return [{"x": raw["x"]}]
"""


def make_job(folder: Path, lanes: int) -> Job:
    """Return a finite job whose lanes' ends no arithmetic says."""
    (folder / "roles.py").write_text(ROLES)
    section = {
        "lanes": lanes,
        "epochs": 1,
        "source": {"type": "items", "items": [{"x": number} for number in range(3)]},
        "function": "./roles.py:one",
        "batch_size": 1,
    }
    return load(str(write_job_file(folder / "jobs.yaml", {"job": section}))).job("job")


async def test_the_ends_of_very_many_lanes_arrive(tmp_path: Path) -> None:
    """One process says those of all its lanes at once."""
    job = make_job(tmp_path, 6000)

    ends = await Count(job, 1, 60.0).run()

    assert (len(ends), sum(ends)) == (6000, 3)


async def test_counting_waits_for_a_system_that_has_nothing_left(tmp_path: Path) -> None:
    """No process or file could be had; the node, whose readers do not need the count, goes on."""
    job = make_job(tmp_path, 2)
    assert job.log_id  # as a node has it, long before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as said:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            counted = asyncio.ensure_future(Count(job, 1, 60.0).run())
            while not any(line["event"] == "counting waits" for line in said):
                assert not counted.done()
                await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sum(await counted) == 3
