"""Which data-parallel rank this process is, and of how many: logged once, with where it was found.

Tensor-, context- and pipeline-parallel peers must read the same batches: they are replicas of one
data-parallel rank. With a mesh that follows from its dimensions; without one it cannot be known, so
what was chosen is logged.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.calls.background_thread import log_in_background
from penstock.common.checks import integer_argument
from penstock.wire.errors import InvalidRequest, RankOutOfRange

logger = logging.getLogger("penstock")

_LAUNCHERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


@dataclass(frozen=True)
class WorldRank:
    """A data-parallel rank.

    Attributes:
        rank: Below `world_size`.
        world_size: W.
        source: Where the numbers come from: arguments, mesh, torch.distributed, variables, single.
    """

    rank: int
    world_size: int
    source: str

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise RankOutOfRange(
                f"rank {self.rank} is not one of {self.world_size} ranks ({self.source}): "
                "ranks go from 0 to world_size - 1",
                rank=self.rank,
                world_size=self.world_size,
            )


@dataclass(frozen=True)
class Ranks:
    """Which data-parallel rank a Loader reads as, where that takes more than `rank=` or `mesh=`.

    What is left out is taken from the mesh, torch.distributed, RANK or SLURM_PROCID, in this order.

    Args:
        rank: The data-parallel rank; given together with `world_size`.
        world_size: How many data-parallel ranks there are.
        mesh: A torch `DeviceMesh`: ranks that differ only in other dimensions than the
            data-parallel ones read the same batches.
        dp: The names of its data-parallel dimensions. `None` takes those with `dp` in their name.
        cp: The names of its context-parallel dimensions; they are checked against the mesh.
        tp: The names of its tensor-parallel dimensions; they are checked against the mesh.
        pp: The names of its pipeline-parallel dimensions; they are checked against the mesh.

    Raises:
        InvalidRequest: Only one of `rank` and `world_size` is given, a number is not an integer, or
            dimensions are named without a mesh.
    """

    rank: int | None = None
    world_size: int | None = None
    mesh: Any = None
    dp: str | Sequence[str] | None = None
    cp: str | Sequence[str] | None = None
    tp: str | Sequence[str] | None = None
    pp: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("rank", "world_size"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, integer_argument(name, value))
        if (self.rank is None) != (self.world_size is None):
            given, missing = ("rank", "world_size")
            if self.rank is None:
                given, missing = missing, given
            raise InvalidRequest(f"{given}= is given without {missing}=: pass both, or neither")
        for name in ("dp", *OTHER_DIMENSIONS):
            names = getattr(self, name)
            if names is not None and not _are_names(names):
                raise InvalidRequest(f"{name}={names!r}: pass the name of a dimension, or several")
        named = [name for name in ("dp", *OTHER_DIMENSIONS) if getattr(self, name) is not None]
        if named and self.rank is None and self.mesh is None:
            names = ", ".join(f"{name}=" for name in named)
            raise InvalidRequest(f"{names} stands for dimensions of a mesh: pass mesh= too")

    @property
    def is_given(self) -> bool:
        """Whether anything was given."""
        return self.rank is not None or self.mesh is not None

    @property
    def others(self) -> dict[str, str | Sequence[str]]:
        """The names of the mesh's other dimensions, by what they are."""
        found = {kind: getattr(self, kind) for kind in OTHER_DIMENSIONS}
        return {kind: names for kind, names in found.items() if names is not None}


OTHER_DIMENSIONS = ("cp", "tp", "pp")


def discover(ranks: Ranks, environ: Mapping[str, str] | None = None) -> WorldRank:
    """Return which rank this is: from arguments, mesh, torch.distributed, variables, or alone.

    Args:
        ranks: What the caller has given.
        environ: The environment; default: the process's.

    Raises:
        InvalidRequest: A variable is not a number, or the mesh has no such dimension.
        RankOutOfRange: The rank is not below the world size.
    """
    if ranks.rank is not None and ranks.world_size is not None:
        return WorldRank(ranks.rank, ranks.world_size, "arguments")
    if ranks.mesh is not None:
        return _from_mesh(ranks)
    return (
        _from_torch() or _from_launcher(os.environ if environ is None else environ)
    ) or WorldRank(0, 1, "single process")


def log_world_rank(world_rank: WorldRank, job: str) -> None:
    """Log which rank was chosen and why."""
    hint = ""
    if world_rank.source == "torch.distributed" and world_rank.world_size > 1:
        hint = (
            "; with tensor, context or pipeline parallelism pass mesh= so that peers read the same"
        )
    log_in_background(
        logger.info,
        "job %r: data-parallel rank %d of %d (from %s%s)",
        job,
        world_rank.rank,
        world_rank.world_size,
        world_rank.source,
        hint,
    )


def mesh_dimensions(mesh: Any, dp: str | Sequence[str] | None) -> list[str]:
    """Return the names of the mesh's data-parallel dimensions, in the mesh's order.

    Raises:
        InvalidRequest: The mesh has no names, lacks one that is given, or none contains "dp".
    """
    if not hasattr(mesh, "mesh_dim_names"):
        raise InvalidRequest(f"mesh={mesh!r}: pass a DeviceMesh of torch.distributed")
    names = list(mesh.mesh_dim_names or ())
    if not names:
        raise InvalidRequest("mesh= has no dimension names: make it with mesh_dim_names=")
    wanted = [name for name in names if "dp" in name] if dp is None else _names(dp)
    if missing := [name for name in wanted if name not in names]:
        raise InvalidRequest(
            f"mesh= has no dimension {missing[0]!r}: it has {', '.join(names)}",
            field="dp",
            value=wanted,
        )
    if not wanted:
        raise InvalidRequest(
            f"none of the mesh's dimensions {', '.join(names)} is named like data parallelism: "
            "pass dp= with the names of those that are"
        )
    return [name for name in names if name in wanted]


def _from_mesh(ranks: Ranks) -> WorldRank:
    mesh = ranks.mesh
    dimensions = mesh_dimensions(mesh, ranks.dp)
    names = list(mesh.mesh_dim_names)
    for kind, given in ranks.others.items():
        for name in _names(given):
            if name not in names:
                raise InvalidRequest(
                    f"{kind}={name!r}: mesh= has no such dimension, it has {', '.join(names)}"
                )
            if name in dimensions:
                raise InvalidRequest(
                    f"dimension {name!r} is given as {kind}= and counts as data-parallel: "
                    "pass dp= with the names of those that are"
                )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidRequest("this process is not in mesh=: make the Loader where the mesh is used")
    rank, world_size = 0, 1
    for name in dimensions:  # row-major over the data-parallel dimensions
        axis = names.index(name)
        size = int(mesh.size(axis))
        rank = rank * size + int(coordinate[axis])
        world_size *= size
    return WorldRank(rank, world_size, f"mesh dimensions {', '.join(dimensions)}")


def _are_names(given: Any) -> bool:
    several = given if isinstance(given, list | tuple) else [given]
    return bool(several) and all(isinstance(name, str) and name for name in several)


def _names(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _from_torch() -> WorldRank | None:
    dist = torch_distributed()
    return (
        None
        if dist is None
        else WorldRank(dist.get_rank(), dist.get_world_size(), "torch.distributed")
    )


def torch_distributed() -> Any:
    """Return `torch.distributed` where it is initialised, else None; never imports torch."""
    # Looked up, not imported: while another thread imports torch an import would wait for it, with
    # locks that a signal can leave behind, and what is not imported yet is not initialised either.
    dist: Any = sys.modules.get("torch.distributed")
    is_initialized = getattr(dist, "is_initialized", None)
    return dist if is_initialized is not None and is_initialized() else None


def _from_launcher(environ: Mapping[str, str]) -> WorldRank | None:
    for rank_name, size_name in _LAUNCHERS:
        if rank_name not in environ:
            # Slurm sets its size for every process in an allocation, even where no task was
            # started.
            if size_name == "WORLD_SIZE" and environ.get(size_name, "1") != "1":
                raise InvalidRequest(
                    f"{size_name} is set to {environ[size_name]!r} and {rank_name} is not: each "
                    "process would read everything; set both, or pass rank= and world_size="
                )
            continue
        if size_name not in environ:
            raise InvalidRequest(
                f"{rank_name} is set to {environ[rank_name]!r} and {size_name} is not: set both, "
                "or pass rank= and world_size="
            )
        rank, size = (_number(environ, name) for name in (rank_name, size_name))
        return WorldRank(rank, size, f"{rank_name}/{size_name}")
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise InvalidRequest(
            f"the environment variable {name} is {environ[name]!r}, which is not a number: correct "
            "it, or pass rank= and world_size=",
            field="variable",
            value=name,
        ) from None
