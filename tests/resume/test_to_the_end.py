"""Each lane of a finite job, whatever packs it: exact to its end, from any offset of its tail."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from penstock.server.core.refs import BatchPlan
from penstock.server.job.job import Job
from penstock.server.node.workers.count import ensure_counted
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import BestFitPackingBatcher, IterableDistributor, PackedCollator
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources import ItemsSource
from penstock.server.testing.job_contract import step
from penstock.wire.errors import PastEnd
from penstock.wire.order import Cut
from resume.lines import Lines
from resume.plans import BATCHERS, LENGTHS, SHUFFLES, make_job

PROCESSORS = ("sized", "choosy")
CASES = [
    (batcher, SHUFFLES[number % 3], processor, 1 + number // 2 % 3)
    for number, (batcher, processor) in enumerate(itertools.product(BATCHERS, PROCESSORS))
]


def plans_of(job: Job, lane: int) -> tuple[SamplePlanner, list[BatchPlan]]:
    """Return the planner of a lane, at its end, and all of its plans."""
    planner = SamplePlanner(job, lane, Items(job))
    return planner, list(iter(planner.next, None))


@pytest.mark.parametrize(("batcher", "shuffle", "processor", "lanes"), CASES)
def test_from_every_offset_the_rest_of_a_lane_is_the_same(
    batcher: str, shuffle: str, processor: str, lanes: int
) -> None:
    """Bytes and snapshots, through the flush to the end, whether or not the end was counted."""
    counted = make_job(batcher, shuffle, processor, lanes, epochs=1)
    ensure_counted(counted)
    for lane in range(lanes):
        job = make_job(batcher, shuffle, processor, lanes, epochs=1)
        end = counted.numbering().end_of(lane)
        assert end is not None
        line = Line(job, lane)
        truth = [step(line) for _ in range(end)]
        assert line.planner.next() is None
        assert line.planner.end == end

        for offset in range(end):
            for again in (job, counted):
                restored = Line(again, lane, snapshot=truth[offset].snapshot)
                assert [step(restored) for _ in range(end - offset)] == truth[offset:], offset
                assert restored.planner.next() is None


@pytest.mark.parametrize(("batcher", "shuffle", "processor", "lanes"), CASES)
def test_every_sample_of_every_epoch_is_delivered_or_dropped_with_a_reason(
    batcher: str, shuffle: str, processor: str, lanes: int
) -> None:
    """Each once: by span where it is split, cut off where the batcher says so."""
    epochs, drawn, delivered = 2, 0, Counter[tuple[int, int, int, int]]()
    counts: Counter[str] = Counter()
    for lane in range(lanes):
        job = make_job(batcher, shuffle, processor, lanes, epochs=epochs)
        planner, plans = plans_of(job, lane)
        drawn += planner.drawn
        counts.update(planner.counts())
        for ref in (ref for plan in plans for row in plan.rows for ref in row):
            start, stop = ref.span or (0, LENGTHS[ref.item.index])
            delivered.update(
                (ref.item.epoch, ref.item.index, ref.part, token) for token in range(start, stop)
            )

    assert drawn == epochs * len(LENGTHS)
    assert max(delivered.values()) == 1
    left_out = sum(count for name, count in counts.items() if name.startswith("dropped:"))
    lost = sum(
        count for name, count in counts.items() if name.startswith(("filtered:", "quarantined:"))
    )
    parts = {(epoch, index, part) for epoch, index, part, _ in delivered}
    given = {
        (epoch, index, part)
        for epoch in range(epochs)
        for index in range(len(LENGTHS))
        for part in range(1 if processor == "sized" else 1 + index % 3)
        if processor == "sized" or (index % 7 != 3 and index != 11)
    }
    assert parts <= given
    assert len(given) - len(parts) == left_out
    if processor == "choosy":
        assert lost == epochs * sum(n % 7 == 3 or n == 11 for n in range(len(LENGTHS)))
    cut = counts["batcher:truncated_tokens"]
    if not left_out:
        sizes = {(index, part): LENGTHS[index] for _, index, part in given}
        assert sum(delivered.values()) == epochs * sum(sizes.values()) - cut


def test_an_epoch_of_a_stream_ends_where_its_shards_do(tmp_path: Path) -> None:
    """No number of rows is known: each comes once in every epoch, and then the lanes are over."""
    for shard in range(5):
        rows = (f'{{"input_ids": {list(range(1, 2 + shard + row))}}}\n' for row in range(shard))
        (tmp_path / f"{shard}.jsonl").write_text("".join(rows))
    job = Job(
        Lines(str(tmp_path)),
        IterableDistributor(buffer_size=9),
        batcher=BestFitPackingBatcher(16, pool_size=4),
        collator=PackedCollator(),
        lanes=3,
        epochs=2,
    )
    job.check_end()
    assert job.needs_counting
    seen: Counter[tuple[int, int]] = Counter()
    for lane in range(3):
        planner, plans = plans_of(job, lane)
        assert planner.end == len(plans)
        seen.update(
            (ref.item.epoch, ref.item.index) for plan in plans for row in plan.rows for ref in row
        )

    assert len(seen) == 2 * 10
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(("batcher", "shuffle", "processor", "lanes"), CASES)
def test_a_process_without_a_node_finds_out_what_stands_where(
    batcher: str, shuffle: str, processor: str, lanes: int
) -> None:
    """In any order of positions, and whatever becomes of the last step: as if all was counted."""
    counted = make_job(batcher, shuffle, processor, lanes, epochs=1)
    ensure_counted(counted)
    truth, total = counted.numbering(), counted.order.batches
    assert total is not None
    for cut in (None, Cut(4), Cut(4, pad=False)):
        order = KnownOrder(make_job(batcher, shuffle, processor, lanes, epochs=1))
        tail = truth.tail(cut)
        positions = list(range(total if tail is None else tail.end))
        random.Random(len(positions)).shuffle(positions)
        for position in positions:
            assert order.locate(position, cut) == truth.locate(position, cut)
        with pytest.raises(PastEnd):
            order.locate(len(positions), cut)
        assert order.numbering.order == truth.order


def test_the_first_position_takes_no_epoch() -> None:
    """What it does not depend on is not planned: a lane at most as far as its first batch."""
    raws = [{"input_ids": [1] * (1 + n % 9), "n": n} for n in range(5000)]
    items = Items(
        Job(
            ItemsSource(raws),
            processor=FunctionProcessor(lambda raw: raw if raw["n"] % 3 else None),
            batcher=BestFitPackingBatcher(32, pool_size=8),
            collator=PackedCollator(),
            lanes=4,
            epochs=1,
        )
    )

    located = KnownOrder(items.job, items).locate(0)

    assert located[:2] == (0, 0)
    assert items.processed < 200
