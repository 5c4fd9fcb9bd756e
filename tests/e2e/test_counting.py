"""Where lanes end, found out for who asks: by few processes, from what is known, and accounted."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from harness import children, write_job_file
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.node.node import Node
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply import counting
from penstock.server.node.supply.counting import count_processes
from penstock.server.store import MemoryStore
from penstock.wire.order import Cut, Share

ROLES = '''
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).parent
CALLS = os.open(HERE / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def one(raw):
    """Give one sample of an item, but of each seventh; note the process."""
    counts = sys.argv[0].endswith("count.py")
    os.write(CALLS, f"{'count' if counts else 'line'} {os.getpid()}\\n".encode())
    while counts and (HERE / f"hold {raw['x']}").exists():
        time.sleep(0.01)
    if counts and (HERE / "slow").exists():
        time.sleep(0.05)
    return [{"x": raw["x"]}] if raw["x"] % 7 else None
'''


def make_jobs(folder: Path, lanes: int, items: int, names: tuple[str, ...]) -> dict[str, Job]:
    """Return finite jobs whose lanes' ends no arithmetic says."""
    (folder / "roles.py").write_text(ROLES)
    section = {
        "lanes": lanes,
        "epochs": 1,
        "source": {"type": "items", "items": [{"x": number} for number in range(items)]},
        "function": "./roles.py:one",
        "batch_size": 1,
        "snapshot_every": 4,
    }
    sections = {name: {**section, "seed": number} for number, name in enumerate(names)}
    jobs = load(str(write_job_file(folder / "jobs.yaml", sections))).jobs
    return {name: jobs[name] for name in names}


def calls(folder: Path, kind: str) -> list[str]:
    """Return the processes that have called `one`, for each call: `count` or `line`."""
    if not (folder / "calls").exists():
        return []
    lines = map(str.split, (folder / "calls").read_text().splitlines())
    return [pid for what, pid in lines if what == kind]


class Noting(Observer):
    """Adds up what counting costs."""

    seconds = 0.0
    times = 0

    def counting(self, job: str, seconds: float, read_bytes: int, media_bytes: int) -> None:
        """Note it."""
        self.seconds += seconds
        self.times += 1


@asynccontextmanager
async def started(jobs: dict[str, Job], workers: int = 2, **options: Any) -> AsyncIterator[Node]:
    """Run a node."""
    store = MemoryStore()
    await store.open()
    node = Node(jobs, store, workers=workers, bound_bytes=1 << 20, **options)
    await node.start()
    try:
        yield node
    finally:
        await node.close()
        await store.close()


async def until(what: Callable[[], bool]) -> None:
    """Wait for something, at most a minute."""
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110 - what other processes do sets no event
            await asyncio.sleep(0.005)


async def count(node: Node, job: Job) -> None:
    """Have a job counted, as one that asks again and again does."""
    await until(lambda: node.count(job) is None)


async def test_nothing_is_counted_unless_somebody_asks(tmp_path: Path) -> None:
    """Then it is counted once: each item is processed once for it, and what it cost is told."""
    jobs = make_jobs(tmp_path, 3, 40, ("a", "b"))
    noted = Noting()
    async with started(jobs, observer=noted) as node:
        await count(node, jobs["a"])

        assert node.numbering(jobs["a"]).batches == sum(number % 7 > 0 for number in range(40))
        assert len(calls(tmp_path, "count")) == 40
        assert noted.times
        assert noted.seconds > 0
        assert node.numbering(jobs["b"]).batches is None


async def test_one_pool_counts_all_jobs_of_a_node(tmp_path: Path) -> None:
    """At no time count more processes than half of the workers, and every job has its turn."""
    names = tuple("abcdefghij")
    jobs = make_jobs(tmp_path, 4, 12, names)
    others = set(children(os.getpid()))  # such as what libraries of other tests have started
    async with started(jobs, workers=4) as node:
        assert count_processes(4) == 2
        most, workers = 0, others | {worker.pid for worker in node.workers}

        def counted() -> bool:
            nonlocal most
            most = max(most, len(set(children(os.getpid())) - workers))
            return not [job for job in jobs.values() if node.count(job) is not None]

        await until(counted)

        assert 1 <= most <= 2, "processes counted side by side"
        assert {node.numbering(job).batches for job in jobs.values()} == {10}


async def test_a_count_of_one_job_lets_others_by(tmp_path: Path) -> None:
    """One that takes long is left for a while, and then goes on where it was."""
    jobs = make_jobs(tmp_path, 1, 40, ("long", "short"))
    order = [item.index for item in _drawn(jobs["long"])]
    (tmp_path / f"hold {order[20]}").touch()
    async with started(jobs) as node:
        node.count(jobs["long"])
        await until(lambda: len(calls(tmp_path, "count")) >= 20)
        (tmp_path / f"hold {order[20]}").unlink()
        await count(node, jobs["short"])
        await count(node, jobs["long"])

    assert len(calls(tmp_path, "count")) <= 80, "what was counted was counted again"


async def test_a_count_is_left_when_nobody_asks_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends, and for the next one who asks it goes on where it was."""
    monkeypatch.setattr(counting, "WANTED_S", 0.1)
    jobs = make_jobs(tmp_path, 1, 400, ("a",))
    (tmp_path / "slow").touch()  # all of it takes 20 seconds
    others = set(children(os.getpid()))
    async with started(jobs) as node:
        workers = others | {worker.pid for worker in node.workers}
        while len(calls(tmp_path, "count")) < 20:
            node.count(jobs["a"])
            await asyncio.sleep(0.01)
        await until(lambda: not set(children(os.getpid())) - workers)
        before = len(calls(tmp_path, "count"))
        (tmp_path / "slow").unlink()
        await count(node, jobs["a"])

    assert before < 400, "nobody asked"
    assert len(calls(tmp_path, "count")) <= 400 + 32, "what was counted was counted again"


def _drawn(job: Job) -> list[Any]:
    draws = job.lane_roles(0)[0].open_draws()
    found = []
    while (item := draws.next()) is not None:
        found.append(item)
        draws.took(item, 0)
    return found


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_lines_have_planned_is_not_counted_again(
    tmp_path: Path, *, restarts: bool
) -> None:
    """Of a job that was read to a half the other half is counted; after a restart, too."""
    jobs = make_jobs(tmp_path, 1, 300, ("a",))
    job = jobs["a"]
    store = MemoryStore()
    await store.open()
    node = Node(jobs, store, workers=1, bound_bytes=1 << 20, snapshot_seconds=0.0)
    await node.start()
    await _read(node, job, 150)
    if restarts:
        await node.drain(60.0)
        await node.close()
        node = Node(jobs, store, workers=1, bound_bytes=1 << 20)
        await node.start()
    await count(node, job)
    await node.close()
    await store.close()

    processed = len(calls(tmp_path, "line")) + len(calls(tmp_path, "count"))
    assert 300 <= processed <= 300 + 32, "as much as was processed ahead may be so twice"


async def _read(node: Node, job: Job, batches: int) -> None:
    woken = asyncio.Event()
    reader = node.open(job, Share(1, 0, 1), Cut(1), 0, None, woken.set)
    node.extend(reader, batches)
    async with asyncio.timeout(60):
        for _ in range(batches):
            while (entry := node.take(reader)) is None:
                woken.clear()
                await woken.wait()
            node.sent(reader, entry)
    node.leave(reader)


async def test_the_ends_of_very_many_lanes_arrive(tmp_path: Path) -> None:
    """One process says those of all its lanes at once."""
    jobs = make_jobs(tmp_path, 6000, 4, ("a",))
    async with started(jobs) as node:
        await count(node, jobs["a"])

        assert node.numbering(jobs["a"]).batches == 3


async def test_counting_waits_for_a_system_that_has_nothing_left(tmp_path: Path) -> None:
    """No process or file could be had; the node, whose readers do not need the count, goes on."""
    jobs = make_jobs(tmp_path, 2, 3, ("a",))
    job = jobs["a"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with started(jobs) as node:
        with capture_logs() as said:
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                node.count(job)
                await until(lambda: any(line["event"] == "counting waits" for line in said))
                so_far = node.count(job)
                assert so_far is not None
                assert "cannot be counted at the moment" in so_far.text
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await count(node, job)
        assert node.numbering(job).batches == 2
