"""Packs held as arrays read as a list of lists does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from penstock.server.packing import (
    best_fit_decreasing,
    first_fit,
    knapsack,
    next_fit,
    sequential,
    window,
)
from penstock.server.packing.packs import CUT, Packs


def of(lists: list[list[int]]) -> Packs:
    flat = [index for one in lists for index in one]
    return Packs(np.array(flat, np.int64), np.cumsum([0, *map(len, lists)], dtype=np.int64))


def test_packs_read_as_the_lists_they_hold() -> None:
    """By number, from the end, in slices and in order; an index beyond them is refused."""
    rng = random.Random(3)
    lists = [rng.sample(range(99), rng.randint(0, 4)) for _ in range(50)]
    packs = of(lists)

    assert len(packs) == 50
    assert list(packs) == lists
    assert [packs[number] for number in range(-50, 50)] == lists * 2
    assert (packs[3:40:7], packs[::-1]) == (lists[3:40:7], lists[::-1])
    assert (lists[7] in packs, [1000] in packs, packs.index(lists[0])) == (True, False, 0)
    with pytest.raises(IndexError):
        packs[50]


def test_packs_are_equal_where_their_lists_are() -> None:
    """To lists, tuples and other packs; not to what holds others, or fewer."""
    packs = of([[0, 2], [1], []])

    assert packs == [[0, 2], [1], []]
    assert packs == [[0, 2], [1], []]
    assert packs == of([[0, 2], [1], []])
    assert packs != of([[0], [2, 1], []])
    assert packs != [[0, 2], [1]]
    assert packs != "packs"
    assert repr(packs) == "[[0, 2], [1], []]"


def test_more_packs_than_are_cut_at_a_time_come_in_order() -> None:
    """Over the seams between stretches, where the numbers go on."""
    count = 2 * CUT + 3

    packs = of([[number] for number in range(count)])

    assert list(packs) == [[number] for number in range(count)]
    assert repr(packs).startswith(f"<{count} packs: [[0], [1]")


@pytest.mark.parametrize(
    "packing",
    [
        best_fit_decreasing,
        first_fit,
        knapsack,
        next_fit,
        sequential,
        lambda lengths, capacity: window(lengths, capacity, 2),
    ],
    ids=["best_fit_decreasing", "first_fit", "knapsack", "next_fit", "sequential", "window"],
)
@pytest.mark.parametrize("lengths", [[], [3, 5, 4, 2], np.array([3, 5, 4, 2])], ids=str)
def test_packing_functions_give_plain_lists(
    packing: Callable[..., list[list[int]]], lengths: list[int]
) -> None:
    """Of whole numbers of Python's, which JSON takes."""
    packs = packing(lengths, 9)

    assert type(packs) is list
    assert all(type(pack) is list for pack in packs)
    assert json.loads(json.dumps(packs)) == packs
    assert bool(packs) == bool(len(lengths))
