"""What every batcher keeps: nothing lost or twice, bounded, exact after any interruption."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.core.refs import ItemRef, Rows, SampleRef, Span
from penstock.server.roles.batcher import BatcherFacts, SampleBatcher
from penstock.server.roles.batchers import (
    BUILTIN_BATCHERS,
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
    SimpleBatcher,
    WindowPackingBatcher,
)
from penstock.server.roles.samples import Sample
from penstock.server.testing import check_batcher
from penstock.server.testing import roles as testing
from penstock.server.testing.roles import check_facts, check_restored, tell

# Samples of 2 modalities and sizes around the limits of the cases below, some of them empty.
SIZES = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=30)
ITEMS = st.sampled_from([2, 5, 1000])  # small data: one item comes again in many epochs


class HoldsList(SampleBatcher):
    """A user's batcher with one attribute: pairs of samples, the smaller one first."""

    def __init__(self, most: int = 2) -> None:
        self.most = most
        self.held: list[SampleRef] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the pair that it completed."""
        self.held.append(ref)
        if len(self.held) < self.most:
            return []
        group = [[one] for one in sorted(self.held, key=lambda one: one.size)]
        self.held = []
        return [group]

    def flush(self) -> list[Rows]:
        """Return the sample that has no partner."""
        held, self.held = self.held, []
        return [[[one] for one in held]] if held else []


class HoldsEverything(SampleBatcher):
    """A user's batcher whose attributes are of every kind that a snapshot may hold."""

    def __init__(self) -> None:
        self.queue: deque[SampleRef] = deque(maxlen=100)
        self.by_size: dict[int, list[SampleRef]] = {}
        self.seen: tuple[int, float, str, bool, None] = (0, 0.0, "", False, None)
        self.last_item: ItemRef | None = None
        self.last_span: Span | None = None

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return rows of two of like size that it completed."""
        count = self.seen[0] + 1
        self.seen = (count, count / 3, f"{count} samples", count % 2 == 0, None)
        self.last_item, self.last_span = ref.item, Span(0, ref.size)
        self.queue.append(ref)
        if len(self.queue) == 3:
            first = self.queue.popleft()
            self.by_size.setdefault(first.size // 8, []).append(first)
        full = [size for size, refs in self.by_size.items() if len(refs) == 2]
        return [[self.by_size.pop(size)] for size in full]

    def flush(self) -> list[Rows]:
        """Return one row of all that is left."""
        left = [*self.queue, *(ref for refs in self.by_size.values() for ref in refs)]
        self.queue.clear()
        self.by_size.clear()
        return [[left]] if left else []


@dataclass(frozen=True)
class Case:
    """One batcher with one set of parameters, and what it promises.

    Attributes:
        make: A fresh batcher.
        fits: Whether a group keeps to the batcher's limits.
        most_pending: The most samples that it may hold between calls.
        patience: The most groups that a sample may wait for after it came; None = not promised.
    """

    name: str
    make: Callable[[], SampleBatcher]
    fits: Callable[[Rows], bool]
    most_pending: int
    patience: int | None


def simple(size: int, **options: Any) -> Case:
    return Case(
        f"simple-{size}-{options}",
        lambda: SimpleBatcher(size, **options),
        lambda group: 1 <= len(group) <= size and all(len(row) == 1 for row in group),
        size - 1,
        1,
    )


def sequential(limit: int, rows: int = 1, **options: Any) -> Case:
    return Case(
        f"sequential-{limit}-{rows}-{options}",
        lambda: SequentialPackingBatcher(limit, rows=rows, **options),
        lambda group: (
            1 <= len(group) <= rows
            and all(0 < sum(ref.size for ref in row) < limit for row in group)
        ),
        # The finished rows of a group that lacks some, too.
        rows * (limit - 1) + options.get("lookahead_limit", 10),
        options.get("lookahead_limit", 10) + 1,
    )


def counted(most: int) -> Case:
    return Case(
        f"sequential-counted-{most}",
        lambda: SequentialPackingBatcher(max_samples_per_batch=most),
        lambda group: len(group) == 1 and 1 <= len(group[0]) <= most,
        most - 1,
        1,
    )


def pool(limit: int, pool_size: int, most: int | None, **options: Any) -> Case:
    def fits(group: Rows) -> bool:
        if any(len(row) != 1 for row in group) or (most and len(group) > most):
            return False
        longest = max(row[0].size for row in group)
        one_kind = len({kind(row[0].item) for row in group}) == 1
        return one_kind and (len(group) == 1 or longest * len(group) <= limit)

    return Case(
        f"pool-{limit}-{pool_size}-{most}-{options}",
        lambda: PoolPackingBatcher(limit, pool_size, most, **options),
        fits,
        pool_size - 1,
        pool_size,
    )


def best_fit(limit: int, pool_size: int, rows: int = 1, overlong: str = "split") -> Case:
    return Case(
        f"best_fit-{limit}-{pool_size}-{rows}-{overlong}",
        lambda: BestFitPackingBatcher(limit, pool_size, rows=rows, overlong=overlong),
        lambda group: (
            1 <= len(group) <= rows
            and all(0 < sum(ref.size for ref in row) <= limit for row in group)
        ),
        # The finished rows of a group that lacks some; each holds at least 1 token per sample.
        pool_size - 1 + (rows - 1) * limit,
        None,  # counted in rows from the pool, by a test of its own
    )


def packed(name: str, limit: int, held: int, make: Callable[[], SampleBatcher]) -> Case:
    """A batcher of rows of at most `limit` tokens, one to a batch, that holds so many samples.

    How long a sample waits is counted in rows of short samples, by tests of their own.
    """

    def fits(group: Rows) -> bool:
        return len(group) == 1 and 0 < sum(ref.size for ref in group[0]) <= limit

    return Case(name, make, fits, held, None)


def several(case: Case, rows: int, limit: int) -> Case:
    """The same batcher with several rows to a batch: it also holds those that wait for others."""

    def fits(group: Rows) -> bool:
        return 1 <= len(group) <= rows and all(case.fits([row]) for row in group)

    return replace(case, fits=fits, most_pending=case.most_pending + (rows - 1) * limit)


CASES = [
    simple(1),
    simple(3),
    simple(4, drop_last=True),
    sequential(20),
    sequential(20, lookahead_limit=0),
    sequential(33, lookahead_limit=2),
    sequential(33, rows=3, lookahead_limit=4),
    counted(1),
    counted(3),
    pool(40, 1, None),
    pool(60, 5, None),
    pool(60, 8, 3, batching_strategy="prefer_first"),
    pool(100, 6, 0, long_threshold=30, apply_long_sample_halving=False),
    best_fit(16, 1),
    best_fit(16, 4),
    best_fit(40, 7, rows=3),
    best_fit(16, 24),
    best_fit(16, 4, overlong="truncate"),
    best_fit(16, 4, rows=2, overlong="drop"),
    best_fit(16, 4, overlong="error"),
    packed("first_fit-1", 16, 15, lambda: FirstFitPackingBatcher(16, 1)),
    packed("first_fit-3", 16, 45, lambda: FirstFitPackingBatcher(16, 3)),
    packed("next_fit", 16, 15, lambda: NextFitPackingBatcher(16)),
    packed("next_fit-drop", 33, 32, lambda: NextFitPackingBatcher(33, overlong="drop")),
    several(
        packed("open_best_fit-rows", 16, 45, lambda: OpenBestFitPackingBatcher(16, 3, rows=2)),
        2,
        16,
    ),
    packed("balanced", 40, 4 * 39, lambda: BalancedPackingBatcher(40, 4, overlong="error")),
    packed("knapsack", 16, 12, lambda: KnapsackPackingBatcher(16, 6, overlong="truncate")),
    packed(
        "knapsack-ratio",
        20,
        8,
        lambda: KnapsackPackingBatcher(
            20, 4, packing_ratio=0.7, drop_long_samples=True, max_packs=2
        ),
    ),
    packed("best_fit_decreasing", 16, 40, lambda: BestFitDecreasingPackingBatcher(16, 20)),
    several(
        packed(
            "best_fit_decreasing-rows",
            24,
            10,
            lambda: BestFitDecreasingPackingBatcher(24, 5, rows=3),
        ),
        3,
        24,
    ),
    packed("window-4", 16, 3, lambda: WindowPackingBatcher(16, 4)),
    packed("window-sorted", 16, 20, lambda: WindowPackingBatcher(16, 4, sort=True, sort_over=10)),
    packed("concat", 16, 15, lambda: ConcatPackingBatcher(16)),
    several(packed("concat-rows", 7, 6, lambda: ConcatPackingBatcher(7, 3, drop_last=True)), 3, 7),
    Case("user-list", HoldsList, lambda group: 1 <= len(group) <= 2, 1, 1),
    Case("user-everything", HoldsEverything, lambda group: len(group) == 1, 10, None),
]
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def kind(item: ItemRef) -> str:
    return "image" if (item.index + item.epoch) % 3 == 0 else "text"


def refs_of(sizes: Sequence[int], items: int) -> list[SampleRef]:
    """Samples of a source of so many items: after the last item the next epoch begins."""
    return [
        SampleRef(ItemRef("main", draw % items, draw // items), size=size)
        for draw, size in enumerate(sizes)
    ]


def content(ref: SampleRef) -> Sample:
    sample: Sample = {"input_ids": range(ref.size)}
    return sample | {"pixel_values": [0.5]} if kind(ref.item) == "image" else sample


def add(batcher: SampleBatcher, ref: SampleRef) -> list[Rows] | None:
    """Add as a planner does: content only for who asks for it; None = refused as a bad item."""
    return testing.add(batcher, ref, {ref: content(ref)})


def check_conserved(
    batcher: SampleBatcher, given: Sequence[SampleRef], groups: Sequence[Rows], refused: int
) -> None:
    """Each sample is whole, in one place or in pieces, or is counted as left out."""
    pieces: dict[tuple[ItemRef, int], list[SampleRef]] = defaultdict(list)
    for ref in [*(r for group in groups for row in group for r in row), *batcher.pending]:
        pieces[ref.item, ref.part].append(ref)
    counts = batcher.counters()
    missing = truncated = cut_off = 0
    for ref in given:
        found = pieces.pop((ref.item, ref.part), None)
        if found is None:
            missing += 1
        elif found != [ref]:
            spans = sorted(piece.span for piece in found if piece.span is not None)
            assert len(spans) == len(found), f"{found} mixes pieces with the whole of {ref}"
            assert sum(piece.size for piece in found) == spans[-1].stop
            assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
            truncated += spans[-1].stop < ref.size
            cut_off += ref.size - spans[-1].stop
    assert not pieces, f"made up: {pieces}"
    assert missing == refused + sum(batcher.dropped().values())
    assert truncated == counts.get("overlong_truncated", 0) + counts.get("tail_truncated", 0)
    assert cut_off == counts.get("truncated_tokens", 0)


@EVERY_CASE
@settings(deadline=None, max_examples=25)
@given(sizes=SIZES, items=ITEMS)
def test_what_a_batcher_promises_holds(case: Case, sizes: list[int], items: int) -> None:
    refs = refs_of(sizes, items)

    check_facts(case.make(), refs, {ref: content(ref) for ref in refs})


@pytest.mark.parametrize(
    ("promised", "sizes", "said"),
    [
        (BatcherFacts(sizes_kept=(0, 99)), [3, 0], "sizes_kept .0, 99., and size 0 was left out"),
        (BatcherFacts(), [3, 17], "Hasty refuses .*and says it never does"),
        (BatcherFacts(samples_of_batch=2), [16, 16], "made 2 batches of 2 samples, .* tell 1"),
        (BatcherFacts(row_limit=15), [8, 8], "a row above its row_limit of 15"),
    ],
    ids=["drops", "refuses", "counts", "fills"],
)
def test_a_promise_that_does_not_hold_is_told(
    promised: BatcherFacts, sizes: list[int], said: str
) -> None:
    class Hasty(BestFitPackingBatcher):
        """Promises what the case says, and never to refuse."""

        def facts(self) -> BatcherFacts:
            """Return what does not hold."""
            return replace(promised, may_refuse=False)

    refs = refs_of(sizes, 1000)

    with pytest.raises(AssertionError, match=said):
        check_facts(Hasty(16, 4, overlong="error"), refs, {ref: content(ref) for ref in refs})


@EVERY_CASE
@settings(deadline=None, max_examples=25)
@given(sizes=SIZES, items=ITEMS)
def test_every_sample_is_delivered_pending_or_counted(
    case: Case, sizes: list[int], items: int
) -> None:
    """After every add and at the end each span of each sample is in exactly one place."""
    batcher, refs = case.make(), refs_of(sizes, items)
    groups: list[Rows] = []
    refused = 0

    check_conserved(batcher, [], groups, refused)
    for count, ref in enumerate(refs, 1):
        finished = add(batcher, ref)
        refused += finished is None
        groups += finished or []
        check_conserved(batcher, refs[:count], groups, refused)
    groups += batcher.flush()

    assert list(batcher.pending) == []
    check_conserved(batcher, refs, groups, refused)


@EVERY_CASE
@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, items=ITEMS)
def test_groups_keep_to_the_limits_and_what_is_held_is_bounded(
    case: Case, sizes: list[int], items: int
) -> None:
    """No group or row is above its limit or empty, and no history makes the pool grow."""
    batcher = case.make()

    for ref in refs_of(sizes, items):
        for group in add(batcher, ref) or []:
            assert case.fits(group), group
        assert len(batcher.pending) <= case.most_pending
    for group in batcher.flush():
        assert case.fits(group), group


@EVERY_CASE
@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, items=ITEMS)
def test_every_batcher_keeps_the_contract(case: Case, sizes: list[int], items: int) -> None:
    """The published one: nothing lost, exact from any point on, alike each time.

    Its samples are of different items; here items come again in later epochs, too.
    """
    refs = refs_of(sizes, items)
    samples = {ref: content(ref) for ref in refs}
    batcher = case.make()

    check_batcher(batcher, [(ref.size, samples[ref]) for ref in refs])
    for point, ref in enumerate(refs):
        check_restored(batcher, refs[point:], samples)
        add(batcher, ref)
    check_restored(batcher, [], samples)


@EVERY_CASE
@settings(deadline=None, max_examples=20)
@given(sizes=SIZES, items=ITEMS)
def test_equal_histories_give_equal_groups_and_equal_states(
    case: Case, sizes: list[int], items: int
) -> None:
    """Also in a clone of a batcher that has been used: it starts fresh."""
    refs = refs_of(sizes, items)
    samples = {ref: content(ref) for ref in refs}
    used = case.make()
    first = tell(used, refs, samples)

    assert tell(used.clone(), refs, samples) == first
    assert tell(case.make(), refs, samples) == first


@pytest.mark.parametrize("case", [c for c in CASES if c.patience], ids=lambda case: case.name)
@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, items=ITEMS)
def test_no_sample_starves(case: Case, sizes: list[int], items: int) -> None:
    """Whatever comes later, a held sample leaves within a known number of groups."""
    batcher = case.make()
    waited: dict[SampleRef, int] = {}

    for ref in refs_of(sizes, items):
        waited[ref] = 0
        for group in add(batcher, ref) or []:
            waited = {held: groups + 1 for held, groups in waited.items()}
            for row in group:
                for left in row:
                    assert case.patience is not None
                    assert waited.pop(left) <= case.patience
        pending = set(batcher.pending)
        waited = {held: groups for held, groups in waited.items() if held in pending}


def test_content_does_not_depend_on_the_hash_seed() -> None:
    """Two processes with different seeds of Python's hashes form the same groups."""
    program = (
        "import json, sys\n"
        "from penstock.server.core.refs import ItemRef, SampleRef\n"
        "from penstock.server.roles.batchers import *\n"
        "batchers = [SimpleBatcher(3), SequentialPackingBatcher(40, lookahead_limit=2),\n"
        "    PoolPackingBatcher(90, 8, None), BestFitPackingBatcher(40, 8, rows=2),\n"
        "    FirstFitPackingBatcher(40, 3), BalancedPackingBatcher(40, 3),\n"
        "    NextFitPackingBatcher(40), KnapsackPackingBatcher(40, 20),\n"
        "    BestFitDecreasingPackingBatcher(40, 20),\n"
        "    WindowPackingBatcher(40, 5), WindowPackingBatcher(40, 5, True, 9),\n"
        "    OpenBestFitPackingBatcher(40, 3), ConcatPackingBatcher(40)]\n"
        "for batcher in batchers:\n"
        "    for k in range(300):\n"
        "        ref = SampleRef(ItemRef('ab'[k % 2], k % 50, k // 50), size=k * k % 61)\n"
        "        sample = {'input_ids': [0], 'pixel_values' if k % 3 else 'text': 1}\n"
        "        print(batcher.add(ref, sample), json.dumps(batcher.state()))\n"
        "    print(batcher.flush(), batcher.counters())\n"
    )

    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert told[0] == told[1]
    assert told[0].count(b"\n") == 13 * 301


@pytest.mark.parametrize("name", BUILTIN_BATCHERS)
def test_a_built_in_batcher_is_named_and_versioned(name: str) -> None:
    """The name in job files and the version that the log id holds are set on the class itself."""
    batcher = BUILTIN_BATCHERS[name]

    assert batcher.type_name == name
    assert isinstance(vars(batcher)["version"], int)
