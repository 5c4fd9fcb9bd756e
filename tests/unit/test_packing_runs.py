"""Packing whole windows by runs of equal lengths: the packs are those of one sample at a time."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from penstock.server.packing import (
    best_fit_decreasing,
    count_best_fit_decreasing,
    count_knapsack,
    knapsack,
)
from penstock.server.packing.best_fit import best_fit_decreasing_packs
from penstock.server.packing.knapsack import knapsack_packs
from penstock.server.packing.lengths import LARGEST, longest_first
from penstock.server.packing.packs import Packs
from unit import packing_one_by_one

PACKINGS: list[
    tuple[Callable[..., list[list[int]]], Callable[..., int], Callable[..., list[list[int]]]]
] = [
    (best_fit_decreasing, count_best_fit_decreasing, packing_one_by_one.best_fit_decreasing),
    (knapsack, count_knapsack, packing_one_by_one.knapsack),
]
NAMES = [packing.__name__ for packing, _, _ in PACKINGS]

KINDS: dict[str, Callable[[random.Random, int, int], list[int]]] = {
    "any": lambda draw, count, most: [draw.randint(0, most) for _ in range(count)],
    "short": lambda draw, count, most: [draw.randint(1, most // 9 + 1) for _ in range(count)],
    "skewed": lambda draw, count, most: [
        min(most, int(most * draw.lognormvariate(-2, 1))) for _ in range(count)
    ],
    "few distinct": lambda draw, count, most: draw.choices(
        [draw.randint(0, most) for _ in range(4)], k=count
    ),
    "all equal": lambda draw, count, most: [draw.randint(0, most)] * count,
    "half of them 0": lambda draw, count, most: [
        draw.choice([0, draw.randint(0, most)]) for _ in range(count)
    ],
    "half of them as long as a pack": lambda draw, count, most: [
        draw.choice([most, draw.randint(0, most)]) for _ in range(count)
    ],
    "half of them too long": lambda draw, count, most: [
        draw.randint(0, 2 * most) for _ in range(count)
    ],
    "some, and many of 1": lambda draw, count, most: [
        *(draw.randint(1, most) for _ in range(count // 20)),
        *[1] * (count - count // 20),
    ],
    "lengths that share their lowest digits": lambda draw, count, most: [
        draw.randint(0, most) >> 16 << 16 | draw.randint(0, 2) for _ in range(count)
    ],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("packing", "count", "one_by_one"), PACKINGS, ids=NAMES)
def test_runs_are_packed_as_one_by_one(
    packing: Callable[..., list[list[int]]],
    count: Callable[..., int],
    one_by_one: Callable[..., list[list[int]]],
    kind: str,
) -> None:
    """Pack by pack and index by index; and the histogram alone says how many packs there are."""
    draw = random.Random(kind)
    for capacity in (1, 2, 3, 7, 64, 1000, 8192, 100_000, 10**12, LARGEST // 2):
        for samples in (0, 1, 40, 700):
            lengths = KINDS[kind](draw, samples, capacity)

            packs = packing(lengths, capacity)

            assert packs == one_by_one(lengths, capacity), (capacity, lengths)
            if max(lengths, default=0) < 10**6:
                histogram = np.bincount(np.array(lengths, dtype=np.int64))
                assert count(histogram, capacity) == len(packs)


@pytest.mark.parametrize(("packing", "count", "one_by_one"), PACKINGS, ids=NAMES)
def test_windows_of_many_samples_are_packed_as_one_by_one(
    packing: Callable[..., list[list[int]]],
    count: Callable[..., int],
    one_by_one: Callable[..., list[list[int]]],
) -> None:
    """20,000 lengths of documents: hundreds of packs of a state, merged and taken apart."""
    draw = np.random.default_rng(5)
    lengths = np.minimum(np.exp(draw.normal(4.5, 1.2, 20_000)).astype(np.int64) + 1, 1024)

    packs = packing(lengths, 1024)

    assert packs == one_by_one(lengths.tolist(), 1024)
    assert count(np.bincount(lengths), 1024) == len(packs)


@pytest.mark.parametrize(
    ("packing", "count"),
    [(best_fit_decreasing_packs, count_best_fit_decreasing), (knapsack_packs, count_knapsack)],
    ids=NAMES,
)
def test_packing_takes_no_python_object_for_each_sample(
    packing: Callable[..., Packs], count: Callable[..., int]
) -> None:
    """At most ten words a sample, even where each is a pack; a histogram needs none of them."""
    lengths = np.full(200_000, 5000)
    lengths[::2] -= np.arange(100_000) % 1000
    histogram = np.bincount(lengths)

    peaks = []
    for run in (lambda: packing(lengths, 8192, None, ()), lambda: count(histogram, 8192)):
        tracemalloc.start()
        run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[0] < 10 * 8 * len(lengths)
    assert peaks[1] < len(lengths)


def test_longest_first_is_a_stable_sort_of_numbers_of_any_size() -> None:
    """Of one digit of 16 bits and of four."""
    draw = np.random.default_rng(0)
    for bits in (0, 1, 15, 16, 17, 33, 48, 62):
        lengths = draw.integers(0, 2**bits, 500, endpoint=True)
        lengths[:400] = lengths[draw.integers(0, 50, 400)]

        assert longest_first(lengths).tolist() == np.argsort(-lengths, kind="stable").tolist()
    assert longest_first(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("count", [count_best_fit_decreasing, count_knapsack])
def test_a_histogram_is_of_whole_numbers(count: Callable[..., int]) -> None:
    """What is none is refused by its place; any integers are taken."""
    with pytest.raises(ValueError, match=r"histogram\[2\] is -1: a count is 0 or more"):
        count([0, 3, -1], 10)
    with pytest.raises(ValueError, match=r"histogram\[1\] is 0.5: give a whole number"):
        count([0, 0.5], 10)
    with pytest.raises(ValueError, match=r"histogram has 2 dimensions: .* for each length"):
        count([[1], [2]], 10)
    with pytest.raises(ValueError, match="capacity is 0"):
        count([1], 0)
    assert count([], 10) == count(np.zeros(5, np.uint8), 10) == 0
    assert count(np.array([0, 0, 6], np.uint8), 5) == 3
