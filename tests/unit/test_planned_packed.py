"""What a window is packed to: each piece once, in rows that fit, as batchers do by themselves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server import packing
from penstock.server.core.refs import ItemRef, Row, Rows, SampleRef
from penstock.server.pipeline.lane_counts import MAX_REASON_CHARACTERS, all_counts
from penstock.server.planning.log.cost_expression import Expression
from penstock.server.planning.log.packed_window import (
    PackedWindow,
    measures,
    outline,
    pack,
    with_cost,
)
from penstock.server.planning.log.plan_parameters import COSTS
from penstock.server.roles import Sample, SampleBatcher
from penstock.server.roles.batchers import (
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    KnapsackPackingBatcher,
    SimpleBatcher,
)
from penstock.wire.errors import BadItem, InvalidJob
from resume.plans import BATCHERS

CAPACITY = 32


def random_sizes(chance: random.Random, most: int = 80) -> Any:
    """Return sizes of 0 to 60 samples: empty ones, ones that just fit, and long ones."""
    kinds = [0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1, 2 * CAPACITY]
    return np.array(
        [
            chance.choice(kinds) if chance.random() < 0.2 else chance.randint(0, most)
            for _ in range(chance.randint(0, 60))
        ],
        np.int64,
    )


def packed_by(batcher: SampleBatcher, sizes: Any, seed: int | None = 1) -> PackedWindow:
    return pack(batcher, sizes, None, seed, "window 0", by_length=False)


def batches_of(packed: PackedWindow) -> list[list[list[tuple[int, int, int, int]]]]:
    """Return (slot, start, stop, size) of each piece, by row and batch."""
    total = len(packed.slots)
    starts = [-1] * total if packed.starts is None else packed.starts.tolist()
    stops = [-1] * total if packed.stops is None else packed.stops.tolist()
    pieces = list(zip(packed.slots.tolist(), starts, stops, packed.sizes.tolist(), strict=True))
    rows = [pieces[a:b] for a, b in pairwise(packed.rows.tolist())]
    return [rows[a:b] for a, b in pairwise(packed.batches.tolist())]


def check_form(packed: PackedWindow) -> None:
    """Check that bounds begin at 0, rise, and end at the numbers of pieces and rows."""
    assert packed.rows[0] == packed.batches[0] == 0
    assert packed.rows[-1] == len(packed.slots) == len(packed.sizes)
    assert packed.batches[-1] == len(packed.rows) - 1
    assert (np.diff(packed.rows) > 0).all()
    assert (np.diff(packed.batches) > 0).all()
    assert len(packed) == len(packed.batches) - 1
    assert all(count > 0 for count in packed.counts.values())


def check_pieces(packed: PackedWindow, sizes: Any, *, truncates: bool = False) -> None:
    """Check that each sample is there once, whole or in pieces without a gap, or was dropped."""
    check_form(packed)
    found: dict[int, list[tuple[int, int, int]]] = {}
    for slot, start, stop, size in (
        p for batch in batches_of(packed) for row in batch for p in row
    ):
        found.setdefault(slot, []).append((start, stop, size))
    for slot, pieces in found.items():
        size = int(sizes[slot])
        if pieces == [(-1, -1, size)]:
            continue
        pieces.sort()
        assert [stop - start for start, stop, _ in pieces] == [size for _, _, size in pieces]
        assert pieces[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(pieces))
        assert pieces[-1][1] == (min(size, CAPACITY) if truncates else size)
    dropped = sum(n for name, n in packed.counts.items() if name.startswith("dropped:"))
    assert len(found) + dropped == len(sizes)


OVERLONG = ["split", "truncate", "drop", "alone"]


@pytest.mark.parametrize("overlong", OVERLONG)
@pytest.mark.parametrize("kind", [BestFitDecreasingPackingBatcher, KnapsackPackingBatcher])
def test_a_window_is_packed_whole_and_into_full_batches(kind: Any, overlong: str) -> None:
    """No row over its capacity, no two pieces of a sample in one, and batches of `rows` rows."""
    for case in range(120):
        chance = random.Random(case)
        sizes, rows = random_sizes(chance), chance.choice([1, 1, 2, 3, 8])
        batcher = kind(CAPACITY, rows=rows, overlong=overlong)

        packed = packed_by(batcher, sizes, chance.choice([None, 0, 5]))

        check_pieces(packed, sizes, truncates=overlong == "truncate")
        for row in (row for batch in batches_of(packed) for row in batch):
            total = sum(size for _, _, _, size in row)
            alone = len(row) == 1 and overlong == "alone"
            assert 0 < total <= CAPACITY or alone
            assert len({slot for slot, _, _, _ in row}) == len(row)
        per_batch = np.diff(packed.batches).tolist()
        assert all(number == rows for number in per_batch[:-1])
        pieces = len(packed.slots)
        assert not per_batch or per_batch[-1] == rows or pieces < len(per_batch) * rows
        check_counts(packed, sizes, overlong)


def check_counts(packed: PackedWindow, sizes: Any, overlong: str) -> None:
    long = sizes[sizes > CAPACITY]
    expected = Counter({"dropped:empty": int((sizes == 0).sum())})
    if overlong == "drop":
        expected["dropped:overlong"] = len(long)
    elif overlong == "truncate":
        expected["batcher:truncated_tokens"] = int((long - CAPACITY).sum())
        expected["batcher:overlong_truncated"] = len(long)
    else:
        expected[f"batcher:overlong_{overlong}"] = len(long)
    assert packed.counts == +expected


@pytest.mark.parametrize("ratio", [None, 1.0, 0.5])
def test_rows_are_those_of_the_packing_functions(ratio: float | None) -> None:
    """Of what is shorter than a row; samples that fill one are rows of their own."""
    for case in range(200):
        sizes = random_sizes(random.Random(case), most=CAPACITY)
        sizes = sizes[sizes <= CAPACITY]
        if ratio is None:
            batcher: Any = BestFitDecreasingPackingBatcher(CAPACITY)
            call, capacity = packing.best_fit_decreasing, CAPACITY
        else:
            batcher = KnapsackPackingBatcher(CAPACITY, packing_ratio=ratio)
            call, capacity = packing.knapsack, int(CAPACITY * ratio)
        most = min(capacity, CAPACITY - 1)
        placed, alone = np.flatnonzero((sizes > 0) & (sizes <= most)), np.flatnonzero(sizes > most)

        packed = packed_by(batcher, sizes)

        rows = [{slot for slot, *_ in row} for batch in batches_of(packed) for row in batch]
        expected = [set(placed[list(own)].tolist()) for own in call(sizes[placed], capacity)]
        expected += [{slot} for slot in alone.tolist()]
        assert sorted(map(sorted, rows)) == sorted(map(sorted, expected))


def given_to(batcher: SampleBatcher, sizes: Sequence[int]) -> tuple[list[Rows], Counter[str]]:
    """Return what a batcher makes of samples by itself, and what it counts."""
    working = batcher.clone()
    found: list[Rows] = []
    for slot, size in enumerate(sizes):
        found += working.add(SampleRef(ItemRef("a", slot, 0), 0, size))
    found += working.flush()
    counts = Counter({f"dropped:{name}": n for name, n in working.dropped().items()})
    counts.update({f"batcher:{name}": n for name, n in working.counters().items()})
    return found, +counts


ONE_BY_ONE = [
    name
    for name, batcher in BATCHERS.items()
    if not batcher.needs_content
    and not isinstance(batcher, BestFitDecreasingPackingBatcher | KnapsackPackingBatcher)
]


@pytest.mark.parametrize("name", [*ONE_BY_ONE, "simple_drop"])
def test_other_batchers_pack_a_window_as_they_pack_a_lane(name: str) -> None:
    """Batch by batch, row by row and piece by piece, and they count the same."""
    batcher = SimpleBatcher(4, drop_last=True) if name == "simple_drop" else BATCHERS[name]
    for case in range(40):
        sizes = random_sizes(random.Random(case))

        packed = packed_by(batcher, sizes)

        check_form(packed)
        batches, counts = given_to(batcher, sizes.tolist())
        assert batches_of(packed) == [
            [[(ref.item.index, *(ref.span or (-1, -1)), ref.size) for ref in row] for row in batch]
            for batch in batches
        ]
        assert packed.counts == counts
        assert batcher.pending == [], "the job's own batcher is not changed"


def test_more_rows_than_a_window_has_samples_are_a_batch_of_them() -> None:
    """Five samples in batches of eight rows: each is a row of its own, in one batch."""
    batcher = BestFitDecreasingPackingBatcher(CAPACITY, rows=8)

    packed = packed_by(batcher, np.full(5, 3))

    assert np.diff(packed.rows).tolist() == [1] * 5
    assert packed.batches.tolist() == [0, 5]


def test_no_samples_make_no_batch() -> None:
    """Neither none at all, nor only ones that are left out."""
    for batcher in (
        SimpleBatcher(3),
        BestFitDecreasingPackingBatcher(CAPACITY, rows=2),
        KnapsackPackingBatcher(CAPACITY, overlong="drop"),
        BATCHERS["concat"],
    ):
        packed = packed_by(batcher, np.empty(0, np.int64))
        assert (len(packed), packed.counts) == (0, Counter())
        assert measures(packed)["longest"].shape == (0,)
    packed = packed_by(KnapsackPackingBatcher(CAPACITY, overlong="drop"), np.array([0, 99, 40]))
    assert len(packed) == 0
    assert packed.counts == {"dropped:empty": 1, "dropped:overlong": 2}


def test_rows_come_in_a_seeded_order_or_in_that_of_their_oldest_samples() -> None:
    """Another seed or window is another order of the same rows."""
    sizes = random_sizes(random.Random(4))
    batcher = BestFitDecreasingPackingBatcher(CAPACITY)

    orders = [
        pack(batcher, sizes, None, seed, purpose, by_length=False)
        for seed, purpose in ((1, "a"), (1, "b"), (2, "a"), (1, "a"))
    ]

    whole = packed_by(batcher, sizes[sizes <= CAPACITY], None)
    firsts = [min(slot for slot, *_ in batch[0]) for batch in batches_of(whole)]
    assert firsts == sorted(firsts)
    rows = [[tuple(sorted(batch[0])) for batch in batches_of(packed)] for packed in orders]
    assert len({tuple(own) for own in rows}) == 3
    assert rows[0] == rows[3]
    assert len({frozenset(Counter(own).items()) for own in rows}) == 1


def test_batches_by_length_hold_neighbours_of_the_sorted_sizes() -> None:
    """From the longest to the shortest; those of one size keep their order."""
    for case in range(60):
        chance = random.Random(case)
        sizes, each = random_sizes(chance), chance.randint(1, 5)

        packed = pack(SimpleBatcher(each), sizes, None, 3, "", by_length=True)

        check_pieces(packed, sizes)
        order = sorted(range(len(sizes)), key=lambda slot: (-sizes[slot], slot))
        assert packed.slots.tolist() == order
        assert np.diff(packed.batches).tolist()[:-1] == [each] * (len(packed) - 1)


@pytest.mark.parametrize(
    "batcher",
    [
        SimpleBatcher(3),
        SimpleBatcher(3, drop_last=True),
        *(BestFitDecreasingPackingBatcher(CAPACITY, overlong=how) for how in OVERLONG),
        BestFitDecreasingPackingBatcher(CAPACITY, rows=4),
        KnapsackPackingBatcher(CAPACITY, drop_long_samples=True),
        KnapsackPackingBatcher(CAPACITY, packing_ratio=0.7, rows=3),
        KnapsackPackingBatcher(CAPACITY, max_packs=2),
        BATCHERS["concat"],
    ],
    ids=lambda batcher: f"{batcher.type_name}-{getattr(batcher, 'overlong', '')}",
)
def test_an_outline_says_what_packing_says(batcher: SampleBatcher) -> None:
    """Batches and counts, where it says any, whatever the order of the sizes."""
    for case in range(60):
        chance = random.Random(case)
        sizes = random_sizes(chance)
        packed = packed_by(batcher, sizes)
        shuffled = sizes.copy()
        chance.shuffle(shuffled)

        told = outline(batcher, shuffled)

        if told is not None:
            assert told == (len(packed), packed.counts)


def test_sizes_that_are_too_large_to_count_are_packed() -> None:
    """An outline then says what is left out, and not how many batches there are."""
    batcher = BestFitDecreasingPackingBatcher(1 << 30)

    assert outline(batcher, np.array([0, 1 << 29, 7])) == (None, Counter({"dropped:empty": 1}))


def test_costs_are_those_of_a_loop() -> None:
    """Each measure of each batch, and an expression of all of them."""
    cost = Expression("tokens + 2 * squares + 3 * samples + rows * longest - padded", COSTS, "x")
    for case in range(60):
        chance = random.Random(case)
        sizes = random_sizes(chance)
        batcher = BATCHERS[chance.choice(["concat", "best_fit_split", "knapsack", "simple"])]

        packed = with_cost(packed_by(batcher, sizes), cost)

        found = measures(packed)
        assert packed.cost is not None
        for number, batch in enumerate(batches_of(packed)):
            of_row = [sum(size for *_, size in row) for row in batch]
            pieces = [size for row in batch for *_, size in row]
            expected = {
                "tokens": sum(pieces),
                "squares": sum(size * size for size in pieces),
                "samples": len(pieces),
                "rows": len(batch),
                "longest": max(of_row),
                "padded": len(batch) * max(of_row),
            }
            assert {name: values[number] for name, values in found.items()} == expected
            assert packed.cost[number] == (
                expected["tokens"] + 2 * expected["squares"] + 3 * expected["samples"]
            )
        assert set(found) == set(COSTS)


def test_a_cost_that_is_no_number_is_refused() -> None:
    """It names the batch: a plan cannot sort by it."""
    packed = packed_by(SimpleBatcher(2), np.array([3, 3, 5]))

    with pytest.raises(InvalidJob, match=r"divides by zero, in element 0 \(tokens = 6"):
        with_cost(packed, Expression("1 / (tokens - 6)", COSTS, "plan.balance"))


@pytest.mark.parametrize(
    "batcher",
    [
        BestFitDecreasingPackingBatcher(CAPACITY, overlong="error"),
        KnapsackPackingBatcher(CAPACITY, overlong="error"),
        BestFitPackingBatcher(CAPACITY, overlong="error"),
    ],
    ids=lambda batcher: f"{batcher.type_name}-{getattr(batcher, 'overlong', '')}",
)
def test_a_sample_that_may_not_be_cut_is_named(batcher: SampleBatcher) -> None:
    """By its number in the window, with what to do."""
    with pytest.raises(BadItem, match="70 tokens do not fit into a row of 32: raise") as caught:
        packed_by(batcher, np.array([3, 70, 80]))

    assert caught.value.fields["item"] == 1


class Halves(SampleBatcher):
    """A user's batcher that takes two samples a row and looks at no size."""

    version: ClassVar[int | str | None] = 1
    needs_sizes: ClassVar[bool] = False

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self._row: Row = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Finish a row with every second sample."""
        assert ref.size == 0, "who promises not to look finds 0"
        if ref.item.index == self.fails_at:
            raise ValueError("a mistake of its author")
        self._row.append(ref)
        if len(self._row) < 2:
            return []
        row, self._row = self._row, []
        return [[row]]

    def flush(self) -> list[Rows]:
        """Give what is left."""
        return [[self._row]] if self._row else []


def test_a_batcher_that_looks_at_no_size_gets_none() -> None:
    """The plan knows sizes all the same, for its costs."""
    packed = packed_by(Halves(), np.array([3, 4, 5]))

    assert packed.sizes.tolist() == [3, 4, 5]
    assert measures(packed)["tokens"].tolist() == [7, 5]


def test_a_batcher_that_fails_is_named() -> None:
    """With its method and its own words."""
    with pytest.raises(InvalidJob, match=r"Halves\.add\(\) fails with ValueError: a mistake of"):
        packed_by(Halves(fails_at=1), np.array([3, 4, 5]))


class Wordy(Halves):
    """Says at length what it counts."""

    def dropped(self) -> dict[str, int]:
        """Return a reason that goes on and on."""
        return {"d" * 1000: 3}

    def counters(self) -> dict[str, int]:
        """Return a name that does, too."""
        return {"c" * 1000: 2, "none": 0}


def test_names_of_counts_are_as_long_as_without_a_plan() -> None:
    """A header bears them, and so they are cut."""
    batcher = Wordy()

    found = packed_by(batcher, np.array([3, 4, 5])).counts

    assert found == {name: n for name, n in all_counts({}, batcher).items() if n}
    assert {len(name) for name in found} == {len("dropped:") + MAX_REASON_CHARACTERS}
