"""What lies ready at a Loader is bounded in bytes, whatever the sizes; nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Server, serving, write_job_file
from invariants import eventually
from penstock.client import Limits, Loader
from penstock.common.prefetch import AHEAD_BYTES, fitting_ahead

DATA = """
import numpy

SIZES = (1_000, 300_000, 40_000)

class Items:
    def __len__(self):
        return 96

    def __getitem__(self, index):
        size = 6_000_000 if index == 40 else SIZES[index % 3]
        return {"n": numpy.int64(index), "x": numpy.full(size, index % 251, numpy.uint8)}

    def fingerprint(self):
        return "v1"
"""
BOUND = 2_000_000
"""Six of the batches of one lane, two thousand of another's, and a third of the largest one."""


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of three lanes whose batches are far apart in size."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "data.py").write_text(DATA)
    job = {
        "lanes": 3,
        "epochs": 1,
        "batches_per_step": 3,
        "source": {"type": "torch", "factory": "./data.py:Items"},
        "distributor": {"type": "map", "shuffle": "none"},
        "batch_size": 1,
    }
    return write_job_file(folder / "jobs.yaml", {"job": job}, workers=2)


@pytest.fixture(scope="module")
def server(job_file: Path) -> Iterator[Server]:
    """A node that serves it."""
    with serving(job_file) as server:
        yield server


def ranks(target: str, world_size: int) -> list[Loader]:
    return [
        Loader(
            target,
            "job",
            rank=rank,
            world_size=world_size,
            prefetch=1000,
            limits=Limits(prefetch_bytes=BOUND),
            as_numpy=True,
        )
        for rank in range(world_size)
    ]


def test_small_batches_are_fetched_many_ahead_by_themselves(server: Server) -> None:
    """By what has come; a large one among those that were asked for does not go above the bound."""
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        first = next(batches)

        # At least as many as if all were as large as the second one.
        least = fitting_ahead(301_000)
        eventually(lambda: loader.stats()["buffered_batches"] >= least, 30, "many lie ready")
        assert loader.stats()["buffer_bytes"] <= AHEAD_BYTES
        rest = list(batches)

    assert [one.position for one in (first, *rest)] == list(range(96))


@pytest.mark.parametrize(
    ("batch_bytes", "ahead"),
    [(0, 4), (1, 64), (AHEAD_BYTES // 64, 64), (AHEAD_BYTES // 5, 5), (3 << 20, 4), (1 << 32, 4)],
)
def test_a_small_number_lies_ahead_whatever_the_size(batch_bytes: int, ahead: int) -> None:
    assert fitting_ahead(batch_bytes) == ahead


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_bound_in_bytes_holds_and_everything_arrives(server: Server, world_size: int) -> None:
    """Also with lanes far apart in size, and a batch that is larger than the bound."""
    loaders = ranks(server.address, world_size)
    iterators = [iter(loader) for loader in loaders]
    seen: dict[int, int] = {}
    most = 0
    for turn in range(96 // world_size):
        for loader, iterator in zip(loaders, iterators, strict=True):
            batch = next(iterator)
            assert (batch["x"] == batch["n"][0] % 251).all()
            seen[batch.position] = int(batch["n"][0])
            if turn == 0 and world_size == 1:
                # Nobody takes anything now: it fills up to the bound, and stops there.
                eventually(lambda at=loader: at.stats()["buffer_bytes"] > BOUND // 2, 30, "filled")
            most = max(most, loader.stats()["buffer_bytes"])
    ends = [next(iterator, None) for iterator in iterators]
    for loader in loaders:
        assert loader.stats()["buffer_bytes_limit"] == BOUND
        loader.close()

    assert seen == {position: position for position in range(96)}
    assert ends == [None] * world_size
    assert most <= BOUND


def test_local_keeps_the_bound_too(job_file: Path) -> None:
    """The same positions in the same order, from a process beside this one."""
    [loader] = ranks(f"local:{job_file}", 1)

    most, positions = 0, []
    for batch in loader:
        positions.append(batch.position)
        most = max(most, loader.stats()["buffer_bytes"])
    loader.close()

    assert positions == list(range(96))
    assert most <= BOUND


def test_a_stream_that_breaks_keeps_the_bound(job_file: Path) -> None:
    """What arrived before the break counts on the next stream, so the two do not add up."""
    with serving(job_file, "--store", "sqlite:///own.db") as server:
        [loader] = ranks(server.address, 1)
        iterator = iter(loader)
        most, positions = 0, []
        for turn in range(96):
            positions.append(next(iterator).position)
            most = max(most, loader.stats()["buffer_bytes"])
            if turn == 20:
                address = server.address
                server.kill()
                server.command += ["--listen", address]
                server.start()
        loader.close()

    assert positions == list(range(96))
    assert most <= BOUND
