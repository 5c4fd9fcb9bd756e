"""Lines that draw from parts restart anywhere as if they had not been interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from penstock.server.job.job import Job
from penstock.server.node.workers.count import ensure_counted
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    DataDistributor,
    IterableDistributor,
    MapDistributor,
    MixtureDistributor,
    PackedCollator,
    RankPartitionedDistributor,
    SimpleBatcher,
    StreamSource,
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


@pytest.mark.parametrize("distributor", ["tokens", "nested", "rank_partitioned", "chosen"])
@pytest.mark.parametrize("batcher", ["best_fit_split", "simple"])
def test_a_finite_job_of_parts_is_counted_and_gives_all(distributor: str, batcher: str) -> None:
    """Whatever decides its draws: each item comes as often as its part is drawn."""
    job = make_job(distributor, "sized", batcher, 4, epochs=2)
    ensure_counted(job)

    drawn: Counter[str] = Counter()
    batches = 0
    for lane in range(4):
        planner = SamplePlanner(job, lane, Items(job))
        seen = set()
        while (plan := planner.next()) is not None:
            batches += 1
            seen |= {ref.item for row in plan.rows for ref in row}
        drawn.update(item.source for item in seen)

    assert batches == job.order.batches
    chosen = distributor == "chosen"
    expected = {"blocks": 2 * 29} if chosen else {n: 2 * len(s) for n, s in job.sources.items()}  # type: ignore[arg-type]
    assert drawn == expected


class Rows(StreamSource):
    """Three shards of rows, in memory, with a mark before every third row."""

    version: ClassVar[int | str | None] = 1

    def shards(self) -> list[str]:
        """Return their names."""
        return ["one", "two", "three"]

    def open(self, shard: int, mark: Any) -> Iterator[tuple[Any, Any]]:
        """Yield rows from a mark on, which is a row's number."""
        for row in range(mark or 0, 7 + shard):
            item = {"number": row, "input_ids": [1000 * shard + row] * (1 + row)}
            yield item, row + 1 if row % 3 == 2 else None

    def fingerprint(self) -> str:
        """Return a word."""
        return "rows"


def test_a_stream_may_be_a_part() -> None:
    """Beside items by number, weighed by tokens: it goes on from its marks."""

    def make() -> Job:
        parts = {
            "rows": {"weight": 2, "distributor": IterableDistributor(source="rows")},
            "items": 1,
        }
        return Job(
            {"rows": Rows(), "items": ItemsSource(raw_items())},
            MixtureDistributor(parts, "tokens"),
            batcher=BATCHERS["best_fit_split"].clone(),
            collator=PackedCollator(),
            lanes=2,
        )

    truth = check_job(make, lane=1, batches=20)

    assert len(truth) == 20
