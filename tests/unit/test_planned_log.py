"""What planned logs hold: every sample that is drawn, once an epoch, and all of it counted.

Hundreds of small jobs of random roles are planned to their ends, lane by lane, and held against
what the distributor draws one by one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planner import open_planner
from penstock.server.planning.index.inputs import size_rule
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles import (
    Blocks,
    MapDistributor,
    PaddedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
)
from penstock.server.roles.batchers import (
    BestFitDecreasingPackingBatcher,
    KnapsackPackingBatcher,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob, LaneStarved
from planned import with_plan
from resume.plans import BATCHERS

CASES, PARTS = 120, 4

MORE_BATCHERS = {
    "simple_drop": SimpleBatcher(4, drop_last=True),
    "knapsack_rows": KnapsackPackingBatcher(32, packing_ratio=0.5, rows=3, overlong="alone"),
    "decreasing_truncate": BestFitDecreasingPackingBatcher(32, rows=2, overlong="truncate"),
    "decreasing_drop": BestFitDecreasingPackingBatcher(32, rows=3, overlong="drop"),
}
ALL_BATCHERS = {
    name: batcher
    for name, batcher in {**BATCHERS, **MORE_BATCHERS}.items()
    if not batcher.needs_content
}


class Blocked(ItemsSource):
    """Items in storage blocks."""

    version = 1

    def __init__(self, items: list[Any], sizes: list[int]) -> None:
        super().__init__(items)
        self.sizes_of_blocks = sizes

    def blocks(self) -> Blocks:
        """Return their sizes."""
        return Blocks(self.sizes_of_blocks, items_are_apart=True)


class Giving(RawItemProcessor):
    """Gives none, one or several samples of an item."""

    version = 1

    def process(self, raw: Any, context: ProcessContext) -> list[Sample] | None:
        """Return a sample of each of the item's sizes."""
        return [{"input_ids": [0] * size} for size in raw["sizes"]] or None


def random_sources(chance: random.Random) -> dict[str, ItemsSource]:
    """Return one to three sources; an item of them has none, one or several samples."""
    ways = chance.choice([[1], [0, 1, 1, 1], [0, 1, 1, 3]])
    found: dict[str, ItemsSource] = {}
    for name in "abc"[: chance.choice([1, 1, 2, 3])]:
        items = [
            {"sizes": [chance.randint(0, 45) for _ in range(chance.choice(ways))], "third": n % 3}
            for n in range(chance.randint(3, 60))
        ]
        if chance.random() < 0.5:
            found[name] = ItemsSource(items)
            continue
        sizes: list[int] = []
        while sum(sizes) < len(items):
            sizes.append(min(chance.randint(0, 9), len(items) - sum(sizes)))
        found[name] = Blocked(items, sizes)
    return found


def random_job(chance: random.Random, path: Path) -> Job:
    """Return a planned job of random roles."""
    sources = random_sources(chance)
    shuffle = chance.choice(["full", "blocks", "none"])
    balances = chance.random() < 0.4
    groups = 1 if balances else chance.choice([1, 2])
    ratios: list[Any] = [None, None, 0.5, 1, 2.5, {next(iter(sources)): 1.5}]
    name = chance.choice(sorted(ALL_BATCHERS))
    choice = {
        "shuffle": shuffle,
        "where": chance.choice([None, None, {"third": {"not": 1}}]),
        "sample_ratio": chance.choice(ratios),
        "window_blocks": chance.choice([None, 1, 2]) if shuffle == "blocks" else None,
        "reading_groups": groups if shuffle == "blocks" else None,
    }
    plan = {
        "window": chance.choice([None, 1, 7, 40]),
        "group_by_length": name.startswith("simple") and chance.random() < 0.5,
        "balance": "tokens + squares / 32" if balances else None,
    }
    settings = {
        "seed": chance.randrange(100),
        "lanes": groups * chance.randint(1, 3),
        "epochs": chance.choice([None, 1, 2, 3]),
        "batches_per_step": chance.choice([1, 2, 6, 50]),
    }

    def make(plan: Plan | None) -> Job:
        return Job(
            sources,
            MapDistributor(**choice),
            Giving(),
            ALL_BATCHERS[name].clone(),
            PaddedCollator(),
            plan=plan,
            **settings,
        )

    return with_plan(make, path, plan)


def walked(job: Job, lane: int, most: int) -> tuple[list[BatchPlan], list[dict[str, int]]]:
    """Return the plans of a lane in order, at most so many, and the counts before each."""
    planner = open_planner(job, lane, Items(job))
    plans, counts = [], [planner.counts()]
    while len(plans) < most and (plan := planner.next()) is not None:
        plans.append(plan)
        counts.append(planner.counts())
    return plans, counts


class Epoch:
    """What an epoch draws, one draw after another, and what of it is in batches."""

    def __init__(self, job: Job, number: int) -> None:
        [roles] = job.role_sets
        drawer = roles.distributor
        assert isinstance(drawer, MapDistributor)
        first = number * drawer.items
        drawn = [drawer.draw(0, 1, first + k) for k in range(drawer.items)]
        self.items = [item for item in drawn if item is not None]
        self.sizes = {
            (item, part): size
            for item in self.items
            for part, size in enumerate(raw_of(job, item)["sizes"])
        }
        if size_rule(roles) is None:
            self.sizes = dict.fromkeys(self.sizes, 0)
        self.refs: dict[tuple[ItemRef, int], list[SampleRef]] = defaultdict(list)

    def delivered(self, *, is_truncated: bool) -> int:
        """Check sizes and spans of what came; return how many samples did."""
        for key, refs in self.refs.items():
            size = self.sizes[key]
            spans = sorted(ref.span for ref in refs if ref.span is not None)
            if not spans:
                [ref] = refs
                assert ref.size == size
                continue
            assert len(spans) == len(refs)
            assert [ref.size for ref in refs] == [
                b - a for a, b in (r.span for r in refs if r.span)
            ]
            assert spans[0].start == 0
            assert all(one.stop == other.start for one, other in pairwise(spans))
            assert spans[-1].stop == min(size, 32) if is_truncated else size
        return len(self.refs)


def check_without_batch(job: Job, empty: set[int]) -> None:
    """Check that an error says so: of an endless lane when it is read, of a finite job at once."""
    [roles] = job.role_sets
    assert roles.planned is not None
    if job.epochs is not None:
        with pytest.raises(InvalidJob, match="holds no batch at all"):
            _ = job.order
        return
    for lane in range(job.lanes):
        planner = open_planner(job, lane, Items(job))
        if roles.planned.stream_of(lane) not in empty:
            assert planner.next() is not None
            continue
        with pytest.raises(LaneStarved, match=f"lane {lane} of job 'job' has no batch: none of"):
            planner.next()


def check_alike(job: Job, plans: Sequence[BatchPlan], total: int) -> None:
    """Check that each epoch has batches of the same sizes, and that steps are sorted by cost."""
    [roles] = job.role_sets
    assert roles.planned is not None
    assert roles.plan is not None
    passes = dict(zip(roles.sources, map(roles.distributor.drawn.passes, range(3)), strict=False))
    forms: dict[int, Counter[Any]] = defaultdict(Counter)
    for plan in plans:
        [epoch] = {
            ref.item.epoch // passes[ref.item.source] for row in plan.rows for ref in row
        } or {0}
        forms[epoch][tuple(tuple(ref.size for ref in row) for row in plan.rows)] += 1
    if roles.batcher.needs_sizes or roles.plan.group_by_length or roles.plan.balance is not None:
        whole = [form for form in forms.values() if form.total() == total]
        assert job.epochs is None or len(whole) == job.epochs
        assert all(form == whole[0] for form in whole)
    if roles.plan.balance is None:
        return
    step = job.batches_per_step
    assert step is not None
    costs = {plan.offset * job.lanes + plan.lane: cost_of(plan) for plan in plans}
    for first in range(0, len(costs), step):
        own = [costs[number] for number in range(first, first + step) if number in costs]
        assert own == sorted(own)


def cost_of(plan: BatchPlan) -> float:
    sizes = [ref.size for row in plan.rows for ref in row]
    return sum(sizes) + sum(size * size for size in sizes) / 32


def raw_of(job: Job, item: ItemRef) -> Any:
    [raw] = job.sources[item.source].fetch([item.index])
    return raw


def check_conserved(job: Job, plans: Sequence[BatchPlan], epochs: int) -> None:
    """Check that epochs have each sample once, and that all else is counted."""
    [roles] = job.role_sets
    log = roles.planned
    assert log is not None
    every = [Epoch(job, number) for number in range(epochs)]
    passes = {item: number for number, epoch in enumerate(every) for item in epoch.items}
    for plan in plans:
        for ref in (ref for row in plan.rows for ref in row):
            if ref.item in passes:
                every[passes[ref.item]].refs[ref.item, ref.part].append(ref)
    truncates = getattr(roles.batcher, "overlong", "") == "truncate"
    counted: Counter[str] = Counter()
    for plan in plans:
        assert all(n > 0 for _, n in plan.accounting)
        counted.update(dict(plan.accounting))
    if job.epochs is None:
        for epoch in every:
            assert set(epoch.refs) <= set(epoch.sizes)
        return
    delivered = sum(epoch.delivered(is_truncated=truncates) for epoch in every)
    dropped = sum(n for name, n in counted.items() if name.startswith("dropped:"))
    left_out = sum(n for name, n in counted.items() if name.startswith("filtered:"))
    dead = sum(
        (log.counts_of_epoch(n) for n, s in enumerate(log.streams) if not s.batches), Counter()
    )
    dropped += job.epochs * sum(n for name, n in dead.items() if name.startswith("dropped:"))
    left_out += job.epochs * sum(n for name, n in dead.items() if name.startswith("filtered:"))
    drawn = counted["drawn"] + job.epochs * dead["drawn"]
    assert drawn == sum(len(epoch.items) for epoch in every)
    assert left_out == sum(not raw_of(job, i)["sizes"] for epoch in every for i in epoch.items)
    assert delivered + dropped == sum(len(epoch.sizes) for epoch in every)
    assert len({len(epoch.refs) for epoch in every}) == 1


@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_is_in_one_batch_of_each_epoch_or_counted(part: int, tmp_path: Path) -> None:
    """Whatever roles, windows and lanes: drawn = delivered + filtered + dropped, at any offset."""
    planned = 0
    for case in range(part * CASES // PARTS, (part + 1) * CASES // PARTS):
        chance = random.Random(case)
        try:
            job = random_job(chance, tmp_path / f"{case}.index")
            job.open_plans()
        except InvalidJob as error:
            assert "gives a sample (" in error.message  # noqa: PT017
            continue
        try:
            planned += check(job, chance)
        except Exception as error:
            error.add_note(f"case {case}: {job.plan}, {job.batches_per_step}")
            raise
    assert planned > CASES, "most cases must have batches"


def check(job: Job, chance: random.Random) -> int:
    log = job.role_sets[0].planned
    assert log is not None
    total = sum(stream.batches for stream in log.streams)
    empty = {n for n, stream in enumerate(log.streams) if not stream.batches}
    if not total or (empty and job.epochs is None):
        check_without_batch(job, empty)
        return 0
    most = 3 * total // job.lanes + 3
    if job.epochs is not None:
        assert job.order.batches == job.epochs * total
    found: list[BatchPlan] = []
    for lane in range(job.lanes):
        plans, counts = walked(job, lane, 10**9 if job.epochs else most)
        end = job.known_end(lane)
        assert (end is None) == (job.epochs is None)
        assert end in (None, len(plans))
        planner = open_planner(job, lane, Items(job))
        for offset in chance.sample(range(len(plans)), min(len(plans), 12)):
            planner.seek(offset)
            assert Counter(planner.counts()) == Counter(counts[offset]), offset
            assert planner.next() == plans[offset], offset
            assert Counter(planner.counts()) == Counter(counts[offset + 1]), offset
        assert Counter(counts[-1]) == sum(
            (Counter(dict(plan.accounting)) for plan in plans), Counter()
        )
        found += plans
    check_conserved(job, found, job.epochs or 3)
    check_alike(job, found, total)
    return total
