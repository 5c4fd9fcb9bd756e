"""SIGKILL of workers at random moments: readers notice a pause, and never another byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fault.jobs import write_jobs
from harness import children, kill_process, serving
from invariants import Purity, check_bounds, eventually
from penstock.server.jobs.load import load
from penstock.server.node.demand.made_ahead import AHEAD_PER_WORKER, CHEAP_AHEAD

pytestmark = pytest.mark.fault

KILLS = 10


@pytest.mark.parametrize(("job", "workers"), [("packed", 1), ("packed", 3), ("sized", 2)])
def test_any_worker_may_die_at_any_moment(tmp_path: Path, job: str, workers: int) -> None:
    """Behind every kill the stream goes on at the exact position, with the bytes of `local:`."""
    rng = random.Random(f"{job} {workers}")
    file = write_jobs(tmp_path, workers=workers, snapshot_seconds=0.05)
    built = load(str(file)).jobs[job]
    purity = Purity(built)
    with serving(file) as server:
        reader = server.read(job, horizon=6)
        batches = iter(reader)
        got: list[int] = []
        # A batch over which workers end three times is given up: after every second kill all that
        # may have been under way is read.
        ahead = 6 + CHEAP_AHEAD * AHEAD_PER_WORKER * workers
        kills = 0
        while kills < KILLS:
            until = len(got) + rng.randrange(1, 12)
            if kills and kills % 2 == 0:
                until += ahead
            while len(got) < until:
                delivered = next(batches)
                purity.saw(*delivered)
                got.append(delivered.header.position)
                reader.extend(len(got) + 6)
            pids = server.worker_pids()
            if pids:
                kills += kill_process(rng.choice(pids))
        died = len(server.events("a worker died", at_least=KILLS // 2))
        # Lanes overtake each other below the horizon: what was accepted is read to its end.
        horizon = len(got) + 36
        reader.extend(horizon)
        while len(got) < horizon:
            delivered = next(batches)
            purity.saw(*delivered)
            got.append(delivered.header.position)
        largest = max(len(purity.truth(position)[2]) for position in got)
        check_bounds(server.status(), largest)
        eventually(
            lambda: len(server.worker_pids()) == workers, 60, "every worker has been replaced"
        )
        reader.cancel()

    assert died >= KILLS // 2
    assert sorted(got) == list(range(len(got)))
    assert not server.events("a bug")


def test_a_worker_that_dies_while_it_starts_is_replaced(tmp_path: Path) -> None:
    """Killed again and again before it is ready: the node stays, and reading goes on."""
    file = write_jobs(tmp_path, workers=1)
    purity = Purity(load(str(file)).jobs["packed"])
    with serving(file) as server:
        reader = server.read("packed", horizon=10)
        batches = iter(reader)
        for _ in range(10):
            purity.saw(*next(batches))
        dead: set[int] = set()
        while len(dead) < 4:
            for pid in children(server.process.pid):
                if pid not in dead and kill_process(pid):
                    dead.add(pid)
        reader.extend(30)
        for _ in range(20):
            purity.saw(*next(batches))
        reader.cancel()

    assert purity.seen == 30
