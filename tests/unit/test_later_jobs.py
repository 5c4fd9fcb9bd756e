"""Which jobs may let samples come later, and what that makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.job.job import MAX_LATER, Job
from penstock.server.jobs.load import load
from penstock.server.pipeline.later import Fit, WaitingSamples, joins, settle, spare
from penstock.server.roles import (
    BestFitPackingBatcher,
    ConcatPackingBatcher,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
)
from penstock.server.roles.batcher import facts_of
from penstock.server.roles.batchers import BUILTIN_BATCHERS
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob
from resume.larger import Estimating
from resume.plans import BATCHERS, LENGTHS

ITEMS = [{"number": n, "told": size, "size": size} for n, size in enumerate(LENGTHS)]


class Unsized(RawItemProcessor):
    """Its samples have the sizes that they turn out to have."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens."""
        return {"input_ids": [0] * raw["size"]}


def make(
    within: Any = 4,
    batcher: SampleBatcher | None = None,
    processor: RawItemProcessor | None = None,
) -> Job:
    return Job(
        ItemsSource(ITEMS),
        processor=processor or Estimating(),
        batcher=batcher or BestFitPackingBatcher(32),
        collator=PackedCollator(),
        later_within=within,
    )


def test_the_log_is_another_one_with_each_number_and_the_same_with_none() -> None:
    """It decides bytes; a job that says 0 is what it was before there was the key."""
    none, four, five = make(0), make(4), make(5)

    assert len({none.log_id, four.log_id, five.log_id}) == 3
    assert "later_within" not in none.plan
    assert none.makes_anywhere(0)
    assert not four.makes_anywhere(0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"within": -1}, "give .* of at least 0"),
        ({"within": True}, "give .* of at least 0"),
        ({"within": MAX_LATER + 1}, "give at most 1,024"),
        ({"processor": Unsized()}, "no size .* was told"),
        ({"batcher": SimpleBatcher(2)}, "no size .* was told"),
        ({"batcher": SequentialPackingBatcher(max_samples_per_batch=3)}, "no size .* was told"),
        ({"batcher": ConcatPackingBatcher(32)}, "lets no sample join a row"),
    ],
)
def test_what_cannot_come_later_is_refused(wrong: dict[str, Any], says: str) -> None:
    """With the reason, and the key."""
    with pytest.raises(InvalidJob, match=f"later_within is .*{says}") as caught:
        make(**wrong)

    assert caught.value.key == "later_within"


def test_a_joint_job_is_refused(tmp_path: Path) -> None:
    """With file and key, and what to do."""
    roles = {"source": {"type": "items", "items": [1]}, "batch_size": 1}
    jobs = {"both": {"later_within": 0, "joint": {"one": roles, "other": roles}}}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"jobs": jobs}))

    with pytest.raises(InvalidJob, match=r"jobs\.both\.later_within is for jobs of one set"):
        load(str(file)).job("both")


@pytest.mark.parametrize("name", BATCHERS)
def test_what_joins_a_row_leaves_it_as_it_might_have_been_packed(name: str) -> None:
    """No row is longer than its batcher makes them, or has an item twice; whatever it holds."""
    batcher = BATCHERS[name]
    row = [SampleRef(ItemRef("main", n, 0), 0, 10) for n in range(2)]
    facts = facts_of(batcher)
    found = [
        size
        for size in range(1, 100)
        if joins(facts, row, SampleRef(ItemRef("main", 9, 0), 0, size))
    ]

    assert found == (list(range(1, 13)) if spare(facts, row) == [12] else [])
    assert not joins(facts, row, SampleRef(ItemRef("main", 1, 3), 0, 1))
    assert type(batcher) in BUILTIN_BATCHERS.values()


class Rooms:
    """Rows of ten tokens."""

    def find(self, rows: Rows, ref: SampleRef) -> int | None:
        """Return the first row with room."""
        for number, row in enumerate(rows):
            if sum(other.size for other in row) + ref.size <= 10:
                return number
        return None


SIZES = st.lists(st.integers(1, 10), max_size=4)
FITS = st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=14)


@settings(deadline=None, max_examples=200, print_blob=True)
@given(fits=FITS, within=st.integers(1, 5))
def test_who_comes_where_depends_on_so_many_batches_alone(
    fits: list[tuple[list[int], list[int]]], within: int
) -> None:
    """From wherever one begins within reach of a batch, the same samples join it, each once."""
    batches = [
        (
            BatchPlan(0, offset, []),
            Fit(
                [
                    [SampleRef(ItemRef("held", offset * 10 + n, 0), 0, size)]
                    for n, size in enumerate(held)
                ],
                tuple(
                    SampleRef(ItemRef("put", offset * 10 + n, 0), 0, s) for n, s in enumerate(put)
                ),
            ),
        )
        for offset, (held, put) in enumerate(fits)
    ]
    waiting: tuple[WaitingSamples, ...] = ()
    truth, came, left = [], [], []
    for plan, fit in batches:
        settled = settle(waiting, plan, fit, within, Rooms())
        truth.append(settled)
        waiting = settled.waiting
        came += [ref for _, ref in (*settled.stay, *settled.come)]
        left += settled.left_out

    for number in range(len(batches)):
        waiting = ()
        for plan, fit in batches[max(0, number - within) : number + 1]:
            settled = settle(waiting, plan, fit, within, Rooms())
            waiting = settled.waiting
        assert settled == truth[number], number
    still = [ref for each in truth[-1].waiting for ref in each.refs]
    every = [ref for _, fit in batches for ref in fit.put_off]
    assert sorted([*came, *left, *still]) == sorted(every)
