"""The packing functions give exactly what their slow, obvious forms give."""

from __future__ import annotations

import gc
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.server.packing import (
    best_fit_decreasing,
    first_fit,
    knapsack,
    next_fit,
    pool,
    sequential,
    window,
)
from penstock.server.packing.first_fit import BLOCK

Packs = list[list[int]]


# --- the slow, obvious forms: loops over every pack, no trees, no heaps -------------------------


def slow_next_fit(lengths: Sequence[int], capacity: int) -> Packs:
    packs: Packs = []
    for index, length in enumerate(lengths):
        if packs and sum(lengths[i] for i in packs[-1]) + length <= capacity:
            packs[-1].append(index)
        else:
            packs.append([index])
    return packs


def slow_first_fit(lengths: Sequence[int], capacity: int) -> Packs:
    packs: Packs = []
    for index, length in enumerate(lengths):
        for pack in packs:
            if sum(lengths[i] for i in pack) + length <= capacity:
                pack.append(index)
                break
        else:
            packs.append([index])
    return packs


def slow_best_fit_decreasing(lengths: Sequence[int], capacity: int) -> Packs:
    packs: Packs = []
    for length, index in sorted((-length, index) for index, length in enumerate(lengths)):
        tightest, least_room = None, None
        for pack in packs:
            room = capacity - sum(lengths[i] for i in pack)
            if -length <= room and (least_room is None or room < least_room):
                tightest, least_room = pack, room
        if tightest is None:
            packs.append([index])
        else:
            tightest.append(index)
    return packs


def slow_knapsack(lengths: Sequence[int], capacity: int) -> Packs:
    packs: Packs = []
    for length, index in sorted((-length, index) for index, length in enumerate(lengths)):
        if -length > capacity:
            continue
        emptiest, least_fill = None, None
        for pack in packs:
            fill = sum(lengths[i] for i in pack)
            if least_fill is None or fill < least_fill:
                emptiest, least_fill = pack, fill
        if emptiest is not None and least_fill is not None and least_fill - length <= capacity:
            emptiest.append(index)
        else:
            packs.append([index])
    return packs


def slow_window(lengths: Sequence[int], capacity: int, size: int) -> Packs:
    packs: Packs = []
    waiting = list(range(len(lengths)))
    while waiting:
        shown = waiting[:size]
        pack: list[int] = []
        for index in shown:
            fits = sum(lengths[i] for i in pack) + lengths[index] <= capacity
            if not pack or fits:
                pack.append(index)
        packs.append(pack)
        waiting = [index for index in waiting if index not in pack]
    return packs


def slow_sorted_window(lengths: Sequence[int], capacity: int, size: int) -> Packs:
    order = [i for _, i in sorted((-length, index) for index, length in enumerate(lengths))]
    packs: Packs = []
    for start in range(0, len(order), size):
        part = order[start : start + size]
        packs += [
            [part[i] for i in pack]
            for pack in slow_window([lengths[i] for i in part], capacity, size)
        ]
    return packs


def slow_sequential(lengths: Sequence[int], capacity: int, limit: int) -> Packs:
    packs: Packs = []
    source = iter(range(len(lengths)))
    carry: list[int] = []
    exhausted = False
    while not exhausted or carry:
        group: list[int] = []
        skipped: list[int] = []
        while True:
            if carry:
                index = carry.pop(0)
            else:
                following = next(source, None)
                if following is None:
                    exhausted = True
                    break
                index = following
            if sum(lengths[i] for i in group) + lengths[index] >= capacity:
                if not group:
                    continue
                skipped.append(index)
            else:
                group.append(index)
            if group and len(skipped) >= limit:
                break
        carry = skipped + carry
        if group:
            packs.append(group)
    return packs


def slow_pool(
    lengths: Sequence[int],
    kinds: Sequence[str],
    capacity: int,
    pool_size: int,
    most: int | None,
    long_threshold: int,
    strategy: str,
    halve: bool,
) -> Packs:
    batches: Packs = []
    waiting = list(range(len(lengths)))
    while waiting:
        shown = waiting[:pool_size]
        batch = [shown.pop(0)]
        while True:
            longest = max(lengths[i] for i in batch)
            cap = capacity // 2 if halve and longest >= 1000 else capacity
            alone = longest >= long_threshold or longest >= cap
            if (len(batch) == 1 and alone) or (most and len(batch) >= most):
                break
            fitting = [
                index
                for index in shown
                if kinds[index] == kinds[batch[0]]
                and max(longest, lengths[index]) * (len(batch) + 1) <= cap
            ]
            if not fitting:
                break
            cheapest = min(max(longest, lengths[index]) for index in fitting)
            equal = [index for index in fitting if max(longest, lengths[index]) == cheapest]
            if strategy == "prefer_closest":
                nearest = min(abs(lengths[index] - longest) for index in equal)
                equal = [index for index in equal if abs(lengths[index] - longest) == nearest]
            batch.append(equal[0])
            shown.remove(equal[0])
        batches.append(batch)
        waiting = [index for index in waiting if index not in batch]
    return batches


# --- agreement ---------------------------------------------------------------------------------

PAIRS: list[tuple[Callable[[Sequence[int], int], Packs], Callable[[Sequence[int], int], Packs]]] = [
    (next_fit, slow_next_fit),
    (first_fit, slow_first_fit),
    (best_fit_decreasing, slow_best_fit_decreasing),
    (knapsack, slow_knapsack),
]
NAMES = [fast.__name__ for fast, _ in PAIRS]

LENGTHS = st.one_of(
    st.lists(st.integers(0, 12), max_size=40),
    st.lists(st.integers(0, 300), max_size=40),
    st.lists(st.integers(0, 10_000), max_size=40),
)
CAPACITIES = st.one_of(
    st.integers(1, 14), st.sampled_from([63, 64, 65, 200, 400, 4096, 4097, 8192, 10**12])
)


def small_cases() -> Iterator[tuple[list[int], int]]:
    """Every list of up to five lengths from 0 to 4, with every capacity that can matter."""
    for count in range(6):
        for lengths in product(range(5), repeat=count):
            for capacity in (1, 2, 3, 5):
                yield list(lengths), capacity


@pytest.mark.parametrize(("fast", "slow"), PAIRS, ids=NAMES)
def test_a_packing_equals_its_obvious_form_on_every_small_case(
    fast: Callable[..., Packs], slow: Callable[..., Packs]
) -> None:
    """On all lists of up to five lengths from 0 to 4 the packs are the same, in the same order."""
    for lengths, capacity in small_cases():
        assert fast(lengths, capacity) == slow(lengths, capacity), (lengths, capacity)


@pytest.mark.parametrize(("fast", "slow"), PAIRS, ids=NAMES)
@settings(deadline=None)
@given(lengths=LENGTHS, capacity=CAPACITIES)
def test_a_packing_equals_its_obvious_form_on_drawn_lengths(
    fast: Callable[..., Packs], slow: Callable[..., Packs], lengths: list[int], capacity: int
) -> None:
    """Also with long lists, ties, capacities at word borders and lengths above the capacity."""
    assert fast(lengths, capacity) == slow(lengths, capacity)


@settings(deadline=None)
@given(lengths=LENGTHS, capacity=CAPACITIES, size=st.integers(1, 45), sort=st.booleans())
def test_window_equals_its_obvious_form(
    lengths: list[int], capacity: int, size: int, sort: bool
) -> None:
    """Rolling or sorted, a window gives the packs of a scan over a plain list."""
    slow = slow_sorted_window if sort else slow_window

    assert window(lengths, capacity, size, sort=sort) == slow(lengths, capacity, size)


@settings(deadline=None)
@given(lengths=LENGTHS, capacity=CAPACITIES, limit=st.integers(0, 12))
@example(lengths=[5, 9, 9, 3, 1, 20, 4], capacity=10, limit=2)
def test_sequential_equals_the_pulling_loop_it_comes_from(
    lengths: list[int], capacity: int, limit: int
) -> None:
    """Samples set aside lead the next pack, in their order, and are offered to it first."""
    assert sequential(lengths, capacity, lookahead_limit=limit) == slow_sequential(
        lengths, capacity, limit
    )


@settings(deadline=None)
@given(
    samples=st.lists(
        st.tuples(st.one_of(st.integers(0, 40), st.integers(900, 2500)), st.sampled_from("tiv")),
        max_size=30,
    ),
    capacity=st.sampled_from([1, 30, 100, 2000, 4000, 9000]),
    pool_size=st.integers(1, 20),
    most=st.sampled_from([None, 0, 1, 2, 5]),
    long_threshold=st.sampled_from([20, 1500, 6400]),
    strategy=st.sampled_from(["prefer_closest", "prefer_first"]),
    halve=st.booleans(),
)
def test_pool_equals_its_obvious_form(
    samples: list[tuple[int, str]],
    capacity: int,
    pool_size: int,
    most: int | None,
    long_threshold: int,
    strategy: str,
    halve: bool,
) -> None:
    """Every choice of the pool is the one that a scan over all candidates makes."""
    lengths = [length for length, _ in samples]
    kinds = [kind for _, kind in samples]

    batches = pool(
        lengths,
        capacity,
        pool_size=pool_size,
        max_batch_size=most,
        long_threshold=long_threshold,
        strategy=strategy,
        halve_long=halve,
        kinds=kinds,
    )

    assert batches == slow_pool(
        lengths, kinds, capacity, pool_size, most, long_threshold, strategy, halve
    )


# --- many samples ------------------------------------------------------------------------------


def scanned(sizes: Sequence[int], capacity: int, best: bool) -> Packs:
    """First fit, or best fit in the given order, by a scan over the rooms of all packs."""
    rooms: list[int] = []
    packs: Packs = []
    for index, length in enumerate(sizes):
        fitting = (pack for pack, room in enumerate(rooms) if room >= length)
        pack = min(fitting, key=rooms.__getitem__, default=None) if best else next(fitting, None)
        if pack is None:
            packs.append([index])
            rooms.append(capacity - length)
        else:
            packs[pack].append(index)
            rooms[pack] -= length
    return packs


@pytest.mark.parametrize("seed", range(4))
def test_first_fit_finds_the_first_pack_among_many_blocks_of_them(seed: int) -> None:
    """1,100 to 1,900 packs, in nine or more blocks, in phases: large ones leave rooms behind."""
    draw = random.Random(seed)
    tops = [draw.choice([40, 400, 700, 1000]) for _ in range(12)]
    sizes = [draw.randint(1, top) for top in tops for _ in range(200)]
    sizes += sorted(draw.randint(500, 1000) for _ in range(700)) + [300, 1, 2, 1000, 40] * 100

    packs = first_fit(sizes, 1000)

    assert len(packs) > 8 * BLOCK
    assert packs == scanned(sizes, 1000, best=False)


def shapes(draw: random.Random) -> dict[str, list[int]]:
    """Lengths, for a capacity of 1,000, that leave packs of a block in every order of room."""
    large = [draw.randint(400, 1000) for _ in range(1000)]
    any_ = [draw.randint(1, 1000) for _ in range(1000)]
    return {
        "tiny ones fill many that are open": [*large, *(draw.randint(1, 30) for _ in range(1000))],
        "half of them tiny": [draw.randint(1, draw.choice([10, 1000])) for _ in range(2000)],
        "rising rooms": sorted(any_, reverse=True) + any_,
        "falling rooms": sorted(any_) + any_,
        "equal rooms": [draw.choice([600, 600, 700]) for _ in range(1000)]
        + [draw.choice([100, 300, 400]) for _ in range(1000)],
        "half of them 0": [draw.choice([0, draw.randint(1, 1000)]) for _ in range(2000)],
        "some too long": [draw.choice([0, draw.randint(1, 1500)]) for _ in range(2000)],
        "all too long": [draw.randint(1001, 2000) for _ in range(500)],
    }


@pytest.mark.parametrize("shape", shapes(random.Random(0)))
@pytest.mark.parametrize("scale", [1, 2**51])
def test_first_fit_finds_the_oldest_of_many_with_room(shape: str, scale: int) -> None:
    """In every order of the rooms of a block; also where lengths come near the largest allowed."""
    lengths = shapes(random.Random(1))[shape]

    packs = first_fit([length * scale for length in lengths], 1000 * scale)

    assert packs == scanned(lengths, 1000, best=False)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 60), min_size=4, max_size=4),
    capacity=st.integers(1, 64),
    seed=st.integers(0, 9),
)
def test_runs_of_equal_lengths_are_packed_one_by_one(
    sizes: list[int], counts: list[int], capacity: int, seed: int
) -> None:
    """Of few distinct lengths, most packs are equally good: the oldest is taken, as ever."""
    lengths = [size for size, count in zip(sizes, counts, strict=False) for _ in range(count)]
    random.Random(seed).shuffle(lengths)

    assert best_fit_decreasing(lengths, capacity) == slow_best_fit_decreasing(lengths, capacity)
    assert knapsack(lengths, capacity) == slow_knapsack(lengths, capacity)


def test_best_fit_of_many_distinct_lengths_is_that_of_a_scan() -> None:
    """3,000 samples whose runs are short and whose packs are many."""
    draw = random.Random(3)
    lengths = [draw.randint(1, 5000) for _ in range(3000)]
    order = sorted(range(3000), key=lambda index: -lengths[index])

    packs = scanned([lengths[index] for index in order], 8192, best=True)

    assert best_fit_decreasing(lengths, 8192) == [[order[i] for i in pack] for pack in packs]


# --- what lengths may be -------------------------------------------------------------------------

EVERY_PACKING: list[Callable[..., Packs]] = [
    next_fit,
    first_fit,
    best_fit_decreasing,
    knapsack,
    sequential,
    pool,
    lambda lengths, capacity: window(lengths, capacity, 3),
    lambda lengths, capacity: window(lengths, capacity, 3, sort=True),
]


@pytest.mark.parametrize("packing", EVERY_PACKING)
def test_arrays_of_any_integers_are_packed_as_lists_are(packing: Callable[..., Packs]) -> None:
    """NumPy of every integer dtype and any stride, array.array, tuples, ranges, tensors, none."""
    lengths = [7, 3, 9, 12, 0, 5, 5, 1]
    expected = packing(lengths, 10)
    assert all(type(index) is int for pack in expected for index in pack)

    for code in np.typecodes["AllInteger"]:
        given = np.array(lengths, dtype=code)
        assert packing(given, 10) == expected
        assert given.tolist() == lengths
    assert packing(np.repeat(lengths, 2)[::2], 10) == expected
    assert packing(tuple(lengths), np.int64(10)) == expected
    assert packing(array("i", lengths), 10) == expected
    assert packing([np.int32(length) for length in lengths], 10) == expected
    assert packing(range(1, 9), 10) == packing(list(range(1, 9)), 10)
    for none in ([], (), np.array([], dtype=np.uint8), range(0)):
        assert packing(none, 10) == []


@pytest.mark.parametrize("packing", EVERY_PACKING)
def test_tensors_are_packed_as_lists_are(packing: Callable[..., Packs]) -> None:
    """Where torch is installed, of all its integer types."""
    torch = pytest.importorskip("torch")
    lengths = [7, 3, 9, 12, 0, 5, 5, 1]

    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        assert packing(torch.tensor(lengths, dtype=dtype), 10) == packing(lengths, 10)


@pytest.mark.parametrize("packing", EVERY_PACKING)
@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ([1, -3], r"lengths\[1\] is -3: a length is 0 or more"),
        (np.array([1, -3], dtype=np.int8), r"lengths\[1\] is -3: a length is 0 or more"),
        ([1, 2.5], r"lengths\[1\] is 2.5: give a whole number"),
        (np.array([4.0, 5.0]), r"lengths\[0\] is .*4.0.*: give a whole number"),
        ([1, "2"], r"lengths\[1\] is '2': give a whole number"),
        ([1, None], r"lengths\[1\] is None: give a whole number"),
        ([1, 2**70], r"lengths\[1\] is 1180591620717411303424: a length is at most"),
        (
            np.array([1, 2**63], dtype=np.uint64),
            r"lengths\[1\] is 9223372036854775808: a length is",
        ),
        (np.ones((2, 3), dtype=int), "lengths has 2 dimensions"),
        ([[1], [1, 2]], "lengths holds lists"),
        (5, "lengths has 0 dimensions"),
    ],
)
def test_what_is_no_length_is_refused_by_its_place(
    packing: Callable[..., Packs], lengths: Any, sentence: str
) -> None:
    """In lists and in arrays alike."""
    with pytest.raises(ValueError, match=sentence):
        packing(lengths, 10)


@pytest.mark.parametrize("packing", EVERY_PACKING)
def test_a_capacity_is_a_whole_number(packing: Callable[..., Packs]) -> None:
    """Also where there is nothing to pack."""
    with pytest.raises(ValueError, match=r"capacity is 8\.5: give a whole number"):
        packing([], 8.5)
    with pytest.raises(ValueError, match="capacity is -1: a pack holds at least 1"):
        packing([], -1)
    with pytest.raises(ValueError, match="it is at most"):
        packing([1], 2**80)


@pytest.mark.parametrize("packing", EVERY_PACKING)
def test_the_garbage_collector_is_left_alone(
    packing: Callable[..., Packs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is all threads', and that of a process that one of them forks meanwhile."""

    def refuse(*_: Any) -> None:
        raise AssertionError

    for name in ("disable", "enable", "freeze", "unfreeze", "set_threshold"):
        monkeypatch.setattr(gc, name, refuse)

    packing([1, 2, 3] * 100, 4)


# --- what the sources of the algorithms say of them ----------------------------------------------


def test_knapsack_fills_evenly_where_best_fit_fills_tightly() -> None:
    """Worst fit evens packs out; best fit leaves one pack nearly empty instead."""
    lengths = [6, 5, 2, 2, 1]

    assert knapsack(lengths, 10) == [[0, 3], [1, 2, 4]]
    assert best_fit_decreasing(lengths, 10) == [[0, 2, 3], [1, 4]]


def test_best_fit_passes_over_rooms_that_are_just_too_small() -> None:
    """Exhaustive over two open packs: rooms in the same word of the tree as the length, or not."""
    capacity = 10_000
    rooms = [0, 1, 49, 50, 51, 63, 64, 65, 127, 128, 4095, 4096, 4097]
    for first, second, length in product(rooms, repeat=3):
        lengths = [capacity - first, capacity - second, length]

        assert best_fit_decreasing(lengths, capacity) == slow_best_fit_decreasing(lengths, capacity)


def test_first_fit_reopens_what_next_fit_has_closed() -> None:
    """A small sample goes back to the first pack; next fit has only the newest."""
    lengths = [6, 7, 4, 3]

    assert first_fit(lengths, 10) == [[0, 2], [1, 3]]
    assert next_fit(lengths, 10) == [[0], [1], [2, 3]]


def test_the_sorted_window_wastes_what_the_rolling_one_saves() -> None:
    """The guide's example: cut windows put the longest together and need 7 packs."""
    lengths = [4, 8, 5, 2, 7, 6, 1, 3, 3]

    assert len(window(lengths, 10, 4, sort=True)) == 7
    assert len(window(lengths, 10, 4)) == 5


def test_sequential_stays_strictly_below_and_the_others_reach_the_capacity() -> None:
    """A sample that exactly fills a pack belongs to it, except in sequential packing."""
    assert sequential([5, 5], 10) == [[0], [1]]
    assert sequential([10], 10) == []
    for packing in (next_fit, first_fit, best_fit_decreasing, knapsack):
        assert packing([5, 5], 10) == [[0, 1]]


def test_a_look_ahead_of_zero_gives_every_sample_a_pack() -> None:
    """With nothing to be set aside a pack closes at once."""
    assert sequential([1, 1, 1], 10, lookahead_limit=0) == [[0], [1], [2]]


def test_what_exceeds_the_capacity_is_alone_or_left_out() -> None:
    """Nothing joins a sample that is too long, not even one of length 0."""
    lengths = [11, 0, 4]

    for packing in (next_fit, first_fit, best_fit_decreasing):
        assert [0] in packing(lengths, 10)
    assert window(lengths, 10, 3) == [[0], [1, 2]]
    assert pool(lengths, 10) == [[0], [1], [2]]
    assert sequential(lengths, 10) == [[1, 2]]
    assert knapsack(lengths, 10) == [[2, 1]]


def test_halving_looks_at_the_longest_before_the_candidate() -> None:
    """A long candidate may join within the whole capacity; from then on half of it counts."""
    lengths = [900, 1000, 900]

    assert pool(lengths, 2700, max_batch_size=None, halve_long=False) == [[0, 2], [1]]
    assert pool([900, 1000], 2000, max_batch_size=None) == [[0, 1]]
    assert pool([1000, 900], 2000, max_batch_size=None) == [[0], [1]]


def test_a_pool_of_batches_of_one_keeps_the_order() -> None:
    """With one sample per batch nothing overtakes."""
    assert pool([3, 1, 2, 9, 1], 10, pool_size=3) == [[0], [1], [2], [3], [4]]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packing", [next_fit, first_fit, best_fit_decreasing, knapsack, sequential, pool]
)
def test_a_packing_refuses_what_has_no_answer(packing: Callable[..., Packs]) -> None:
    """A capacity below 1 and a negative length are named with their values."""
    with pytest.raises(ValueError, match="capacity is 0"):
        packing([1], 0)
    with pytest.raises(ValueError, match=r"lengths\[1\] is -3"):
        packing([1, -3], 10)


def test_options_out_of_range_are_refused_by_name() -> None:
    """Each option of a packing has its sentence."""
    with pytest.raises(ValueError, match="size is 0"):
        window([1], 10, 0)
    with pytest.raises(ValueError, match="capacity is 0"):
        window([1], 0, 1)
    with pytest.raises(ValueError, match="lookahead_limit is -1"):
        sequential([1], 10, lookahead_limit=-1)
    with pytest.raises(ValueError, match="pool_size is 0"):
        pool([1], 10, pool_size=0)
    with pytest.raises(ValueError, match="strategy is 'best'"):
        pool([1], 10, strategy="best")
    with pytest.raises(ValueError, match="2 kinds for 1 lengths"):
        pool([1], 10, kinds=["text", "image"])


def test_a_pool_never_mixes_kinds() -> None:
    """Images wait for images, text for text."""
    batches = pool([2, 2, 2, 2], 100, max_batch_size=None, kinds=["text", "image", "text", "image"])

    assert batches == [[0, 2], [1, 3]]
