"""What every distributor promises: draws that are a pure function, each item once per epoch."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.roles.base import DataDistributor, IndexedSource
from penstock.server.roles.distributors import BUILTIN_DISTRIBUTORS, MapDistributor
from penstock.server.roles.reading import Blocks


class Numbers(IndexedSource):
    """Items that are their own index; in blocks where sizes of blocks are given."""

    version = 1

    def __init__(self, length: int, sizes: Sequence[int] | None = None) -> None:
        self.length, self.sizes = length, sizes

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the indices."""
        return list(indices)

    def blocks(self) -> Blocks | None:
        """Return the sizes."""
        return None if self.sizes is None else Blocks(self.sizes)


@dataclass(frozen=True)
class Case:
    """A distributor and a source of 23 items for it.

    Attributes:
        make: Makes the distributor, unbound.
        blocks: The source's blocks.
    """

    make: Callable[[], DataDistributor]
    blocks: tuple[int, ...] | None = None


ITEMS, LANES = 23, 30

CASES = {
    "map full": Case(lambda: MapDistributor("full")),
    "map none": Case(lambda: MapDistributor("none")),
    "map blocks": Case(lambda: MapDistributor("blocks", window_blocks=2), (5, 7, 4, 7)),
    "map blocks in groups": Case(
        lambda: MapDistributor("blocks", window_blocks=2, reading_groups=5), (5, 7, 4, 7)
    ),
    "map default over blocks": Case(MapDistributor, (5, 0, 7, 4, 7)),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of distributor."""
    return request.param  # type: ignore[no-any-return]


def bound(case: Case, *, seed: int = 3, epochs: int | None = None) -> DataDistributor:
    distributor = case.make()
    distributor.bind({"main": Numbers(ITEMS, case.blocks)}, seed, epochs, LANES)
    return distributor


def draws(distributor: DataDistributor, lane: int, lanes: int, count: int) -> list[ItemRef]:
    found = [distributor.draw(lane, lanes, k) for k in range(count)]
    return [item for item in found if item is not None]


def test_every_builtin_distributor_keeps_this_contract() -> None:
    """No built-in is left out of the cases above; of `iterable` see `resume/test_streams.py`."""
    assert {name.split()[0] for name in CASES} == set(BUILTIN_DISTRIBUTORS) - {"iterable"}
    assert all(role.type_name == name for name, role in BUILTIN_DISTRIBUTORS.items())


@pytest.mark.parametrize("lanes", [1, 2, 5, 30])
def test_each_item_comes_once_per_epoch_over_all_lanes(case: Case, lanes: int) -> None:
    """For every epoch, with more lanes than items too."""
    distributor = bound(case, epochs=3)

    drawn = [item for lane in range(lanes) for item in draws(distributor, lane, lanes, 3 * ITEMS)]

    expected = [ItemRef("main", index, epoch) for epoch in range(3) for index in range(ITEMS)]
    assert sorted(drawn, key=lambda item: (item.epoch, item.index)) == expected


def test_a_draw_is_a_pure_function_of_its_address(case: Case) -> None:
    """Another instance, asked backwards, gives the same items."""
    one, other = bound(case), bound(case)

    forwards = draws(one, 1, 3, 60)

    assert [other.draw(1, 3, k) for k in reversed(range(60))] == forwards[::-1]


@pytest.mark.parametrize("lanes", [1, 2, 5, 30])
def test_a_finite_lane_ends_where_arithmetic_says_and_stays_ended(case: Case, lanes: int) -> None:
    """`draws` counts what there is before the first None."""
    distributor = bound(case, epochs=2)

    for lane in range(lanes):
        count = distributor.draws(lane, lanes)
        assert count is not None
        assert len(draws(distributor, lane, lanes, count)) == count
        assert distributor.draw(lane, lanes, count) is distributor.draw(lane, lanes, count + 9)


def test_a_stream_goes_on_from_its_state_wherever_it_was_taken(case: Case) -> None:
    """At every draw, twice in a row, over two epochs' borders; the state is a few integers."""
    distributor = bound(case)
    whole = draws(distributor, 1, 2, 60)
    stream = distributor.open(1, 2)

    for k in range(58):
        state = json.loads(json.dumps(stream.state()))
        assert len(json.dumps(state)) < 100
        again = distributor.open(1, 2)
        again.restore(state)
        assert again.peek(2) == [again.next(), again.next()] == whole[k : k + 2]
        assert stream.next() == whole[k]


def test_the_identity_is_json_and_tells_no_seed(case: Case) -> None:
    """It is the same for a clone; seed and epochs are the job's own part of the log id."""
    identity = json.dumps(bound(case).identity(), sort_keys=True)

    assert json.dumps(bound(case, seed=4, epochs=2).identity(), sort_keys=True) == identity
    assert json.dumps(bound(Case(bound(case).clone, case.blocks)).identity(), sort_keys=True) == (
        identity
    )


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
