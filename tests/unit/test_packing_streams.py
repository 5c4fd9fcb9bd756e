"""The packing functions as batchers of an endless lane: same rows, steady, and nobody starves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server import packing
from penstock.server.commands.lane_warnings import warnings_of_lanes
from penstock.server.core.refs import ItemRef, Row, Rows, SampleRef, Span
from penstock.server.job.job import Job
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import (
    BalancedPackingBatcher,
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    ConcatPackingBatcher,
    FirstFitPackingBatcher,
    KnapsackPackingBatcher,
    NextFitPackingBatcher,
    OpenBestFitPackingBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    WindowPackingBatcher,
)
from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.distributors import MapDistributor
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob

LIMIT = 16
SHORT = st.lists(st.one_of(st.integers(1, 4), st.integers(1, LIMIT - 1)), max_size=120)
"""Sizes of samples that are shorter than a row."""

OPEN_ROWS = [FirstFitPackingBatcher, OpenBestFitPackingBatcher, BalancedPackingBatcher]


def refs_of(sizes: Sequence[int], items: int = 1_000_000) -> list[SampleRef]:
    """Samples of a source of so many items: after the last item the next epoch begins."""
    return [
        SampleRef(ItemRef("main", draw % items, draw // items), size=size)
        for draw, size in enumerate(sizes)
    ]


def rows_of(batcher: SampleBatcher, refs: Sequence[SampleRef]) -> list[Row]:
    """Every row of a finite lane."""
    batches: list[Rows] = []
    for ref in refs:
        batches += batcher.add(ref)
    return [row for batch in [*batches, *batcher.flush()] for row in batch]


def numbers(rows: Sequence[Row]) -> list[list[int]]:
    """The items of each row."""
    return [[ref.item.index for ref in row] for row in rows]


def alike(rows: Sequence[Row], packs: Sequence[Sequence[int]]) -> bool:
    """Whether rows hold the same samples as packs do, in whatever order they come."""
    return sorted(map(sorted, numbers(rows))) == sorted(map(sorted, packs))


# --- the same rows as the functions ---------------------------------------------------------------


@settings(deadline=None)
@given(sizes=SHORT)
def test_first_fit_with_enough_open_rows_is_first_fit(sizes: list[int]) -> None:
    """As documented by LMMS-Engine: each sample to the first row with room."""
    rows = rows_of(FirstFitPackingBatcher(LIMIT, max(1, len(sizes))), refs_of(sizes))

    assert alike(rows, packing.first_fit(sizes, LIMIT))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 40), max_size=60), rows=st.integers(1, 3))
def test_next_fit_keeps_the_order_past_long_samples(sizes: list[int], rows: int) -> None:
    """Its rows are those of the function, one after another, a long sample alone among them."""
    packed = rows_of(NextFitPackingBatcher(LIMIT, rows=rows, overlong="alone"), refs_of(sizes))

    assert numbers(packed) == packing.next_fit(sizes, LIMIT)


@settings(deadline=None)
@given(sizes=SHORT, size=st.integers(1, 20))
def test_a_rolling_window_is_the_one_of_the_function(sizes: list[int], size: int) -> None:
    """Fed one by one, `window_N` packs as LMMS-Engine's code does with the whole list."""
    rows = rows_of(WindowPackingBatcher(LIMIT, size), refs_of(sizes))

    assert numbers(rows) == packing.window(sizes, LIMIT, size)


WINDOWED: dict[str, tuple[Callable[[int], SampleBatcher], Callable[..., Any]]] = {
    "knapsack": (lambda size: KnapsackPackingBatcher(LIMIT, size), packing.knapsack),
    "knapsack, 0.75": (
        lambda size: KnapsackPackingBatcher(LIMIT, size, packing_ratio=0.75),
        lambda sizes, limit: packing.knapsack(sizes, limit * 3 // 4),
    ),
    "best_fit_decreasing": (
        lambda size: BestFitDecreasingPackingBatcher(LIMIT, size),
        packing.best_fit_decreasing,
    ),
    "window, sorted": (
        lambda size: WindowPackingBatcher(LIMIT, 4, sort=True, sort_over=size),
        lambda sizes, limit: packing.window(sizes, limit, 4, sort=True),
    ),
}


@pytest.mark.parametrize("name", WINDOWED)
@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 12), max_size=100), size=st.integers(1, 40))
def test_windows_are_packed_as_the_function_packs_them(
    name: str, sizes: list[int], size: int
) -> None:
    """The first window ends after 8 samples with four rows of tokens, and each next one doubles."""
    make, function = WINDOWED[name]

    rows = rows_of(make(size), refs_of(sizes))

    expected: list[list[int]] = []
    start, most = 0, min(8, size)
    for stop in range(1, len(sizes) + 1):
        window = sizes[start:stop]
        young = len(window) >= most and sum(window) >= 4 * LIMIT
        if young or len(window) == size or stop == len(sizes):
            packs = [[start + index for index in pack] for pack in function(window, LIMIT)]
            expected += sorted(packs, key=min)  # rows leave in the order of their oldest samples
            start, most = stop, min(2 * most, size)
    assert numbers(rows) == expected


def slow_open_rows(
    refs: Sequence[SampleRef], open_rows: int, best: Callable[[int, int], Any]
) -> list[Row]:
    """The rows of a packer with open rows, by loops: `best(room, age)` is least where one goes."""
    finished: list[Row] = []
    rows: list[tuple[int, Row]] = []  # by how many were opened before
    opened = 0

    def room(row: Row) -> int:
        return LIMIT - sum(ref.size for ref in row)

    for ref in refs:
        fitting = [
            (best(room(row), number), number, row)
            for number, row in rows
            if room(row) >= ref.size and all(ref.item.index != one.item.index for one in row)
        ]
        if best is balanced and len(rows) < open_rows:
            fitting = []
        if fitting:
            row = min(fitting)[2]
        else:
            if rows and open_rows > 1 and opened - rows[0][0] >= 4 * open_rows:
                finished.append(rows.pop(0)[1])
            elif len(rows) == open_rows:
                fullest = min(rows, key=lambda pair: (room(pair[1]), pair[0]))
                rows.remove(fullest)
                finished.append(fullest[1])
            row = []
            rows.append((opened, row))
            opened += 1
        row.append(ref)
        if not room(row):
            rows = [pair for pair in rows if pair[1] is not row]
            finished.append(row)
    return finished + [row for _, row in rows]


def oldest(room: int, number: int) -> Any:
    return number


def tightest(room: int, number: int) -> Any:
    return room, number


def balanced(room: int, number: int) -> Any:
    return -room, number


@pytest.mark.parametrize(
    ("cls", "best"), list(zip(OPEN_ROWS, [oldest, tightest, balanced], strict=True))
)
@settings(deadline=None, max_examples=80)
@given(sizes=SHORT, open_rows=st.integers(1, 5), items=st.sampled_from([1, 3, 7, 1000]))
def test_open_rows_are_those_of_the_obvious_form(
    cls: Any, best: Any, sizes: list[int], open_rows: int, items: int
) -> None:
    """Where a sample goes, and which row is finished, also where an item comes again."""
    refs = refs_of(sizes, items)

    assert rows_of(cls(LIMIT, open_rows), refs) == slow_open_rows(refs, open_rows, best)


def test_the_sorted_window_wastes_room_on_the_worked_example() -> None:
    """[4,8,5,2,7,6,1,3,3] into rows of 10 by windows of 4: 7 rows sorted, 5 rolling."""
    sizes = [4, 8, 5, 2, 7, 6, 1, 3, 3]

    sorted_rows = rows_of(WindowPackingBatcher(10, 4, sort=True), refs_of(sizes))
    rolling = rows_of(WindowPackingBatcher(10, 4), refs_of(sizes))

    assert len(sorted_rows) == 7
    assert len(rolling) == len(packing.window(sizes, 10, 4)) == 5


def test_balanced_rows_are_filled_to_nearly_the_same_part() -> None:
    """Their tokens differ a fourth as much as in order, and as of windows whose last rows lack."""
    draw = np.random.default_rng(0).lognormal(6.5, 1.2, 8000)
    sizes = np.minimum(8000, draw.astype(int) + 1).tolist()

    def spread(batcher: SampleBatcher) -> float:
        rows = [row for ref in refs_of(sizes) for [row] in batcher.add(ref)]
        return float(np.std([sum(ref.size for ref in row) for row in rows]))

    even = spread(BalancedPackingBatcher(8192))

    assert even < spread(NextFitPackingBatcher(8192)) / 4
    assert even < spread(BestFitDecreasingPackingBatcher(8192)) / 2


# --- no starvation, steady ------------------------------------------------------------------------

STREAMS: dict[str, tuple[Callable[[], SampleBatcher], int]] = {
    "first_fit": (lambda: FirstFitPackingBatcher(LIMIT, 3), 15),
    "open_best_fit": (lambda: OpenBestFitPackingBatcher(LIMIT, 3), 15),
    "balanced": (lambda: BalancedPackingBatcher(LIMIT, 3), 15),
    "next_fit": (lambda: NextFitPackingBatcher(LIMIT), 2),
    "window": (lambda: WindowPackingBatcher(LIMIT, 6), 6),
    "window, sorted": (lambda: WindowPackingBatcher(LIMIT, 4, sort=True, sort_over=10), 20),
    "knapsack": (lambda: KnapsackPackingBatcher(LIMIT, 10), 20),
    "best_fit_decreasing": (lambda: BestFitDecreasingPackingBatcher(LIMIT, 10), 20),
    "concat": (lambda: ConcatPackingBatcher(LIMIT), 2),
}
"""Each with the most rows that leave from a sample's coming to its own."""

EXACT = st.sampled_from([[8, 8], [15, 1], [7, 9], [15], [14], [4, 4, 4, 4]])
ADVERSE = st.lists(EXACT, max_size=40).map(
    lambda groups: [size for part in groups for size in part]
)
"""Samples that fill rows exactly, between some that leave a little room."""


@pytest.mark.parametrize("name", STREAMS)
@settings(deadline=None, max_examples=60)
@given(sizes=st.one_of(SHORT, ADVERSE), items=st.sampled_from([2, 5, 1000]))
def test_a_sample_leaves_within_a_known_number_of_rows(
    name: str, sizes: list[int], items: int
) -> None:
    """Whatever comes after it."""
    make, most = STREAMS[name]
    batcher, waited = make(), dict[SampleRef, int]()

    for ref in refs_of(sizes, items):
        whole = ref._replace(size=0, span=None)
        waited[whole] = 0
        for [row] in batcher.add(ref):
            waited = {held: rows + 1 for held, rows in waited.items()}
            for left in row:
                waited.pop(left._replace(size=0, span=None), None)
        assert max(waited.values(), default=0) < most


def test_a_row_with_a_little_room_is_not_open_for_ever() -> None:
    """While others are filled exactly: pairs of 8 pass by a row of 15, at most 4 x 2 times."""
    batcher = FirstFitPackingBatcher(LIMIT, 2)
    first, *others = refs_of([15] + [8] * 100)

    assert batcher.add(first) == []
    rows = [row for ref in others for [row] in batcher.add(ref)]

    assert rows.index([first]) <= 8


@pytest.mark.parametrize("name", STREAMS)
@settings(deadline=None, max_examples=40)
@given(sizes=st.one_of(SHORT, ADVERSE))
def test_a_sample_finishes_at_most_one_row(name: str, sizes: list[int]) -> None:
    """There are no bursts, of windows neither: their rows come while the next one fills."""
    batcher = STREAMS[name][0]()

    for ref in refs_of(sizes):
        assert len(batcher.add(ref)) <= 1


@pytest.mark.parametrize("cls", [KnapsackPackingBatcher, BestFitDecreasingPackingBatcher])
def test_rows_of_a_window_are_spread_over_the_next(cls: Any) -> None:
    """With 64 samples of a fourth of a row a window has 16 rows: one for every four samples."""
    batcher = cls(LIMIT, 64)
    came = [len(batcher.add(ref)) for ref in refs_of([4] * 1000)]
    at = [number for number, rows in enumerate(came) if rows]

    assert at[0] == 16, "the first window has the tokens of four rows"
    assert {after - before for before, after in pairwise(at[30:])} == {4}


# --- an item once in a row ------------------------------------------------------------------------

PACKERS: dict[str, Callable[[], SampleBatcher]] = {
    **{name: make for name, (make, _) in STREAMS.items() if name != "concat"},
    "best_fit": lambda: BestFitPackingBatcher(LIMIT, 6),
    "sequential": lambda: SequentialPackingBatcher(LIMIT, lookahead_limit=3),
    "pool": lambda: PoolPackingBatcher(4 * LIMIT, 6, None),
}


@pytest.mark.parametrize("name", PACKERS)
@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 6), max_size=80), items=st.sampled_from([1, 2, 3, 7]))
def test_no_batch_holds_two_samples_of_an_item(name: str, sizes: list[int], items: int) -> None:
    """On small data epochs of an item meet in what is held: they go to different batches."""
    batcher = PACKERS[name]()
    batches: list[Rows] = []
    for ref in refs_of(sizes, items):
        batches += batcher.add(ref, {"input_ids": [0] * ref.size})

    for batch in [*batches, *batcher.flush()]:
        indices = [ref.item.index for row in batch for ref in row]
        assert len(indices) == len(set(indices))


@pytest.mark.parametrize(
    ("batcher", "remedy"),
    [
        (KnapsackPackingBatcher(8, 25), "lanes: 4 or a smaller window suits"),
        (WindowPackingBatcher(8, 4, sort=True, sort_over=50), "lanes: 2 or a smaller sort_over"),
        (FirstFitPackingBatcher(8, 100), "lanes: 1 or a smaller open_rows suits"),
        (BestFitPackingBatcher(8, 26), "lanes: 3 or a smaller pool_size suits"),
        (WindowPackingBatcher(8, 12), ""),
        (NextFitPackingBatcher(8), ""),
    ],
    ids=lambda value: getattr(value, "type_name", None),
)
def test_check_warns_where_a_lane_has_fewer_items_than_four_pools(
    batcher: SampleBatcher, remedy: str
) -> None:
    """400 items over 8 lanes are 50 for each."""
    items = [{"input_ids": [1]} for _ in range(400)]
    job = Job(ItemsSource(items), batcher=batcher, collator=PackedCollator(), lanes=8)

    warnings = warnings_of_lanes(job.role_sets[0])

    assert [remedy in warning for warning in warnings] == [True] * bool(remedy)


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.1, "400 draws of an epoch over 8 lanes are 50.0 per lane"),
        (0.001, "4 draws of an epoch over 8 lanes: some lanes have none"),
        (0.25, ""),
    ],
)
def test_check_counts_what_an_epoch_draws(ratio: float, said: str) -> None:
    """Of 4,000 items; most of them may never be drawn."""
    items = [{"input_ids": [1]} for _ in range(4000)]
    packs = ratio > 0.01
    job = Job(
        ItemsSource(items),
        MapDistributor(sample_ratio=ratio),
        batcher=BestFitPackingBatcher(8, 26) if packs else NextFitPackingBatcher(8),
        collator=PackedCollator(),
        lanes=8,
    )

    warnings = warnings_of_lanes(job.role_sets[0])

    assert [said in warning for warning in warnings] == [True] * bool(said)


@pytest.mark.parametrize(("epochs", "mix"), [(1, False), (2, True), (None, True)])
def test_check_warns_of_epochs_that_mix_only_where_there_are_several(
    epochs: int | None, mix: bool
) -> None:
    """A validation set is read once: its pools never hold items of two epochs."""
    items = [{"input_ids": [1]} for _ in range(400)]
    packed = {"batcher": BestFitPackingBatcher(8, 26), "collator": PackedCollator()}
    job = Job(ItemsSource(items), **packed, lanes=8, epochs=epochs)

    warnings = warnings_of_lanes(job.role_sets[0])

    assert ["epochs mix in a pool" in warning for warning in warnings] == [True] * mix


# --- concat ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 8), st.integers(0, 70)), max_size=40),
    items=st.sampled_from([2, 1000]),
)
def test_concat_gives_the_concatenation_in_rows_of_one_length(sizes: list[int], items: int) -> None:
    """Every token of every sample once, in order; only the last row may be shorter."""
    refs = refs_of(sizes, items)
    batcher = ConcatPackingBatcher(LIMIT)

    rows = rows_of(batcher, refs)

    assert all(sum(ref.size for ref in row) == LIMIT for row in rows[:-1])
    pieces = [ref for row in rows for ref in row]
    tokens = [
        (ref.item, token)
        for ref in pieces
        for token in (range(ref.size) if ref.span is None else range(*ref.span))
    ]
    assert tokens == [(ref.item, token) for ref in refs for token in range(ref.size)]
    cut = {ref.item for ref in pieces if ref.span is not None}
    assert batcher.counters()["split"] == len(cut)


def test_concat_cuts_a_document_at_the_border_of_two_batches() -> None:
    """Of 10 and 25 tokens in rows of 16: the second is in three rows, by its spans."""
    first, second = refs_of([10, 25])

    rows = rows_of(ConcatPackingBatcher(16), [first, second])

    assert [[(ref.item.index, ref.size, ref.span) for ref in row] for row in rows] == [
        [(0, 10, None), (1, 6, Span(0, 6))],
        [(1, 16, Span(6, 22))],
        [(1, 3, Span(22, 25))],
    ]


def test_concat_counts_what_it_leaves_out_at_the_end() -> None:
    """The head of a document that has a row is delivered, and its rest truncated."""
    whole, cut, last = refs_of([10, 12, 3])
    batcher = ConcatPackingBatcher(16, drop_last=True)

    rows = rows_of(batcher, [whole, cut, last])

    assert numbers(rows) == [[0, 1]]
    assert batcher.dropped() == {"empty": 0, "tail": 1}
    counts = batcher.counters()
    assert counts == {"split": 1, "repeated": 0, "tail_truncated": 1, "truncated_tokens": 6}


def test_concat_counts_items_that_a_row_must_hold_twice() -> None:
    """An epoch of 5 tokens in rows of 16."""
    batcher = ConcatPackingBatcher(16)

    rows_of(batcher, refs_of([2, 3] * 8, items=2))

    assert batcher.counters()["repeated"] == 11


# --- parameters -----------------------------------------------------------------------------------


def test_knapsack_keeps_the_first_rows_of_each_window_where_that_is_asked() -> None:
    """Of 4 rows of a window 1 is kept, and its 6 other samples are counted."""
    batcher = KnapsackPackingBatcher(LIMIT, 8, max_packs=1)

    rows = rows_of(batcher, refs_of([8] * 16))

    assert [len(row) for row in rows] == [2, 2]
    assert batcher.dropped()["max_packs"] == 12


def test_a_sample_between_packing_ratio_and_a_row_is_a_row_of_its_own() -> None:
    """15 of 16 with a ratio of 0.75: it fits into the row, and not with another."""
    rows = rows_of(KnapsackPackingBatcher(LIMIT, 4, packing_ratio=0.75), refs_of([15, 6, 6, 12]))

    assert sorted(numbers(rows)) == [[0], [1, 2], [3]]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FirstFitPackingBatcher(8, 0), "open_rows is 0: give the rows that stay open"),
        (lambda: BalancedPackingBatcher(8, open_rows=True), "open_rows is True"),
        (lambda: KnapsackPackingBatcher(8, 0), "window is 0: give the samples that are packed"),
        (lambda: KnapsackPackingBatcher(8, packing_ratio=0), "packing_ratio is 0: give the part"),
        (lambda: KnapsackPackingBatcher(8, packing_ratio=1.5), "packing_ratio is 1.5"),
        (lambda: KnapsackPackingBatcher(8, packing_ratio=0.1), "packing_ratio is 0.1, so rows of"),
        (lambda: KnapsackPackingBatcher(8, max_packs=0), "max_packs is 0"),
        (
            lambda: KnapsackPackingBatcher(8, drop_long_samples=True, overlong="split"),
            "overlong is 'split' and drop_long_samples is true: leave one",
        ),
        (lambda: BestFitDecreasingPackingBatcher(8, 0), "window is 0"),
        (lambda: WindowPackingBatcher(8, 0), "window is 0: give the samples that a scan looks at"),
        (lambda: WindowPackingBatcher(8, sort="yes"), "sort is 'yes': write true or false"),  # type: ignore[arg-type]
        (lambda: WindowPackingBatcher(8, sort_over=0), "sort_over is 0"),
        (lambda: NextFitPackingBatcher(8, overlong="cut"), "overlong is 'cut': choose one of"),
        (lambda: ConcatPackingBatcher(0), "max_tokens is 0: give the tokens of a row"),
        (lambda: ConcatPackingBatcher(4, 0), "rows is 0"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(
    make: Callable[[], SampleBatcher], sentence: str
) -> None:
    """With its value and the remedy, before any data is touched."""
    with pytest.raises(InvalidJob, match=sentence) as caught:
        make()

    assert caught.value.fields["key"] in str(caught.value)
