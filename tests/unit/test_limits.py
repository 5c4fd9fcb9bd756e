"""Rows with limits of images, patches or seconds, beside their tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.server import packing
from penstock.server.core.refs import ItemRef, Rows, SampleRef
from penstock.server.planning.log.packed_window import pack
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import (
    BUILTIN_BATCHERS,
    BalancedPackingBatcher,
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    FirstFitPackingBatcher,
    KnapsackPackingBatcher,
    NextFitPackingBatcher,
    OpenBestFitPackingBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    WindowPackingBatcher,
)
from penstock.server.roles.samples import SampleSizes, ref_of
from penstock.server.testing import check_batcher
from penstock.wire.errors import BadItem, InvalidJob

TOKENS, LIMITS, HUGE = 16, {"images": 3, "patches": 20}, {"images": 10**9, "patches": 10**9}

PACKERS: dict[str, Callable[..., SampleBatcher]] = {
    "best_fit": lambda **more: BestFitPackingBatcher(TOKENS, 5, **more),
    "first_fit": lambda **more: FirstFitPackingBatcher(TOKENS, 3, **more),
    "next_fit": lambda **more: NextFitPackingBatcher(TOKENS, **more),
    "open_best_fit": lambda **more: OpenBestFitPackingBatcher(TOKENS, 3, **more),
    "balanced": lambda **more: BalancedPackingBatcher(TOKENS, 3, **more),
    "knapsack": lambda **more: KnapsackPackingBatcher(TOKENS, 9, **more),
    "best_fit_decreasing": lambda **more: BestFitDecreasingPackingBatcher(TOKENS, 9, **more),
    "window": lambda **more: WindowPackingBatcher(TOKENS, 4, **more),
    "window-sorted": lambda **more: WindowPackingBatcher(TOKENS, 4, sort=True, **more),
    "sequential": lambda **more: SequentialPackingBatcher(TOKENS, lookahead_limit=3, **more),
    "sequential-count": lambda **more: SequentialPackingBatcher(None, 4, 3, **more),
    "pool": lambda **more: PoolPackingBatcher(TOKENS, 5, None, **more),
}
ROWS_OVERLONG = [name for name in PACKERS if name not in ("sequential", "sequential-count", "pool")]

SAMPLES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 4), st.integers(0, 24)), max_size=40
)
"""Sizes, images and patches: some above each limit, some of size 0."""

Sizes = Sequence[tuple[int, int, int]]


def refs_of(samples: Sizes, items: int = 10**6) -> list[SampleRef]:
    return [
        ref_of(ItemRef("main", n % items, n // items), SampleSizes(size, tuple(counts)))
        for n, (size, *counts) in enumerate(samples)
    ]


def run(batcher: SampleBatcher, refs: Sequence[SampleRef]) -> list[Rows]:
    """Return all batches."""
    found: list[Rows] = []
    for ref in refs:
        found += batcher.add(ref, {})
    return [*found, *batcher.flush()]


def test_every_packer_is_here() -> None:
    """But `simple`, whose batches have a number of samples, and `concat`, of exact rows."""
    packers = {make().type_name for make in PACKERS.values()}

    assert packers == set(BUILTIN_BATCHERS) - {"simple", "concat"}


@pytest.mark.parametrize("name", PACKERS)
@settings(deadline=None, max_examples=30)
@given(samples=SAMPLES, rows=st.integers(1, 2), items=st.sampled_from([3, 10**6]))
def test_rows_keep_to_every_limit_and_each_sample_comes_once(
    name: str, samples: Sizes, rows: int, items: int
) -> None:
    more = {} if name == "pool" else {"rows": rows}
    batcher, refs = PACKERS[name](limits=LIMITS, **more), refs_of(samples, items)

    batches = run(batcher, refs)

    found = [ref for batch in batches for row in batch for ref in row]
    for batch in batches:
        every = [ref for row in batch for ref in row]
        for row in [every] if name == "pool" else batch:
            alone_may = name == "pool" and len(row) == 1  # the oldest of a pool is never left out
            assert alone_may or sum(ref.counts[0] for ref in row) <= LIMITS["images"]
            assert alone_may or sum(ref.counts[1] for ref in row) <= LIMITS["patches"]
    whole = {ref for ref in found if ref.span is None}
    cut = {(ref.item, ref.part) for ref in found if ref.span is not None}
    assert len(whole) + len([ref for ref in found if ref.span is not None]) == len(found)
    assert len(refs) == len(whole) + len(cut) + sum(batcher.dropped().values())


@pytest.mark.parametrize("name", PACKERS)
@settings(deadline=None, max_examples=25)
@given(samples=SAMPLES)
def test_limits_that_nothing_reaches_change_no_row(name: str, samples: Sizes) -> None:
    """Of samples that are not above a row by themselves: these count nothing here."""
    refs = refs_of([(size, *(counts if size <= TOKENS else (0, 0))) for size, *counts in samples])
    bare = [ref._replace(counts=()) for ref in refs]

    limited, free = PACKERS[name](limits=HUGE), PACKERS[name]()

    found = [[[ref._replace(counts=()) for ref in row] for row in b] for b in run(limited, refs)]
    assert found == run(free, bare)
    assert {k: n for k, n in limited.dropped().items() if n} == {
        k: n for k, n in free.dropped().items() if n
    }


@pytest.mark.parametrize("name", PACKERS)
@settings(deadline=None, max_examples=10)
@given(samples=SAMPLES)
def test_a_packer_with_limits_keeps_the_contract(name: str, samples: Sizes) -> None:
    """Nothing is lost, it goes on from its state after any sample, and its promises hold."""
    check_batcher(
        PACKERS[name](limits=LIMITS),
        [(SampleSizes(size, tuple(counts)), {}) for size, *counts in samples],
    )


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop", "alone"])
@pytest.mark.parametrize("name", ROWS_OVERLONG)
def test_what_alone_is_above_a_limit_follows_overlong_by_its_name(name: str, overlong: str) -> None:
    """No cut makes pictures fewer: where text is cut, such a sample is left out."""
    batcher = PACKERS[name](limits=LIMITS, overlong=overlong)

    batches = run(batcher, refs_of([(4, 4, 0), (4, 0, 21), (4, 1, 1)]))

    rows = [[ref.item.index for ref in row] for batch in batches for row in batch]
    if overlong == "alone":
        assert sorted(rows) == [[0], [1], [2]]
        assert batcher.counters()["overlong_alone"] == 2
    else:
        assert rows == [[2]]
        assert batcher.dropped()["overlong_images"] == 1
        assert batcher.dropped()["overlong_patches"] == 1


@pytest.mark.parametrize("name", ROWS_OVERLONG)
def test_what_alone_is_above_a_limit_is_a_bad_item_if_that_is_asked_for(name: str) -> None:
    batcher = PACKERS[name](limits=LIMITS, overlong="error")

    with pytest.raises(BadItem, match=r"its 4 images do not fit into a row of 3: raise limits\."):
        batcher.add(*refs_of([(4, 4, 0)]))


@pytest.mark.parametrize("overlong", ["split", "truncate"])
@pytest.mark.parametrize("name", ROWS_OVERLONG)
def test_a_sample_with_pictures_is_never_cut(name: str, overlong: str) -> None:
    """It is left out as overlong; one without is cut, and its first piece has its counts."""
    batcher = PACKERS[name](limits={"images": 3}, overlong=overlong)
    batcher.take_measures(["tokens", "images"])
    refs = refs_of([(20, 20, 1), (20, 20, 0)])

    found = [ref for batch in run(batcher, refs) for row in batch for ref in row]

    assert batcher.dropped()["overlong"] == 1
    assert {ref.item.index for ref in found} == {1}
    assert sorted(ref.counts for ref in found) == [(0, 0)] * (len(found) - 1) + [(20, 0)]


def test_rows_are_counted_by_the_limit_that_they_have_most_of() -> None:
    batcher = NextFitPackingBatcher(16, limits={"images": 4})

    run(batcher, refs_of([(4, 3, 0), (4, 1, 0), (12, 1, 0), (4, 1, 0)]))

    assert batcher.counters()["closed_by_images"] == 1


def test_a_row_is_full_where_packing_ratio_ends_it() -> None:
    """So rows of 10 tokens and 3 of 4 images are full of tokens, if 10 are all that they take."""
    refs = refs_of([(5, 2, 0), (5, 1, 0)])
    for ratio, closed in ((1.0, 1), (0.5, 0)):
        batcher = KnapsackPackingBatcher(20, 9, ratio, limits={"images": 4})

        run(batcher, refs)

        assert batcher.counters()["closed_by_images"] == closed


@pytest.mark.parametrize("name", PACKERS)
def test_limits_are_in_the_identity_only_where_they_are_given(name: str) -> None:
    assert "limits" not in json.dumps(PACKERS[name]().identity())
    assert PACKERS[name](limits=LIMITS).identity()["parameters"]["limits"] == LIMITS


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "limits is {}: name what rows may count"),
        ([8], r"limits is \[8\]: name what rows may count"),
        ({"images": 2**63}, r"limits.images is 9\d+: give a number up to 2\^63 - 1"),
        ({"images": 0}, "limits.images is 0: give what a row may count as a whole number"),
        ({"images": "8"}, "limits.images is '8': give what a row may count"),
        ({8: 8}, "limits has 8, which is no name"),
    ],
)
@pytest.mark.parametrize("name", ["best_fit", "pool", "sequential"])
def test_limits_that_make_no_sense_are_refused(name: str, limits: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        PACKERS[name](limits=limits)


def test_a_limit_of_no_measure_names_those_that_there_are() -> None:
    with pytest.raises(InvalidJob, match=r"limits has 'images', and .* count patches, seconds: na"):
        PACKERS["best_fit"](limits={"images": 8}).take_measures(["patches", "seconds"])
    with pytest.raises(InvalidJob, match=r"limits has 'images', and .* nothing beside their size"):
        PACKERS["best_fit"](limits={"images": 8}).take_measures([])


def test_clones_know_what_samples_count() -> None:
    """So each lane's batcher takes the same limits, wherever they are among the counts."""
    batcher = NextFitPackingBatcher(16, limits={"images": 1})
    batcher.take_measures(["seconds", "images"])

    batches = run(batcher.clone().clone(), refs_of([(1, 9, 1), (1, 9, 1)]))

    assert len(batches) == 2


# --- whole windows -------------------------------------------------------------------------------


def slow(samples: Sizes, capacity: int, most: Sequence[int], *, tightest: bool) -> list[list[int]]:
    """Return what longest-first packing gives, by the book: pack after pack is looked at."""
    packs: list[tuple[list[int], list[int]]] = []
    for index in sorted(range(len(samples)), key=lambda n: -samples[n][0]):
        need, whole = list(samples[index]), [capacity, *most]
        if any(a > b for a, b in zip(need, whole, strict=True)):
            if tightest:
                packs.append(([index], [-1] * len(whole)))
            continue
        fits = [
            (room[0] if tightest else -room[0], number)
            for number, (_, room) in enumerate(packs)
            if all(a <= b for a, b in zip(need, room, strict=True))
        ]
        if not fits:
            packs.append(([], whole))
            fits = [(0, len(packs) - 1)]
        members, room = packs[min(fits)[1]]
        members.append(index)
        room[:] = [a - b for a, b in zip(room, need, strict=True)]
    return [members for members, _ in packs]


@settings(deadline=None, max_examples=100)
@given(samples=SAMPLES)
def test_vectors_are_packed_as_by_the_book(samples: Sizes) -> None:
    sizes, counts = [s for s, *_ in samples], [c for _, *c in samples]
    most = list(LIMITS.values())

    assert packing.knapsack(sizes, TOKENS, counts, most) == slow(
        samples, TOKENS, most, tightest=False
    )
    assert packing.best_fit_decreasing(sizes, TOKENS, counts, most) == slow(
        samples, TOKENS, most, tightest=True
    )


@settings(deadline=None, max_examples=100)
@given(samples=SAMPLES)
def test_vectors_far_below_their_limits_are_packed_as_lengths(samples: Sizes) -> None:
    sizes, counts = [s for s, *_ in samples], [c for _, *c in samples]
    for function in (packing.knapsack, packing.best_fit_decreasing):
        assert function(sizes, TOKENS, counts, [99, 999]) == function(sizes, TOKENS)


def test_counts_that_do_not_go_with_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"counts have the shape \(1, 2\): give 1 numbers"):
        packing.knapsack([3], 9, [[1, 2]], [4])
    with pytest.raises(ValueError, match="counts are not whole numbers"):
        packing.knapsack([3], 9, [[-1]], [4])
    with pytest.raises(ValueError, match=r"most is \[0\]"):
        packing.knapsack([3], 9, [[1]], [0])


@pytest.mark.parametrize("name", ["knapsack", "best_fit_decreasing", "best_fit", "sequential"])
@pytest.mark.parametrize("overlong", ["split", "truncate", "drop", "alone", "error"])
@settings(deadline=None, max_examples=30)
@given(samples=SAMPLES)
@example(samples=[(TOKENS + 1, 0, 0), (1, 0, 0)])
def test_a_planned_window_is_packed_as_one_of_a_lane(
    name: str, overlong: str, samples: Sizes
) -> None:
    """The same rows, and the same counts; a window of a lane is all of it here."""
    more = {} if name == "sequential" else {"overlong": overlong}
    if name in ("knapsack", "best_fit_decreasing"):
        more["window"] = 1000
        make: Any = BUILTIN_BATCHERS[name]
        batcher = make(TOKENS, limits=LIMITS, **more)
        batcher._size = 1000  # no young windows: as a plan, which has all samples at once
    else:
        batcher = PACKERS[name](limits=LIMITS, **more)
    refs = refs_of(samples)
    sizes = np.array([ref.size for ref in refs], np.int64)
    counts = np.array([ref.counts for ref in refs], np.int64).reshape(-1, 2)
    refused, expected = None, list[Rows]()
    try:
        expected = run(batcher, refs)
    except BadItem as error:
        refused = error
    if refused is not None:
        with pytest.raises(BadItem) as caught:
            pack(batcher, sizes, counts, None, "test", by_length=False)
        assert (caught.value.reason, ["main", caught.value.item, 0]) == (
            refused.reason,
            refused.item,
        )
        return

    packed = pack(batcher, sizes, counts, None, "test", by_length=False)

    bounds, slots = packed.rows.tolist(), packed.slots.tolist()
    rows = [slots[a:b] for a, b in pairwise(bounds)]
    lane = [[ref.item.index for ref in row] for batch in expected for row in batch]
    if overlong == "split":  # the rest of one sample and another of its size: either may be first
        rows, lane = [sorted(row) for row in rows], [sorted(row) for row in lane]
    assert sorted(rows) == sorted(lane)
    told = {f"dropped:{name}": n for name, n in batcher.dropped().items()}
    told |= {f"batcher:{name}": n for name, n in batcher.counters().items()}
    assert dict(packed.counts) == {name: n for name, n in told.items() if n}


@pytest.mark.parametrize("name", PACKERS)
def test_numbers_near_the_largest_are_added_rightly(name: str) -> None:
    """Two that only together are above a limit do not share a row."""
    half = 2**62
    batcher = PACKERS[name](limits={"images": 2**63 - 1})

    batches = run(batcher, refs_of([(2, half), (2, half), (2, half), (2, half - 1)]))

    rows = [row for batch in batches for row in batch]
    assert sum(map(len, rows)) == 4
    assert all(sum(ref.counts[0] for ref in row) < 2**63 for row in rows)
