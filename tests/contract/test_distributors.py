"""What every distributor promises: draws that are a pure function, each item once per epoch."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors import (
    BUILTIN_DISTRIBUTORS,
    EpisodesDistributor,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
)
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.reading import Blocks
from penstock.server.roles.source import IndexedSource


class Numbers(IndexedSource):
    """Items that are their own index; in blocks where sizes of blocks are given.

    A column `third` is the index modulo 3. Its episodes have 1 item, 2, 3 and so on.
    """

    version = 1

    def __init__(self, length: int, sizes: Sequence[int] | None = None) -> None:
        self.length, self.sizes = length, sizes

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the indices."""
        return list(indices)

    def has_column(self, name: str) -> bool:
        """Tell that there is the column."""
        return name == "third"

    def column(self, name: str, start: int, stop: int) -> list[int]:
        """Return the remainders."""
        return [index % 3 for index in range(start, stop)]

    def blocks(self) -> Blocks | None:
        """Return the sizes."""
        return None if self.sizes is None else Blocks(self.sizes)

    def episode_table(self) -> EpisodeTable:
        """Return episodes of uneven lengths, the last one cut off."""
        starts = list(itertools.takewhile(lambda start: start < self.length, triangular()))
        tasks = [("even",) if number % 2 == 0 else () for number in range(len(starts))]
        return EpisodeTable(np.array([*starts, self.length]), np.arange(len(starts)), tasks)


def triangular() -> Iterator[int]:
    """Yield 0, 1, 3, 6, 10, ..."""
    return itertools.accumulate(itertools.count())


ITEMS, LANES = 23, 30
SIZES = (5, 7, 4, 7)

OneSource = {"main": (ITEMS, None)}
ThreeSources = {"a": (11, None), "b": (5, None), "c": (7, None)}


@dataclass(frozen=True)
class Case:
    """A distributor and sources for it, 23 items in all.

    Attributes:
        make: Makes the distributor, unbound.
        sources: By name, how many items and in which blocks.
        once: Which items an epoch draws of each source; empty = all.
        numbered: A draw is computed from its number alone.
        least_lanes: It needs so many, and is opened with no other number than it is bound to.
    """

    make: Callable[[], DataDistributor]
    sources: Mapping[str, tuple[int, Sequence[int] | None]] = field(
        default_factory=lambda: OneSource
    )
    once: Mapping[str, Sequence[int]] = field(default_factory=dict)
    numbered: bool = True
    least_lanes: int = 1

    def lanes(self, lanes: int) -> int:
        """Return a number of lanes that it takes."""
        return max(lanes, self.least_lanes)

    def drawn(self, epochs: int) -> list[ItemRef]:
        """Return what so many epochs draw, sorted."""
        return sorted(
            ItemRef(name, index, epoch)
            for epoch in range(epochs)
            for name, (length, _) in self.sources.items()
            for index in self.once.get(name, range(length))
        )


NESTED = {
    "a": 3,
    "rest": {"weight": 2, "distributor": MixtureDistributor({"b": 0.25, "c": 0.5})},
}

CASES = {
    "map full": Case(lambda: MapDistributor("full")),
    "map none": Case(lambda: MapDistributor("none")),
    "map blocks": Case(lambda: MapDistributor("blocks", window_blocks=2), {"main": (ITEMS, SIZES)}),
    "map blocks in groups": Case(
        lambda: MapDistributor("blocks", window_blocks=2, reading_groups=5),
        {"main": (ITEMS, SIZES)},
    ),
    "map default over blocks": Case(MapDistributor, {"main": (ITEMS, (5, 0, 7, 4, 7))}),
    "map where": Case(
        lambda: MapDistributor(where={"third": {"not": 1}}),
        once={"main": [n for n in range(ITEMS) if n % 3 != 1]},
    ),
    "map where over blocks": Case(
        lambda: MapDistributor("blocks", window_blocks=2, where={"third": 2}),
        {"main": (ITEMS, SIZES)},
        {"main": [n for n in range(ITEMS) if n % 3 == 2]},
    ),
    "episodes": Case(EpisodesDistributor),
    "episodes of a small pool": Case(lambda: EpisodesDistributor(pool=2), {"main": (ITEMS, SIZES)}),
    "episodes in order": Case(lambda: EpisodesDistributor(pool=3, frames="in_order"), ThreeSources),
    "episodes unshuffled": Case(lambda: EpisodesDistributor(shuffle=False)),
    "episodes cut and thinned": Case(
        # Episodes begin at 0, 1, 3, 6, 10, 15 and 21, and the last one has two frames.
        lambda: EpisodesDistributor(pool=2, stride=2, drop_last_n=2),
        once={"main": [3, 6, 10, 12, 15, 17]},
    ),
    "mixture of episodes": Case(
        lambda: MixtureDistributor(
            {
                name: {"weight": weight, "distributor": EpisodesDistributor(pool=2, source=name)}
                for name, weight in (("a", 3), ("b", 1), ("c", 2))
            }
        ),
        ThreeSources,
        numbered=False,
    ),
    "mixture": Case(MixtureDistributor, ThreeSources, numbered=False),
    "mixture nested": Case(lambda: MixtureDistributor(NESTED), ThreeSources, numbered=False),
    "mixture tokens": Case(
        lambda: MixtureDistributor({"c": 1, "b": 2, "a": 1}, weights_by="tokens", temperature=2),
        ThreeSources,
        numbered=False,
    ),
    "rank_partitioned": Case(
        lambda: RankPartitionedDistributor({"a": 1, "b": 1, "c": 5}),
        ThreeSources,
        numbered=False,
        least_lanes=3,
    ),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of distributor."""
    return request.param  # type: ignore[no-any-return]


NUMBERED = {name: case for name, case in CASES.items() if case.numbered}


@pytest.fixture(params=NUMBERED.values(), ids=NUMBERED.keys())
def numbered(request: pytest.FixtureRequest) -> Case:
    """Each whose draws are decided by their number."""
    return request.param  # type: ignore[no-any-return]


def bound(
    case: Case, *, seed: int = 3, epochs: int | None = None, lanes: int = LANES
) -> DataDistributor:
    distributor = case.make()
    sources = {name: Numbers(*kind) for name, kind in case.sources.items()}
    distributor.bind(sources, seed, epochs, LANES if case.least_lanes == 1 else lanes)
    return distributor


def step(draws: LaneDraws) -> ItemRef | None:
    """Draw as a planner does: items have sizes of 1 to 9."""
    item = draws.next()
    if item is not None:
        draws.took(item, 1 + (item.index * 7 + len(item.source)) % 9)
    return item


def opened(distributor: DataDistributor, lane: int, lanes: int, count: int) -> list[ItemRef]:
    """Return the first draws of a lane, fewer if it ends."""
    draws = distributor.open(lane, lanes)
    found = [step(draws) for _ in range(count)]
    return [item for item in found if item is not None]


def numbered_draws(
    distributor: DataDistributor, lane: int, lanes: int, count: int
) -> list[ItemRef]:
    found = [distributor.draw(lane, lanes, k) for k in range(count)]
    return [item for item in found if item is not None]


def test_every_builtin_distributor_keeps_this_contract() -> None:
    """No built-in is left out of the cases above; of `iterable` see `resume/test_streams.py`."""
    assert {name.split()[0] for name in CASES} == set(BUILTIN_DISTRIBUTORS) - {"iterable"}
    assert all(role.type_name == name for name, role in BUILTIN_DISTRIBUTORS.items())


@pytest.mark.parametrize("lanes", [1, 2, 5, 30])
def test_each_item_comes_once_per_epoch_over_all_lanes(case: Case, lanes: int) -> None:
    """For every epoch, with more lanes than items too; of every part."""
    lanes = case.lanes(lanes)
    distributor = bound(case, epochs=3, lanes=lanes)

    drawn = [item for lane in range(lanes) for item in opened(distributor, lane, lanes, 4 * ITEMS)]

    assert sorted(drawn) == case.drawn(3)


def test_a_draw_is_a_pure_function_of_its_address(numbered: Case) -> None:
    """Another instance, asked backwards, gives the same items."""
    one, other = bound(numbered), bound(numbered)

    forwards = numbered_draws(one, 1, 3, 60)

    assert [other.draw(1, 3, k) for k in reversed(range(60))] == forwards[::-1]


@pytest.mark.parametrize("lanes", [1, 2, 5, 30])
def test_a_finite_lane_ends_where_arithmetic_says_and_stays_ended(case: Case, lanes: int) -> None:
    """`draws` counts what there is before the first None."""
    lanes = case.lanes(lanes)
    distributor = bound(case, epochs=2, lanes=lanes)

    for lane in range(lanes):
        count = distributor.draws(lane, lanes)
        assert count is not None
        draws = distributor.open(lane, lanes)
        found = [step(draws) for _ in range(count + 3)]
        assert None not in found[:count]
        assert found[count:] == [None, None, None]


def test_a_stream_goes_on_from_its_state_wherever_it_was_taken(case: Case) -> None:
    """At every draw, twice in a row, over two epochs' borders; the state is a few integers."""
    lanes = case.lanes(2)
    distributor = bound(case, lanes=lanes)
    whole = opened(distributor, 1, lanes, 90)
    stream = distributor.open(1, lanes)

    for k in range(58):
        state = json.loads(json.dumps(stream.state()))
        assert len(json.dumps(state)) < 100 * len(case.sources)
        again = distributor.open(1, lanes)
        again.restore(state)
        assert json.loads(json.dumps(again.state())) == state
        ahead = Counter(again.peek(3))
        coming = [step(again) for _ in range(30)]
        assert coming == whole[k : k + 30]
        assert not ahead - Counter(coming), "what it was said to come comes"
        assert step(stream) == whole[k]


def test_the_identity_is_json_and_tells_no_seed(case: Case) -> None:
    """It is the same for a clone; seed and epochs are the job's own part of the log id."""
    identity = json.dumps(bound(case).identity(), sort_keys=True)

    assert json.dumps(bound(case, seed=4, epochs=2).identity(), sort_keys=True) == identity
    clone = Case(bound(case).clone, case.sources)
    assert json.dumps(bound(clone).identity(), sort_keys=True) == identity


def test_a_billion_items_need_no_memory() -> None:
    """Draws of several epochs of 10^9 items, over many lanes, take a few kilobytes."""
    distributor = MapDistributor("full")
    distributor.bind({"main": Numbers(10**9)}, 7, None, LANES)
    tracemalloc.start()
    try:
        for epoch in range(6):
            first = epoch * 10**9 // 48
            drawn = [distributor.draw(lane, 48, first + 9) for lane in range(48)]
            assert len(set(drawn)) == 48
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000
