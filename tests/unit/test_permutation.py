"""The order of items is a permutation, uniform, different in every epoch, and the same for ever."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.core.permutation import MAX_ITEMS, ORDER_VERSION, TABLE_ITEMS, Permutation


def chi_square_z(counts: list[int], expected: float) -> float:
    """How many standard deviations a chi-square statistic lies above its mean."""
    freedom = len(counts) - 1
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [*range(20), *range(TABLE_ITEMS - 2, TABLE_ITEMS + 200)])
def test_every_number_below_n_comes_exactly_once(n: int) -> None:
    """For every small n, around the change from table to network: a permutation of [0, n)."""
    order = Permutation(n, seed=3)

    numbers = [order[position] for position in range(n)]

    assert sorted(numbers) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, TABLE_ITEMS, TABLE_ITEMS + 1, 1000, 4097])
def test_many_at_once_equal_one_by_one(n: int) -> None:
    """The vectorised order equals the scalar one at every position."""
    order = Permutation(n, seed=11, epoch=2, purpose="rows 4")

    taken = order.take(np.arange(n))

    assert taken.dtype == np.int64
    assert taken.tolist() == [order[position] for position in range(n)]


@given(
    n=st.integers(1, MAX_ITEMS),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 10**6),
    data=st.data(),
)
def test_orders_of_any_size_map_into_themselves_without_collision(
    n: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    """Up to 2^48 items: different positions give different numbers below n, also vectorised."""
    order = Permutation(n, seed, epoch)
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))

    numbers = [order[position] for position in positions]

    assert all(0 <= number < n for number in numbers)
    assert len(set(numbers)) == len(positions)
    assert order.take(positions).tolist() == numbers


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_few_elements_is_equally_likely(n: int) -> None:
    """Over 200 seeds per order, chi-square lies within four standard deviations of its mean."""
    seeds = 200 * math.factorial(n)

    seen = Counter(tuple(Permutation(n, seed).take(np.arange(n))) for seed in range(seeds))

    counts = [seen[order] for order in permutations(range(n))]
    assert chi_square_z(counts, seeds / math.factorial(n)) < 4


@pytest.mark.parametrize("n", [300, 1021, 100_000])
def test_places_and_neighbours_are_evenly_spread(n: int) -> None:
    """Where the first item goes, and how far neighbours end up apart, is uniform over 16 bins."""
    seeds = 4000

    pairs = np.array([Permutation(n, seed).take([0, 1]) for seed in range(seeds)])

    for values in (pairs[:, 0], pairs[:, 1], (pairs[:, 1] - pairs[:, 0]) % n):
        counts = np.bincount(values * 16 // n, minlength=16)
        widths = np.bincount(np.arange(n) * 16 // n, minlength=16) / n
        statistic = float((((counts - seeds * widths) ** 2) / (seeds * widths)).sum())
        assert (statistic - 15) / math.sqrt(30) < 4, counts.tolist()


def test_neighbouring_items_are_not_kept_in_order() -> None:
    """In one order of 100,000 items half of all neighbours rise; hardly any stay neighbours."""
    numbers = Permutation(100_000, seed=0).take(np.arange(100_000))

    steps = np.diff(numbers)

    assert abs(int((steps > 0).sum()) - 50_000) < 5 * math.sqrt(100_000 / 12)
    assert int((np.abs(steps) == 1).sum()) < 12


@pytest.mark.parametrize("n", [50, 1000])
def test_seed_epoch_and_purpose_each_give_another_order(n: int) -> None:
    """Changing any one of the three keys changes the order; the same keys give the same one."""
    keys = [(1, 0, "items"), (2, 0, "items"), (1, 1, "items"), (1, 0, "blocks")]

    orders = [tuple(Permutation(n, *key).take(np.arange(n))) for key in keys]

    assert len(set(orders)) == len(keys)
    assert tuple(Permutation(n, *keys[0]).take(np.arange(n))) == orders[0]


def test_the_order_never_changes_silently() -> None:
    """Golden values of order version 1: if these change, ORDER_VERSION must be raised."""
    assert ORDER_VERSION == 1
    assert Permutation(10, seed=7).take(np.arange(10)).tolist() == GOLDEN_TABLE
    network = Permutation(1000, seed=7, epoch=3, purpose="rows 2 main")
    assert network.take(np.arange(10)).tolist() == GOLDEN_NETWORK
    large = Permutation(10**9, seed=-1, epoch=1)
    assert [large[position] for position in (0, 1, 999_999_999)] == GOLDEN_LARGE


GOLDEN_TABLE = [6, 7, 8, 3, 9, 4, 0, 5, 1, 2]
GOLDEN_NETWORK = [277, 180, 400, 762, 326, 147, 469, 249, 477, 227]
GOLDEN_LARGE = [743582324, 201313912, 90870447]


@pytest.mark.parametrize("position", [-1, 5, 10**12])
def test_a_position_outside_is_an_index_error(position: int) -> None:
    """Both ways of asking refuse a position that is not in [0, n)."""
    order = Permutation(5, seed=0)

    with pytest.raises(IndexError, match=r"\[0, 5\)"):
        order[position]
    with pytest.raises(IndexError, match=r"\[0, 5\)"):
        order.take([0, position])


@pytest.mark.parametrize("n", [-1, MAX_ITEMS + 1])
def test_impossible_sizes_are_refused(n: int) -> None:
    """A size below zero or above the documented bound is a ValueError that names it."""
    with pytest.raises(ValueError, match=str(n)):
        Permutation(n, seed=0)
