"""Lines that draw from parts restart anywhere as if they had not been interrupted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.server.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    DataDistributor,
    MapDistributor,
    MixtureDistributor,
    PackedCollator,
    RankPartitionedDistributor,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_job
from resume.plans import BATCHERS, PROCESSORS, BlockedSource, raw_items

DISTRIBUTORS: dict[str, Callable[[], DataDistributor]] = {
    "items": lambda: MixtureDistributor({"short": 3, "long": 1, "blocks": 2}),
    "tokens": lambda: MixtureDistributor(
        {"short": 3, "long": 1, "blocks": {"weight": 2, "max_epochs": 2}}, weights_by="tokens"
    ),
    "nested": lambda: MixtureDistributor(
        {
            "short": 2,
            "rest": {
                "weight": 3,
                "distributor": MixtureDistributor({"long": 1, "blocks": 2}, "tokens"),
            },
        },
        "tokens",
    ),
    "rank_partitioned": lambda: RankPartitionedDistributor({"short": 2, "long": 1, "blocks": 1}),
    "chosen": lambda: MapDistributor(
        source="blocks", where={"number": {"not": [2, 5]}}, sample_ratio=1.4, resample=True
    ),
}


def make_job(distributor: str, processor: str, batcher: str, lanes: int, **of_job: int) -> Job:
    items = raw_items()
    return Job(
        {
            "short": ItemsSource([item for item in items if len(item["input_ids"]) < 12]),
            "long": ItemsSource([item for item in items if len(item["input_ids"]) >= 12]),
            "blocks": BlockedSource(items),
        },
        DISTRIBUTORS[distributor](),
        PROCESSORS[processor](),
        BATCHERS[batcher].clone(),
        PackedCollator(),
        seed=5,
        lanes=lanes,
        on_item_error="quarantine",
        snapshot_every=4,
        **of_job,
    )


TURNS = ["best_fit_split", "sequential_rows", "simple"]
PLANS = [
    (distributor, processor, TURNS[(d + p) % len(TURNS)])
    for d, distributor in enumerate(DISTRIBUTORS)
    for p, processor in enumerate(PROCESSORS)
]


@pytest.mark.parametrize(("distributor", "processor", "batcher"), PLANS)
def test_every_offset_restores_exactly(distributor: str, processor: str, batcher: str) -> None:
    """Over borders of epochs and the end of a part, with filters, failures and several samples."""
    truth = check_job(lambda: make_job(distributor, processor, batcher, 4), lane=2, batches=30)

    assert len(truth) == 30


@pytest.mark.parametrize("distributor", ["items", "rank_partitioned", "chosen"])
@pytest.mark.parametrize("epochs", [None, 2])
def test_a_line_that_was_sought_is_one_that_was_replayed(
    distributor: str, epochs: int | None
) -> None:
    """Where no size decides a draw; at the end of finite lanes as well."""
    of_job = {} if epochs is None else {"epochs": epochs}
    job = make_job(distributor, "sized", "simple", 4, **of_job)
    for lane in range(4):
        replay = SamplePlanner(job, lane, Items(job))
        offset = 0
        while offset < 30:
            before, plan = replay.snapshot(), replay.next()
            if plan is None:
                break
            sought = SamplePlanner(job, lane, Items(job))
            if sought.can_seek():
                sought.seek(offset)
                assert sought.snapshot() == before
            else:
                sought.restore(before)
            assert sought.next() == plan
            offset += 1
        assert epochs is None or offset == job.role_sets[0].batches(lane)


def test_finite_lanes_hold_what_was_counted() -> None:
    """A mixture whose parts leave one after another ends where all are drawn."""
    job = make_job("items", "sized", "simple", 3, epochs=2)

    plans = []
    for lane in range(3):
        planner = SamplePlanner(job, lane, Items(job))
        while (plan := planner.next()) is not None:
            plans.append(plan)
    drawn = [ref.item for plan in plans for row in plan.rows for ref in row]

    assert len(drawn) == len(set(drawn)) == 2 * sum(map(len, job.sources.values()))  # type: ignore[arg-type]
    assert len(plans) == job.order.batches


def test_a_batcher_of_equal_counts_goes_anywhere_at_once() -> None:
    """A seek over millions of batches of a mixture reads and processes nothing."""
    job = Job(
        {"a": ItemsSource([{"x": n} for n in range(9)]), "b": ItemsSource([{"x": -1}] * 5)},
        MixtureDistributor({"a": 0.9, "b": 0.1}),
        batcher=SimpleBatcher(4),
        lanes=2,
    )
    line = Line(job, 1)

    line.skip_to(10**7)

    assert line.items.processed == 0
    assert line.advance().offset == 10**7
    assert line.counters()["items:b"] == pytest.approx(4 * 10**6, abs=2)
