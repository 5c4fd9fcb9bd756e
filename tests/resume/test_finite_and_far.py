"""Finite lanes restart up to their end, and arithmetic goes where a replay goes."""

from __future__ import annotations

import itertools

import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line, compute
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import MapDistributor, SimpleBatcher
from penstock.server.roles.batcher import facts_of
from penstock.server.roles.collators import DefaultBatchCollator
from penstock.server.sources import ItemsSource
from penstock.wire.errors import PastEnd, PositionFar
from resume.plans import make_job
from truth import Truth


def finite_job(items: int, lanes: int, batch_size: int, epochs: int, drop_last: bool) -> Job:
    return Job(
        ItemsSource(list(range(items))),
        MapDistributor(shuffle="full"),
        batcher=SimpleBatcher(batch_size, drop_last=drop_last),
        collator=DefaultBatchCollator(),
        lanes=lanes,
        epochs=epochs,
        seed=3,
    )


FINITE = list(itertools.product((1, 2, 7, 10), (1, 3), (1, 2, 4), (1, 2), (True, False)))


@pytest.mark.parametrize(("items", "lanes", "batch_size", "epochs", "drop_last"), FINITE)
def test_finite_lanes_restore_and_seek_at_every_offset(
    items: int, lanes: int, batch_size: int, epochs: int, drop_last: bool
) -> None:
    """Up to the end and at it: a restored line and a line that was sought plan the same.

    The snapshots of a replay and of a seek are the same bytes, and so are those at the very end.
    """
    job = finite_job(items, lanes, batch_size, epochs, drop_last)
    for lane in range(lanes):
        line = SamplePlanner(job, lane, Items(job))
        snapshots, plans = [line.snapshot()], []
        while (plan := line.next()) is not None:
            plans.append(plan)
            snapshots.append(line.snapshot())
        draws = job.lane_roles(lane)[0].draws
        assert draws is not None
        assert len(plans) == facts_of(job.role_sets[0].batcher).batches(draws)

        for offset, snapshot in enumerate(snapshots):
            restored = SamplePlanner(job, lane, Items(job))
            sought = SamplePlanner(job, lane, Items(job))
            restored.restore(snapshot)
            sought.seek(offset)
            assert sought.snapshot() == snapshot, (lane, offset)
            for planner in (restored, sought):
                assert [planner.next() for _ in plans[offset:]] == plans[offset:], (lane, offset)
                assert planner.next() is None


@pytest.mark.parametrize("batcher", ["simple", "sequential_count"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_seek_by_arithmetic_equals_replay(lanes: int, batcher: str) -> None:
    """Where `can_seek` says so, `seek` leads to the same state as planning every batch before."""
    job = make_job(batcher, "blocks", "identity", lanes)
    for lane in range(lanes):
        replay = SamplePlanner(job, lane, Items(job))
        assert replay.can_seek()
        for offset in range(41):
            sought = SamplePlanner(job, lane, Items(job))
            sought.seek(offset)
            assert sought.snapshot() == replay.snapshot(), (lane, offset)
            assert sought.next() == replay.next(), (lane, offset)


def test_a_sought_line_goes_back_as_well() -> None:
    """Forwards and backwards in any order, the batch at an offset is the same."""
    job = make_job("simple", "full", "sized", 2)
    line = Line(job, 0)

    def batch(offset: int) -> bytes:
        line.skip_to(offset)
        made = line.make(line.advance())
        body = bytearray(made.nbytes)
        return made.write(memoryview(body)) + bytes(body)

    forwards = [batch(offset) for offset in range(20)]
    assert [batch(offset) for offset in reversed(range(20))] == forwards[::-1]


def test_no_item_is_touched_where_sizes_are_not_asked() -> None:
    """A seek over 10^9 batches reads and processes nothing."""
    job = make_job("simple", "full", "sized", 2)
    line = Line(job, 1)

    line.skip_to(10**9)

    assert line.items.processed == 0
    assert line.advance().offset == 10**9


def test_replay_touches_sizes_alone() -> None:
    """Where sizes are known without processing, a replay processes no item."""
    job = make_job("best_fit_split", "full", "sized", 2)
    line = Line(job, 1)

    line.skip_to(50)

    assert line.items.processed == 0
    plan = line.advance()
    line.make(plan)
    items = {ref.item for row in plan.rows for ref in row}
    assert line.items.processed == len(items)


@pytest.mark.parametrize("processor", ["identity", "sized", "choosy"])
def test_recomputing_a_planned_batch_costs_that_batch(processor: str) -> None:
    """From its plan, a batch that was let go is made again from its own items, nothing else."""
    job = make_job("best_fit_split", "full", processor, 2)
    line = Line(job, 0)
    plans, bytes_of = [], []
    for _ in range(20):
        plan = line.advance()
        made = line.make(plan)
        body = bytearray(made.nbytes)
        plans.append(plan)
        bytes_of.append((made.write(memoryview(body)), bytes(body)))

    fresh = Line(job, 0)
    for plan, expected in zip(reversed(plans), reversed(bytes_of), strict=True):
        before = fresh.items.processed
        made = fresh.maker.make(plan)
        body = bytearray(made.nbytes)
        assert (made.write(memoryview(body)), bytes(body)) == expected
        items = {ref.item for row in plan.rows for ref in row}
        assert fresh.items.processed - before == len(items)


def test_too_far_without_arithmetic_is_named() -> None:
    """Beyond `max_replay` a position is refused with what to do, not replayed for hours."""
    job = make_job("best_fit_split", "full", "sized", 2)
    job.max_replay = 100

    with pytest.raises(PositionFar, match="max_replay = 100") as caught:
        compute(job, 2 * 101)

    assert caught.value.fields == {"lane": 0, "offset": 101, "nearest": 0, "max_replay": 100}
    compute(job, 2 * 100)


def test_past_the_end_is_named() -> None:
    """A finite job says how many batches it has."""
    job = finite_job(10, 3, 2, 1, False)
    batches = job.order.batches

    with pytest.raises(PastEnd, match=f"holds {batches} batches"):
        Truth(job).batch(batches or 0)


def test_going_back_gives_the_same_bytes() -> None:
    """A loader in this process may be asked for any position in any order."""
    job = make_job("best_fit_drop", "full", "choosy", 3)
    forwards = Truth(job)
    truth = [forwards.batch(position) for position in range(60)]

    loader = Truth(job)
    for position in (59, 0, 30, 29, 31, 3, 58, 59):
        assert loader.batch(position) == truth[position], position
