"""Plans travel as JSON, and come back as they were."""

from __future__ import annotations

import json
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef, Span

NUMBERS = st.integers(0, 3) | st.integers(0, (1 << 53) - 1)
SPANS = st.none() | st.tuples(NUMBERS, NUMBERS).map(lambda ends: Span(*sorted(ends)))
ITEMS = st.builds(ItemRef, st.sampled_from(["main", "é", "b"]), NUMBERS, NUMBERS)


def rows_of(measures: int) -> st.SearchStrategy[list[list[SampleRef]]]:
    """Return rows of samples that have so many counts each, as those of one processor have."""
    counts = st.tuples(*[NUMBERS] * measures)
    refs = st.builds(SampleRef, ITEMS, st.integers(0, 2), NUMBERS, SPANS, counts)
    return st.lists(st.lists(refs, max_size=4), max_size=4)


ROWS = st.integers(0, 2).flatmap(rows_of)
ACCOUNTING = st.lists(st.tuples(st.text(max_size=5), NUMBERS), max_size=2).map(tuple)


@given(rows=ROWS, role_set=st.integers(0, 2), accounting=ACCOUNTING)
def test_a_plan_comes_back_as_it_was(
    rows: list[list[SampleRef]], role_set: int, accounting: tuple[tuple[str, int], ...]
) -> None:
    plan = BatchPlan(3, 17, rows, role_set, accounting)

    found = BatchPlan.from_json(json.loads(json.dumps(plan.to_json())))

    assert found == plan
    for ref in chain.from_iterable(found.rows):
        assert (type(ref), type(ref.item)) == (SampleRef, ItemRef)
        assert ref.span is None or type(ref.span) is Span


@given(items=st.lists(ITEMS, max_size=5), extra=st.integers(0, 3))
def test_refs_that_are_made_together_are_those_made_one_by_one(
    items: list[ItemRef], extra: int
) -> None:
    """As many as there are sizes: those of later items may not be known."""
    sizes = list(range(len(items)))

    assert SampleRef.whole([*items, *items[:extra]], sizes) == [
        SampleRef(item, 0, size) for item, size in zip(items, sizes, strict=True)
    ]
    assert ItemRef.many("main", sizes, 2) == [ItemRef("main", number, 2) for number in sizes]


@given(rows=ROWS)
def test_a_ref_comes_back_as_it_was(rows: list[list[SampleRef]]) -> None:
    """From a snapshot of a batcher; without counts it has the bytes that it always had."""
    for ref in (ref for row in rows for ref in row):
        told = ref.to_json()

        assert SampleRef.from_json(json.loads(json.dumps(told))) == ref
        assert len(told) == 5 + 2 * (ref.span is not None) + bool(ref.counts)
