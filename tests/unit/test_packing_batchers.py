"""What each built-in batcher promises beyond the contract of all batchers."""

from __future__ import annotations

import itertools
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server import packing
from penstock.server.core.refs import ItemRef, Rows, SampleRef, Span
from penstock.server.roles.batcher import SampleBatcher, facts_of
from penstock.server.roles.batchers import (
    BestFitPackingBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
)
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadItem, InvalidJob

SIZES = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 60)), max_size=60)
MANY_SIZES = st.integers(0, 10**6).map(
    lambda seed: random.Random(seed).choices(range(1, 30), k=seed % 300)
)


def refs_of(sizes: Sequence[int], items: int = 1_000_000) -> list[SampleRef]:
    """Samples of a source of so many items: after the last item the next epoch begins."""
    return [
        SampleRef(ItemRef("main", draw % items, draw // items), size=size)
        for draw, size in enumerate(sizes)
    ]


def run(batcher: SampleBatcher, refs: Sequence[SampleRef], **content: Any) -> list[Rows]:
    """Every group of a finite lane."""
    groups: list[Rows] = []
    for ref in refs:
        groups += batcher.add(ref, dict(content))
    return groups + batcher.flush()


def indices(groups: Sequence[Rows]) -> list[list[int]]:
    """The items of each group, its rows behind each other."""
    return [[ref.item.index for row in group for ref in row] for group in groups]


# --- simple --------------------------------------------------------------------------------------


def test_simple_arithmetic_is_what_adding_gives() -> None:
    """Counted for all batch sizes to 5 and all lanes to 20 draws: groups, and draws before each."""
    for batch_size in range(1, 6):
        for drop_last in (False, True):
            for draws in range(21):
                batcher = SimpleBatcher(batch_size, drop_last)
                refs = refs_of([0] * draws)

                groups = run(batcher, refs)

                assert facts_of(batcher).batches(draws) == len(groups)
                for offset, group in enumerate(groups):
                    before = facts_of(batcher).draws_before(offset)
                    assert group == [[ref] for ref in refs[before : before + batch_size]]
                dropped = draws - sum(len(group) for group in groups)
                assert batcher.dropped() == {"tail": dropped}
                assert dropped == (draws % batch_size if drop_last else 0)


# --- sequential ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(sizes=SIZES, limit=st.integers(2, 50), lookahead=st.integers(0, 12), rows=st.integers(1, 4))
def test_sequential_fed_one_by_one_packs_as_the_function_on_the_whole_list(
    sizes: list[int], limit: int, lookahead: int, rows: int
) -> None:
    """Overlong samples are left out, and keep their places in the look ahead.

    Groups are that many of these rows, in order; only the last one may have fewer.
    """
    batcher = SequentialPackingBatcher(limit, lookahead_limit=lookahead, rows=rows)

    groups = run(batcher, refs_of(sizes))

    assert all(len(group) == rows for group in groups[:-1])
    packed = [[ref.item.index for ref in row] for group in groups for row in group]
    assert packed == packing.sequential(sizes, limit, lookahead_limit=lookahead)
    assert batcher.dropped()["overlong"] == sum(size >= limit for size in sizes)


def test_sequential_by_count_needs_no_sizes() -> None:
    """Samples of unknown size are counted; with a limit in tokens sizes are asked for."""
    batcher = SequentialPackingBatcher(max_samples_per_batch=2)

    groups = run(batcher, refs_of([0, 0, 0]))

    assert indices(groups) == [[0, 1], [2]]
    assert not batcher.needs_sizes
    assert SequentialPackingBatcher(9).needs_sizes
    assert facts_of(SequentialPackingBatcher(9)).batches(5) is None
    assert facts_of(SequentialPackingBatcher(9)).draws_before(5) is None


def test_sequential_by_count_is_arithmetic() -> None:
    """Counted for small limits and all lanes to 20 draws: groups, and draws before each."""
    for most, rows, lookahead in itertools.product((1, 2, 3), (1, 2, 3), (0, 1, 10)):
        for draws in range(21):
            batcher = SequentialPackingBatcher(None, most, lookahead, rows)
            refs = refs_of([0] * draws)

            groups = run(batcher, refs)

            assert facts_of(batcher).batches(draws) == len(groups)
            starts = [facts_of(batcher).draws_before(offset) for offset in range(len(groups))]
            firsts = [refs.index(group[0][0]) for group in groups]
            assert starts == firsts
            assert [ref for group in groups for row in group for ref in row] == refs


class Looking(SequentialPackingBatcher):
    """A user's: looks at sizes whatever finishes a row."""

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Leave out what is large."""
        return [] if ref.size > 5 else super().add(ref)


def test_what_derives_from_sequential_is_still_told_sizes() -> None:
    """By count, too; and nothing is computed for it."""
    batcher = Looking(max_samples_per_batch=2)

    assert indices(run(batcher, refs_of([1, 9, 2]))) == [[0, 2]]
    assert batcher.needs_sizes
    assert facts_of(batcher).batches(3) is None
    assert facts_of(batcher).draws_before(1) is None


# --- pool ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    sizes=SIZES,
    limit=st.integers(1, 200),
    pool_size=st.integers(1, 20),
    most=st.sampled_from([None, 1, 2, 5]),
    strategy=st.sampled_from(["prefer_closest", "prefer_first"]),
)
def test_pool_fed_one_by_one_packs_as_the_function_on_the_whole_list(
    sizes: list[int], limit: int, pool_size: int, most: int | None, strategy: str
) -> None:
    """With modalities by content, as a processor gives it."""
    refs = refs_of(sizes)
    contents: list[Sample] = [
        {"input_ids": [0], "pixel_values": None},
        {"pixel_values": np.zeros(2)},
        {"pixel_values_videos": np.zeros(2), "pixel_values": np.zeros(2)},
    ]
    names = ["text", "image", "video"]
    kinds = [size % 3 for size in sizes]
    batcher = PoolPackingBatcher(limit, pool_size, most, 40, strategy)

    groups: list[Rows] = []
    for ref, kind in zip(refs, kinds, strict=True):
        groups += batcher.add(ref, contents[kind])
    groups += batcher.flush()

    assert all(len(row) == 1 for group in groups for row in group)
    assert indices(groups) == packing.pool(
        sizes,
        limit,
        pool_size=pool_size,
        max_batch_size=most,
        long_threshold=40,
        strategy=strategy,
        kinds=[names[kind] for kind in kinds],
    )


def test_pool_refuses_to_guess_a_modality() -> None:
    """Without content there is an error that says so, and nothing is taken."""
    batcher = PoolPackingBatcher(10)

    with pytest.raises(InvalidJob, match=r"main\[0\] in epoch 0 without its content"):
        batcher.add(refs_of([1])[0])

    assert list(batcher.pending) == []


# --- best fit ------------------------------------------------------------------------------------


def young_pool(rows: int) -> int:
    """How many samples a row is chosen from, after so many rows of the pool."""
    return 4 + rows if rows < 4 else 7 + rows // 4


def slow_best_fit(refs: Sequence[SampleRef], limit: int, pool_size: int) -> Iterator[list[Any]]:
    """The rows of a best-fit packer that splits, by loops over a plain list."""
    waiting: list[SampleRef] = []
    places: dict[SampleRef, int] = {}  # how many were placed before it, and it
    from_pool = 0

    def fill() -> list[SampleRef]:
        opens = max(waiting, key=lambda ref: ref.size)
        if len(places) - places[waiting[0]] >= 4 * pool_size:
            opens = waiting[0]
        waiting.remove(opens)
        row = [opens]
        while True:
            room = limit - sum(ref.size for ref in row)
            fitting = [
                ref
                for ref in waiting
                if ref.size <= room and all(ref.item.index != other.item.index for other in row)
            ]
            if not fitting:
                return row
            largest = max(fitting, key=lambda ref: ref.size)  # the first, so the oldest, of equals
            waiting.remove(largest)
            row.append(largest)

    for ref in refs:
        pieces = [(start, min(start + limit, ref.size)) for start in range(0, ref.size, limit)]
        for start, stop in pieces:
            piece = (
                ref if len(pieces) == 1 else SampleRef(ref.item, 0, stop - start, Span(start, stop))
            )
            if stop - start == limit:
                yield [piece]
            else:
                waiting.append(piece)
                places[piece] = len(places) + 1
                enough = len(waiting) >= young_pool(from_pool)
                full_row = sum(ref.size for ref in waiting) >= limit
                if len(waiting) == pool_size or (enough and full_row):
                    yield fill()
                    from_pool += 1
    while waiting:
        yield fill()


@settings(deadline=None, max_examples=300)
@given(
    sizes=st.one_of(SIZES, MANY_SIZES),
    limit=st.integers(1, 50),
    pool_size=st.one_of(st.integers(1, 12), st.just(64)),
    rows=st.integers(1, 4),
    items=st.sampled_from([1, 3, 7, 1000]),
)
def test_best_fit_makes_the_rows_of_its_obvious_form(
    sizes: list[int], limit: int, pool_size: int, rows: int, items: int
) -> None:
    """The largest first, or one overdue, then the largest that fits and is not in the row yet."""
    refs = refs_of(sizes, items)

    groups = run(BestFitPackingBatcher(limit, pool_size, rows=rows), refs)

    expected = list(slow_best_fit(refs, limit, pool_size))
    assert [row for group in groups for row in group] == expected
    assert all(len(group) == rows for group in groups[:-1])
    assert not groups or 1 <= len(groups[-1]) <= rows


@settings(deadline=None, max_examples=200)
@given(
    sizes=st.one_of(SIZES, MANY_SIZES),
    pool_size=st.one_of(st.integers(1, 12), st.just(16)),
    items=st.sampled_from([1, 3, 1000]),
)
def test_no_sample_waits_for_more_rows_than_five_pools_hold(
    sizes: list[int], pool_size: int, items: int
) -> None:
    """Counted in rows that come from the pool; full rows of long samples pass by its side."""
    batcher = BestFitPackingBatcher(16, pool_size)
    waited: dict[SampleRef, int] = {}

    for ref in refs_of(sizes, items):
        for [row] in batcher.add(ref):
            if len(row) == 1 and row[0].size == 16:
                continue
            for left in row:
                assert waited.pop(left, 0) < 5 * pool_size
            waited = {held: rows + 1 for held, rows in waited.items()}
        waited = {held: waited.get(held, 0) for held in batcher.pending}


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 16), max_size=80), pool_size=st.integers(1, 12))
def test_rows_come_steadily(sizes: list[int], pool_size: int) -> None:
    """A sample that fits into a row finishes at most one: there are no bursts."""
    batcher = BestFitPackingBatcher(16, pool_size)

    for ref in refs_of(sizes):
        assert len(batcher.add(ref)) <= 1


def test_the_pool_grows_after_every_row_and_then_after_every_four() -> None:
    """From 4 samples to the whole pool: what is held before each row, through restored states."""
    batcher = BestFitPackingBatcher(16, pool_size=20)
    before_rows: list[int] = []

    for ref in refs_of([15] * 200):  # each row holds one of them
        held = len(batcher.pending)
        if batcher.add(ref):
            before_rows.append(held + 1)
        if len(before_rows) in (2, 18):
            state = batcher.state()
            batcher = batcher.clone()
            batcher.restore(state)

    assert before_rows[:6] == [4, 5, 6, 7, 8, 8]
    assert before_rows[:52] == [young_pool(row) for row in range(52)]
    assert set(before_rows[52:]) == {20}


def test_a_young_pool_waits_for_the_tokens_of_a_row() -> None:
    """Four short samples make no row: short ones gather until they fill one, or the pool."""
    sizes = [100] * 400

    rows = run(BestFitPackingBatcher(5000), refs_of(sizes))
    short = run(BestFitPackingBatcher(5000, pool_size=32), refs_of(sizes))

    assert [len(row) for [row] in rows] == [50] * 8
    assert [len(row) for [row] in short] == [32] * 12 + [16]


def test_the_first_rows_of_many_lanes_come_after_few_samples() -> None:
    """48 lanes over 1,000 documents: less than an epoch for the first rows, and no lone ones.

    Full rows of documents above the limit are not counted: they pass beside the pool.
    """
    sizes = [min(9000, 40 + int(1200 * x * x)) for x in np.random.default_rng(1).normal(0, 1, 1000)]
    drawn = 0
    alone = []
    for lane in range(48):
        batcher = BestFitPackingBatcher(8192)
        for index in np.random.default_rng(0).permutation(1000)[lane::48].tolist():
            drawn += 1
            if groups := batcher.add(SampleRef(ItemRef("a", index, 0), size=sizes[index])):
                alone += [len(row) == 1 and row[0].size < 7000 for [row] in groups]
                break

    assert drawn < 48 * 13
    assert len(alone) >= 48
    assert not any(alone)


def test_a_row_never_holds_a_sample_twice_while_there_are_other_rows() -> None:
    """Two epochs of one item in the pool go to two rows, and the next smaller sample steps in."""
    batcher = BestFitPackingBatcher(10, pool_size=3)
    first, other = SampleRef(ItemRef("a", 0, 0), size=5), SampleRef(ItemRef("a", 1, 0), size=2)
    again = first._replace(item=ItemRef("a", 0, 1))
    same_index = SampleRef(ItemRef("b", 0, 0), size=3)
    other_part = first._replace(part=1, size=3)

    assert run(batcher, [first, again, other]) == [[[first, other]], [[again]]]
    assert run(batcher, [first, same_index, other]) == [[[first, same_index, other]]]
    assert run(batcher, [first, other_part, other]) == [[[first, other_part, other]]]


def test_each_policy_for_overlong_samples_is_counted() -> None:
    """Pieces, the head, nothing: what comes out of 25 tokens for rows of 10, and what is told."""
    long = SampleRef(ItemRef("a", 0, 0), part=2, size=25)

    def piece(start: int, stop: int) -> SampleRef:
        return SampleRef(long.item, 2, stop - start, Span(start, stop))

    expected: dict[str, tuple[list[Rows], dict[str, int]]] = {
        "split": ([[[piece(0, 10)]], [[piece(10, 20)]], [[piece(20, 25)]]], {"overlong_split": 1}),
        "truncate": ([[[piece(0, 10)]]], {"overlong_truncated": 1, "truncated_tokens": 15}),
        "drop": ([], {"dropped:overlong": 1}),
        "alone": ([[[long]]], {"overlong_alone": 1}),
    }
    for overlong, (groups, counts) in expected.items():
        batcher = BestFitPackingBatcher(10, overlong=overlong)

        assert run(batcher, [long]) == groups
        dropped = {f"dropped:{reason}": count for reason, count in batcher.dropped().items()}
        told = {**batcher.counters(), **dropped}
        assert {name: count for name, count in told.items() if count} == counts


def test_a_piece_of_a_piece_keeps_the_elements_of_the_whole() -> None:
    """Spans count in the elements of the sample, also where what is split is already a piece."""
    ref = SampleRef(ItemRef("a", 0, 0), size=15, span=Span(100, 115))

    groups = run(BestFitPackingBatcher(10), [ref])

    assert [row[0].span for [row] in groups] == [Span(100, 110), Span(110, 115)]


def test_an_overlong_sample_can_be_an_error_that_changes_nothing() -> None:
    """The item, its size and the way out are named, and the pool stays as it was."""
    batcher = BestFitPackingBatcher(10, overlong="error")
    batcher.add(SampleRef(ItemRef("a", 0, 0), size=4))
    before = batcher.state()

    with pytest.raises(
        BadItem, match=r"a\[7\] in epoch 3: 11 tokens .* row of 10.*split"
    ) as caught:
        batcher.add(SampleRef(ItemRef("a", 7, 3), size=11))

    assert batcher.state() == before
    assert caught.value.fields["item"] == ["a", 7, 3]
    assert caught.value.fields["stage"] == "draw"


def test_best_fit_fills_rows_of_source_code_to_99_percent() -> None:
    """Python's own library at 4 bytes a token, two shuffled epochs, rows of 8,192, a pool of 64."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    sizes = [path.stat().st_size // 4 for path in files]
    refs = [
        SampleRef(ItemRef("library", index, epoch), size=sizes[index])
        for epoch in range(2)
        for index in random.Random(epoch).sample(range(len(sizes)), len(sizes))
    ]
    batcher = BestFitPackingBatcher(8192, pool_size=64)

    rows = [row for ref in refs for [row] in batcher.add(ref)]

    tokens = sum(ref.size for row in rows for ref in row)
    assert len(rows) > 500
    assert tokens / (8192 * len(rows)) >= 0.99


def test_a_subclass_with_more_attributes_is_restored_with_them() -> None:
    """What a user's packer adds to a built-in one travels in the same state."""

    class Remembering(BestFitPackingBatcher):
        """Counts the tokens that it has seen."""

        def __init__(self, max_tokens: int) -> None:
            super().__init__(max_tokens, pool_size=4, rows=2)
            self.tokens_seen = 0

        def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
            """Take one sample and note its size."""
            self.tokens_seen += ref.size
            return super().add(ref, sample)

    batcher = Remembering(10)
    refs = refs_of([3, 4, 15, 6, 2, 9])
    for ref in refs[:4]:
        batcher.add(ref)

    restored = batcher.clone()
    restored.restore(batcher.state())

    assert restored.tokens_seen == 28
    assert run(restored, refs[4:]) == run(batcher, refs[4:])
    assert restored.state() == batcher.state()


# --- sizes and parameters ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batcher",
    [
        BestFitPackingBatcher(10, length_key="tokens"),
        PoolPackingBatcher(10, length_key="tokens"),
        SequentialPackingBatcher(10, length_key="tokens"),
    ],
    ids=lambda batcher: batcher.type_name,
)
def test_a_packer_measures_the_value_that_it_is_told(batcher: SampleBatcher) -> None:
    """Lists and arrays alike; a sample without the value is told what it has instead."""
    assert batcher.size_of({"tokens": np.zeros(3), "input_ids": [1]}) == 3

    with pytest.raises(InvalidJob, match=r"'tokens', but .* 'input_ids', 'labels': name one"):
        batcher.size_of({"input_ids": [1], "labels": [1]})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SimpleBatcher(0), "batch_size is 0: give the samples of a batch"),
        (lambda: SimpleBatcher(True), "batch_size is True"),
        (lambda: SimpleBatcher(2, drop_last="no"), "drop_last is 'no': write true or false"),  # type: ignore[arg-type]
        (
            lambda: SequentialPackingBatcher(),
            "None and max_samples_per_batch is None: give exactly",
        ),
        (
            lambda: SequentialPackingBatcher(9, 9),
            "is 9 and max_samples_per_batch is 9: give exactly",
        ),
        (lambda: SequentialPackingBatcher(1), "max_sequence_length is 1: .* at least 2"),
        (lambda: SequentialPackingBatcher(None, 0), "max_samples_per_batch is 0"),
        (lambda: SequentialPackingBatcher(9, lookahead_limit=-1), "lookahead_limit is -1"),
        (lambda: PoolPackingBatcher(0), "max_tokens is 0"),
        (lambda: PoolPackingBatcher(9, 0), "pool_size is 0"),
        (lambda: PoolPackingBatcher(9, 1, -1), "max_batch_size is -1"),
        (lambda: PoolPackingBatcher(9, long_threshold=0), "long_threshold is 0"),
        (
            lambda: PoolPackingBatcher(9, batching_strategy="closest"),
            "batching_strategy is 'closest': choose one of prefer_closest, prefer_first",
        ),
        (
            lambda: PoolPackingBatcher(9, apply_long_sample_halving=1),  # type: ignore[arg-type]
            "apply_long_sample_halving is 1",
        ),
        (lambda: BestFitPackingBatcher("8k"), "max_tokens is '8k': .* whole number"),  # type: ignore[arg-type]
        (lambda: BestFitPackingBatcher(8, 0), "pool_size is 0"),
        (lambda: BestFitPackingBatcher(8, rows=0), "rows is 0"),
        (
            lambda: BestFitPackingBatcher(8, overlong="cut"),
            "overlong is 'cut': choose one of split, truncate, drop, alone, error",
        ),
        (lambda: BestFitPackingBatcher(8, length_key=""), "length_key is ''"),
    ],
)
def test_a_parameter_that_cannot_be_is_named_with_its_value_and_the_remedy(
    make: Callable[[], SampleBatcher], sentence: str
) -> None:
    """One sentence each, before any data is touched, with the parameter as the error's key."""
    with pytest.raises(InvalidJob, match=sentence) as caught:
        make()

    assert caught.value.fields["key"] in str(caught.value)
