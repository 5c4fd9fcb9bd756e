"""A training run under random kills: nothing is lost, repeated or changed, whoever dies when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fault.run import WORLD_SIZES, Run

pytestmark = pytest.mark.fault


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """A run that ends with its test."""
    job, seed = request.param
    started = Run(tmp_path, seed, job)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.parametrize(
    "run", [("packed", 1), ("sized", 2)], indirect=True, ids=["packed", "sized"]
)
def test_the_server_may_die_at_any_moment(run: Run) -> None:
    """Ranks reconnect by themselves, at the exact position; answered commits survive."""
    for world_size in (2, 3):
        run.start_attempt(world_size)
        for _ in range(3):
            run.progress(run.rng.randrange(1, 3 * 12))
            run.kill_server()
        run.progress(12)
        run.end_attempt()

    assert run.kills["server"] == 6
    assert run.purity.seen > 10 * 12


@pytest.mark.parametrize("run", [("packed", 3)], indirect=True, ids=["packed"])
def test_ranks_may_die_at_any_moment(run: Run) -> None:
    """Attempts of any number of ranks, killed one by one or together, add up to one log."""
    for _ in range(8):
        run.start_attempt(run.rng.choice(WORLD_SIZES))
        for _ in range(run.rng.randrange(3)):
            run.progress(run.rng.randrange(1, 40))
            run.kill_rank()
        run.progress(run.rng.randrange(1, 40))
        run.end_attempt()

    assert run.kills["rank"] >= 12


@pytest.mark.parametrize(
    "run",
    [("packed", 4), ("sized", 5), ("later", 6)],
    indirect=True,
    ids=["packed", "sized", "later"],
)
def test_everything_may_die_at_any_moment(run: Run) -> None:
    """Server, workers and ranks, in any order: the invariants hold behind every attempt."""
    for _ in range(3):
        run.start_attempt(run.rng.choice(WORLD_SIZES))
        for _ in range(7):
            run.progress(run.rng.randrange(1, 20))
            run.rng.choice([run.kill_worker] * 5 + [run.kill_server, run.kill_rank])()
        run.end_attempt()

    assert run.kills.total() >= 18, run.kills
