"""Samples that are larger than told come later: each once, the same ones wherever one begins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.core.refs import BatchPlan
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Maker
from penstock.server.pipeline.writing import MadeBatch
from penstock.server.roles import PackedCollator, ProcessContext, Sample
from penstock.server.testing import check_job
from penstock.wire import frame
from penstock.wire.errors import BadItem, PastEnd
from resume.larger import BATCHERS, ITEMS, ROW, Estimating, Item, Wavering, make_job

BATCHES = 41


def written(made: MadeBatch) -> tuple[bytes, bytes]:
    body = bytearray(made.nbytes)
    return made.write(memoryview(body)), bytes(body)


def all_made(job: Job, lane: int) -> Iterator[MadeBatch]:
    """Yield the batches of a finite lane."""
    line = Line(job, lane)
    while True:
        try:
            plan = line.advance()
        except PastEnd:
            return
        yield line.make(plan)


@pytest.mark.parametrize("within", [1, 4])
@pytest.mark.parametrize("batcher", BATCHERS)
def test_every_offset_restores_exactly(batcher: str, within: int, tmp_path: Path) -> None:
    """From every offset on, bytes and snapshots are those of the uninterrupted line."""
    truth = check_job(lambda: make_job(batcher, tmp_path, within=within), lane=1, batches=BATCHES)

    told = Counter[str]()
    for step in truth:
        told.update({c.name: c.value for c in frame.read_header(step.header).accounting})
    assert told["size:put_off"], "the proof must see samples that do not fit"
    assert told["size:later"] or (batcher, within) in LITTLE, "and such as come later"
    assert told["quarantined:size"], "and such as have no room"


LITTLE = {("knapsack", 1), ("knapsack", 4), ("next_fit", 1)}
"""Most samples that do not fit into their rows find room in another row of their batch."""


@pytest.mark.parametrize("batcher", BATCHERS)
def test_any_worker_makes_any_batch_of_its_plan(batcher: str, tmp_path: Path) -> None:
    """Before it is decided what joins it, and after; in whatever order, from a sent plan."""
    job = make_job(batcher, tmp_path)
    line = Line(job, 0)
    plans, truth = [], []
    for _ in range(BATCHES):
        plan = line.advance()
        made = line.make(plan)
        truth.append(written(made))
        plans.append((plan, made.plan))

    for number in reversed(range(BATCHES)):
        for plan in plans[number]:
            sent = BatchPlan.from_json(json.loads(json.dumps(plan.to_json())))
            assert sent == plan
            assert written(Maker(job, Items(job)).make(sent)) == truth[number], number
    anywhere = Maker(job, Items(job))
    for number in (3, 4, 9, 5, 30, 31, 30, 0):
        assert written(anywhere.make(plans[number][0])) == truth[number], number


@pytest.mark.parametrize("batcher", BATCHERS)
def test_a_blank_batch_has_the_shapes_of_the_real_one(batcher: str, tmp_path: Path) -> None:
    """And who goes on from it goes on as if it had made that one."""
    job = make_job(batcher, tmp_path)
    line, blanking = Line(job, 0), Line(job, 0)

    for _ in range(BATCHES):
        real, blank = line.make(line.advance()), blanking.make(blanking.advance(), blank=True)

        assert blank.body_bytes == real.body_bytes
        assert not blank.accounting
        assert blank.plan == real.plan


@pytest.mark.parametrize("batcher", BATCHERS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_each_sample_is_given_once_or_counted(batcher: str, epochs: int, tmp_path: Path) -> None:
    """Over whole epochs: what is drawn is given, whole, or left out by a reason that says so."""
    job = make_job(batcher, tmp_path, epochs=epochs)
    found = Counter[tuple[int, int]]()
    told = Counter[str]()
    for lane in range(2):
        for made in all_made(job, lane):
            told.update(made.accounting)
            header, body = written(made)
            head = frame.read_header(header)
            sizes = Counter((s.index, s.epoch) for s in head.samples if not s.start)
            found.update(sizes)
            ids = frame.decode_values(head, body)["input_ids"]
            assert ids.shape[1] == ROW

    assert max(found.values()) == 1, "a sample came twice"
    left = epochs * len(ITEMS) - len(found)
    dropped = sum(n for name, n in told.items() if name.startswith("dropped:"))
    waiting = told["size:put_off"] - told["size:later"] - told["quarantined:size"]
    assert left == dropped + told["quarantined:size"] + waiting, dict(told)
    assert told["size:later"] + told["size:larger"]
    assert waiting == 0, "who waits at the end of a lane is left out there"


def test_a_lane_that_stops_does_so_where_the_last_chance_has_passed(tmp_path: Path) -> None:
    """`stop` stands for samples that no batch has room for; others come later without an error."""
    quarantine, stop = (make_job("best_fit", tmp_path, policy=p) for p in ("quarantine", "stop"))
    assert stop.log_id == quarantine.log_id
    line, other = Line(quarantine, 0), Line(stop, 0)
    late = 0

    for _ in range(BATCHES):
        made = line.make(line.advance())
        plan = other.advance()
        if made.exits.get("quarantined:size"):
            with pytest.raises(BadItem, match=r"has found no room|is not what it was"):
                other.make(plan)
            break
        assert written(other.make(plan)) == written(made)
        late += made.exits.get("size:later", 0)
    else:
        raise AssertionError("no sample was left out")
    assert made.exits["quarantined:size"]


def test_a_sample_has_one_size_in_an_epoch_however_often_it_is_processed(tmp_path: Path) -> None:
    """Its generator is that of its item and epoch, so it fits where its room was found."""
    job = make_job("best_fit", tmp_path, processor=Wavering)
    line = Line(job, 1)
    told = Counter[str]()

    for _ in range(3 * BATCHES):
        made = line.make(line.advance())
        told.update(made.accounting)
        header, body = written(made)
        head = frame.read_header(header)
        ids = frame.decode_values(head, body)["input_ids"]
        assert ids.shape[1] == ROW

    assert told["size:later"] > 5


def test_no_more_documents_come_together_than_the_collator_takes(tmp_path: Path) -> None:
    """A row with room stays as it is where one sample more would be too many."""
    items = [(10, 10), (10, 2), (10, 13)] * 8
    tight = PackedCollator(pad_to=ROW, max_documents=4)
    free, bound = (
        make_job("best_fit_truncate", tmp_path, items=items, collator=collator)
        for collator in (None, tight)
    )
    told = [Counter[str](), Counter[str]()]

    for counts, job in zip(told, (free, bound), strict=True):
        line = Line(job, 0)
        for _ in range(BATCHES):
            counts.update(line.make(line.advance()).accounting)

    assert told[0]["size:put_off"] == told[1]["size:put_off"] > 0
    assert told[0]["size:later"] > told[1]["size:later"]


ITEM = st.tuples(st.integers(1, ROW), st.integers(-6, 10)).map(
    lambda one: (one[0], max(1, one[0] + one[1]))
)


@settings(deadline=None, max_examples=40, print_blob=True)
@given(
    items=st.lists(ITEM, min_size=3, max_size=40),
    batcher=st.sampled_from([name for name in BATCHERS if name != "planned"]),
    within=st.integers(1, 5),
    lanes=st.integers(1, 2),
    epochs=st.integers(1, 2),
    start=st.integers(0, 30),
)
def test_whatever_the_sizes_nothing_is_lost_or_twice_or_moves(
    items: list[Item], batcher: str, within: int, lanes: int, epochs: int, start: int
) -> None:
    """Each sample is given once or counted, from wherever the lane is read."""
    roles = {"items": items, "within": within, "lanes": lanes, "epochs": epochs}
    job, fresh = (make_job(batcher, Path(), **roles) for _ in range(2))
    given_once, told = Counter[tuple[int, int]](), Counter[str]()
    for lane in range(lanes):
        line, truth = Line(job, lane), []
        while True:
            snapshot = line.planner.snapshot()
            try:
                made = line.make(line.advance())
            except PastEnd:
                break
            truth.append((snapshot, *written(made)))
            told.update(made.accounting)
            for sample in frame.read_header(truth[-1][1]).samples:
                if not sample.start:
                    given_once[sample.index, sample.epoch] += 1
        if truth:
            at = start % len(truth)
            restored = Line(fresh, lane, snapshot=truth[at][0])
            again = [written(restored.make(restored.advance())) for _ in truth[at:]]
            assert again == [(header, body) for _, header, body in truth[at:]]

    assert max(given_once.values(), default=1) == 1
    left = epochs * len(items) - len(given_once)
    waiting = told["size:put_off"] - told["size:later"] - told["quarantined:size"]
    assert waiting >= 0
    assert left == told["quarantined:size"] + waiting


class Counting(Estimating):
    """Counts how often it processes."""

    calls: ClassVar[int] = 0

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens."""
        Counting.calls += 1
        return super().process(raw, context)


def test_readers_far_apart_do_not_have_what_is_before_them_processed_each_time(
    tmp_path: Path,
) -> None:
    """A maker that goes to and fro between two places looks back once for each."""
    job = make_job("next_fit", tmp_path, processor=Counting, within=4, lanes=1)
    line = Line(job, 0)
    plans = [line.advance() for _ in range(30)]
    maker, alone = Maker(job, Items(job)), Line(job, 0)
    truth = [written(alone.make(alone.advance())) for _ in plans]

    calls = []
    for near, far in zip(range(4, 12), range(20, 28), strict=True):
        Counting.calls = 0
        assert written(maker.make(plans[near])) == truth[near]
        assert written(maker.make(plans[far])) == truth[far]
        own = [plans[at] for at in (near, far)]
        calls.append(Counting.calls - sum(plan.samples for plan in own))

    assert calls[0] >= 8
    assert max(calls[1:]) <= 4, "of these, only samples that come later are processed again"
