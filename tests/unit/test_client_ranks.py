# ruff: noqa: D102 - the stand-in for a mesh has torch's methods
"""Which rank a process is, and what token its attempt has: found in order, refused by name."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.client.run.attempt import attempt_token
from penstock.client.run.ranks import Ranks, WorldRank, discover, log_world_rank, mesh_dimensions
from penstock.wire.errors import InvalidRequest, RankOutOfRange
from ports import free_port


@dataclass
class Mesh:
    """What is asked of a torch DeviceMesh: names, sizes, this process's coordinate."""

    mesh_dim_names: tuple[str, ...] | None
    sizes: tuple[int, ...]
    coordinate: tuple[int, ...] | None

    def size(self, axis: int) -> int:
        return self.sizes[axis]

    def get_coordinate(self) -> list[int] | None:
        return None if self.coordinate is None else list(self.coordinate)


def test_arguments_come_before_everything() -> None:
    mesh = Mesh(("dp",), (4,), (1,))
    environ = {"RANK": "7", "WORLD_SIZE": "8"}

    assert discover(Ranks(2, 3, mesh), environ) == WorldRank(2, 3, "arguments")
    assert discover(Ranks(mesh=mesh), environ).source == "mesh dimensions dp"


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, WorldRank(0, 1, "single process")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, WorldRank(1, 2, "RANK/WORLD_SIZE")),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, WorldRank(3, 4, "SLURM_PROCID/SLURM_NTASKS")),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"},
            WorldRank(1, 2, "RANK/WORLD_SIZE"),
        ),
        ({"SLURM_NTASKS": "4"}, WorldRank(0, 1, "single process")),
    ],
)
def test_launchers_are_asked_in_order(environ: dict[str, str], place: WorldRank) -> None:
    assert discover(Ranks(), environ) == place


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'"),
        ({"RANK": "1", "WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"RANK": "1"}, "WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "RANK is not: each process would read everything"),
        ({"SLURM_PROCID": "0"}, "SLURM_NTASKS is not"),
    ],
)
def test_a_variable_that_cannot_be_is_named(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        discover(Ranks(), environ)


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "1"}, {"SLURM_NTASKS": "4"}])
def test_a_size_alone_that_says_nothing_is_a_single_process(environ: dict[str, str]) -> None:
    """Slurm sets its size for a shell that holds an allocation, too."""
    assert discover(Ranks(), environ) == WorldRank(0, 1, "single process")


def test_a_rank_outside_its_world_is_refused() -> None:
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(RankOutOfRange, match=f"rank {rank} is not one of {world}"):
            discover(Ranks(rank, world))
    with pytest.raises(RankOutOfRange, match="RANK/WORLD_SIZE"):
        discover(Ranks(), {"RANK": "5", "WORLD_SIZE": "4"})


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="rank= is given without world_size="):
        Ranks(1, None)
    with pytest.raises(InvalidRequest, match="world_size= is given without rank="):
        Ranks(None, 2)


def test_peers_of_other_dimensions_are_replicas_of_one_rank() -> None:
    """Over the whole mesh: the rank is row-major over the dp dimensions, whatever tp and cp are."""
    names, sizes = ("dp_replicate", "dp_shard", "cp", "tp"), (2, 3, 2, 2)
    for coordinate in itertools.product(*map(range, sizes)):
        place = discover(Ranks(mesh=Mesh(names, sizes, coordinate), cp="cp", tp="tp"))

        assert (place.rank, place.world_size) == (coordinate[0] * 3 + coordinate[1], 6)
        only = discover(Ranks(mesh=Mesh(names, sizes, coordinate), dp="dp_shard"))
        assert (only.rank, only.world_size) == (coordinate[1], 3)


@pytest.mark.parametrize(
    ("mesh", "options", "sentence"),
    [
        (Mesh(None, (2,), (0,)), {}, "no dimension names"),
        (Mesh(("x", "y"), (2, 2), (0, 0)), {}, "pass dp="),
        (Mesh(("dp",), (2,), (0,)), {"dp": "data"}, "no dimension 'data'"),
        (Mesh(("dp",), (2,), None), {}, "not in mesh="),
        (Mesh(("dp", "tp"), (2, 2), (0, 0)), {"cp": "cp"}, "cp='cp'"),
        (Mesh(("dp",), (2,), (0,)), {"tp": "dp"}, "counts as data-parallel"),
    ],
)
def test_a_mesh_that_does_not_fit_says_why(
    mesh: Mesh, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        discover(Ranks(mesh=mesh, **options))


def test_dimensions_keep_the_meshs_order() -> None:
    mesh = Mesh(("dp_replicate", "dp_shard", "tp"), (2, 2, 2), (0, 0, 0))

    assert mesh_dimensions(mesh, ("dp_shard", "dp_replicate")) == ["dp_replicate", "dp_shard"]


def test_the_choice_is_logged_with_its_source(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock"):
        log_world_rank(WorldRank(1, 4, "RANK/WORLD_SIZE"), "code")
        log_world_rank(WorldRank(1, 4, "torch.distributed"), "code")

    first, second = (record.message for record in caplog.records)
    assert "rank 1 of 4 (from RANK/WORLD_SIZE)" in first
    assert "pass mesh=" in second


# --- attempts ---

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "abc",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "WORLD_SIZE": "4",
}
SLURM = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}
FOUR = WorldRank(1, 4, "RANK/WORLD_SIZE")


def test_a_token_is_alike_on_all_ranks_and_differs_between_starts() -> None:
    other = WorldRank(3, 4, "RANK/WORLD_SIZE")
    for environ, changes in (
        (
            TORCHRUN,
            [{"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "1"}, {"WORLD_SIZE": "3"}],
        ),
        (SLURM, [{"SLURM_JOB_ID": "18"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}]),
    ):
        token = attempt_token(None, FOUR, environ)

        assert token == attempt_token(None, other, environ)
        for change in changes:
            assert token != attempt_token(None, FOUR, environ | change)


def test_a_lone_process_draws_a_token_of_its_own() -> None:
    alone = WorldRank(0, 1, "single process")

    assert attempt_token(None, alone, {}) != attempt_token(None, alone, {})
    assert attempt_token("mine", alone, TORCHRUN) == "mine"


@pytest.mark.parametrize(
    "environ",
    [{}, TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4"}],
)
def test_ranks_that_share_nothing_are_told_to_pass_an_attempt(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="pass attempt="):
        attempt_token(None, FOUR, environ)


def test_an_empty_attempt_is_refused() -> None:
    for attempt in ("", "x" * 201):
        with pytest.raises(InvalidRequest, match="1 to 200"):
            attempt_token(attempt, FOUR, {})


def _rank(rank: int, port: int, address: str, results: Any) -> None:
    import torch.distributed as dist

    from penstock.client import Loader

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    with Loader(address, "code", group="run", batches_per_step=4) as loader:
        step = next(loader.steps())
        total = step.total("tokens")
        positions = [batch.position for batch in step]
        results.put((rank, total, step.per_rank("tokens"), positions, loader.world_rank.source))
        dist.barrier()
    dist.destroy_process_group()


@pytest.mark.torch
def test_processes_of_torch_distributed_share_a_token_and_sum_over_all() -> None:
    """Two real processes over gloo: one generation, each rank's count of the step, on both."""
    from unit.served import ServedNode

    port = free_port()
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    with ServedNode() as node:
        ranks = [
            spawn.Process(target=_rank, args=(rank, port, node.address, results))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        found = sorted(results.get(timeout=120) for _ in ranks)
        for process in ranks:
            process.join(60)

        assert [process.exitcode for process in ranks] == [0, 0]
        assert node.group().generation == 1
    total = sum(10 + position for position in range(4))
    assert found == [
        (0, total, (10 + 12, 11 + 13), [0, 2], "torch.distributed"),
        (1, total, (10 + 12, 11 + 13), [1, 3], "torch.distributed"),
    ]
