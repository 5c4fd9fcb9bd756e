"""A planner whose store or filter fails at a bad moment: the lane's content stays what it is."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from penstock.server.core.refs import BatchPlan
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    BestFitPackingBatcher,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import StoreUnavailable


class Pairs(RawItemProcessor):
    """Two samples per item; the second of item 3 is too long for any row."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> list[Sample]:
        """Return the item twice."""
        second = 100 if raw == 3 else 5
        return [{"input_ids": [raw] * 4}, {"input_ids": [raw] * second}]


class AwayOnce:
    """A store that cannot be reached the first time."""

    def __init__(self) -> None:
        self.calls = 0

    def insert(self, verdict: Verdict) -> Verdict:
        """Make a verdict durable, but not at once."""
        self.calls += 1
        if self.calls == 1:
            raise StoreUnavailable("the store is away")
        return verdict


def test_a_verdict_that_could_not_be_stored_leaves_no_part_of_its_item() -> None:
    """The planner that tries again gives the plans of one that never failed."""
    batcher = BestFitPackingBatcher(16, pool_size=4, overlong="error")
    job = Job(
        ItemsSource(list(range(12))),
        None,
        Pairs(),
        batcher,
        PackedCollator(),
        lanes=1,
        on_item_error="quarantine",
    )
    smooth = SamplePlanner(job, 0, Items(job))
    store = AwayOnce()
    tried = SamplePlanner(job, 0, Items(job, VerdictBook((), store.insert)))

    plans: list[BatchPlan | None] = []
    failures = 0
    while len(plans) < 12:
        try:
            plans.append(tried.next())
        except StoreUnavailable:
            failures += 1

    assert failures == 1
    assert plans == [smooth.next() for _ in range(12)]
    assert tried.snapshot() == smooth.snapshot()


class Rare(RawItemProcessor):
    """Keeps one item of ten, another in every epoch."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample | None:
        """Return the item by a throw of its own dice."""
        return {"x": raw} if context.rng.integers(10) == 0 else None


@pytest.mark.parametrize(("items", "lanes"), [(5, 5), (23, 6), (480, 48)])
def test_a_strict_filter_is_no_starvation(items: int, lanes: int) -> None:
    """A lane draws a small part of an epoch: that all of it is filtered is chance, not an error."""
    job = Job(ItemsSource(list(range(items))), None, Rare(), SimpleBatcher(1), lanes=lanes)

    for lane in range(min(lanes, 6)):
        planner = SamplePlanner(job, lane, Items(job))
        for _ in range(200):
            assert planner.next() is not None
