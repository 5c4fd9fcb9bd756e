"""Whole lanes to parts: a lane draws from one part alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from penstock.server.core.shares import Rotation, largest_remainder, whole_weights
from penstock.server.roles.distributor import Target
from penstock.server.roles.distributors.mixture_parts import (
    PartsDistributor,
    bind_part,
    check_apart,
    check_ends,
    part_identity,
    part_targets,
    read_parts,
    shuffles,
    weights_of,
)
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.reading import Reading
from penstock.server.roles.source import Source
from penstock.wire.errors import InvalidJob


class _Dealt(NamedTuple):
    """Where a lane belongs.

    Attributes:
        part: The number of its part.
        lane: Its number among the lanes of that part.
    """

    part: int
    lane: int


class RankPartitionedDistributor(PartsDistributor):
    """Deals whole lanes to parts by their weights: every batch is of one part.

    Each part gets its share of the lanes, at least one, by largest remainders; 48 lanes give
    weights to within a hundredth. Lanes of a part are spread over all lanes, so the batches of a
    step, which are of lanes that follow each other, hold the parts by their shares. A part that
    ends is over in its lanes only: with `epochs` they end at different offsets.

    Args:
        parts: The parts by name: a weight, or `weight` and `distributor`. A part draws from the
            source of its name, unless its `distributor` names another. Weights are relative; 0
            leaves a part out. Without weights each part weighs as many items as it has. Default:
            every source of the job.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "rank_partitioned"
    version: ClassVar[int | str | None] = 1
    ends_by_epochs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lanes_of: list[int] = []
        self._dealt: list[_Dealt] = []

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources and seed, deal the lanes, and bind the parts to theirs.

        Raises:
            InvalidJob: The parts do not fit the sources or each other, or are more than the lanes.
        """
        super().bind(sources, seed, epochs, lanes)
        self._taking = read_parts(self.parts, sources, self.part_keys)
        if len(self._taking) > lanes:
            raise InvalidJob(
                f"{len(self._taking)} parts need a lane each, and the job has {lanes}: give more "
                "lanes, or use a mixture",
                key="lanes",
            )
        if all(part.weight is None for part in self._taking):
            for part in self._taking:  # how many items they have is known when they are bound
                bind_part(part, sources, seed, epochs, lanes)
        self.lanes_of = largest_remainder(
            whole_weights(weights_of(self._taking), Fraction(1)), lanes
        )
        self._dealt = _deal(self.lanes_of)
        for part, own in zip(self._taking, self.lanes_of, strict=True):
            bind_part(part, sources, seed, epochs, own)
            if epochs is not None:
                check_ends(part, epochs, own)
        check_apart(self._taking)
        self._share_memory()

    def _share_memory(self) -> None:
        """Let parts that read storage blocks take no more memory together than one alone."""
        for each in shuffles(self.inner()) if len(self._taking) > 1 else ():
            groups = each.groups
            if groups is not None and groups.number > 1:
                each.beside(None, None, groups.block_bytes * len(self._taking))

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the draws of one lane: those of its part."""
        dealt = self._dealt[lane]
        return self._taking[dealt.part].distributor.open(dealt.lane, self.lanes_of[dealt.part])

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has, as its part says."""
        dealt = self._dealt[lane]
        return self._taking[dealt.part].distributor.draws(dealt.lane, self.lanes_of[dealt.part])

    def readings(self) -> Sequence[Reading]:
        """Return how the storage blocks of every part are read, by its own lanes."""
        found: list[Reading] = []
        lanes_of = [list[int]() for _ in self._taking]
        for lane, dealt in enumerate(self._dealt):
            lanes_of[dealt.part].append(lane)
        for each, own in zip(self.inner(), lanes_of, strict=True):
            for reading in each.readings():
                lanes = own if reading.lanes is None else [own[n] for n in reading.lanes]
                found.append(reading._replace(lanes=tuple(lanes)))
        return found

    def targets(self) -> Sequence[Target]:
        """Return the share of the lanes that each part has, and the parts of parts."""
        found: list[Target] = []
        for part, own in zip(self._taking, self.lanes_of, strict=True):
            found += part_targets(part, "lanes", own / sum(self.lanes_of))
        return found

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes: the parts with their numbers of lanes."""
        return {
            "parts": [
                part_identity(part, own, None)
                for part, own in zip(self._taking, self.lanes_of, strict=False)
            ]
        }


def _deal(counts: Sequence[int]) -> list[_Dealt]:
    """Return where each lane belongs, when parts have so many lanes each."""
    given = [0] * len(counts)
    found: list[_Dealt] = []
    for part in Rotation(counts).parts(sum(counts)):
        found.append(_Dealt(part, given[part]))
        given[part] += 1
    return found
