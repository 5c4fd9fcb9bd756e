"""Joint jobs that choose a set for each step: a pure choice, inner lines of their own, exactly."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from invariants import check_conservation
from penstock.server.core.refs import BatchPlan
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.node.workers.count import ensure_counted
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.joint_planner import JointPlanner
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Maker
from penstock.server.roles import (
    BatchCollator,
    IterableDistributor,
    MapDistributor,
    PaddedCollator,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_job
from penstock.wire import frame
from penstock.wire.errors import BadSnapshot, InvalidJob, InvalidRequest
from resume.joint import ending, packed_set, padded_set, stepwise
from resume.lines import Lines
from resume.plans import SizedProcessor, raw_items
from resume.test_streams import SHARDS, write_shards


def of_lane(job: Job, lane: int, batches: int) -> list[BatchPlan]:
    line = Line(job, lane)
    found = []
    for _ in range(batches):
        found.append(line.advance())
        line.planner.forget()
    return found


@pytest.mark.parametrize("choice", ["step", "batch"])
def test_every_offset_restores_exactly(choice: str) -> None:
    """Bytes and snapshots from every offset are those of a run without a break."""
    check_job(lambda: stepwise(choice), lane=1, batches=30)


def test_a_stream_in_a_set_restores_exactly_at_every_offset(tmp_path: Any) -> None:
    """Through its shuffle buffer, beside a set of another kind."""
    folder = write_shards(tmp_path, raw_items(), SHARDS)

    def make() -> JointJob:
        stream = RoleSet(
            Lines(str(folder)),
            IterableDistributor(buffer_size=6),
            SizedProcessor(),
            SimpleBatcher(2),
            PaddedCollator(),
        )
        sets = {"stream": stream, "packed": packed_set(1)}
        return JointJob(sets, choice="batch", lanes=3, on_item_error="quarantine")

    check_job(make, lane=2, batches=25)


@pytest.mark.parametrize("lanes", [1, 4, 9])
def test_all_batches_of_a_step_are_of_one_set_and_say_which(lanes: int) -> None:
    """On all ranks, as it is a function of seed and step; in the shares of the ratios."""
    job = stepwise(lanes=lanes)
    names: dict[int, set[str]] = {}
    for lane in range(lanes):
        line = Line(job, lane)
        for offset in range(60 // lanes):
            made = line.make(line.advance())
            body = bytearray(made.nbytes)
            header = frame.read_header(made.write(memoryview(body)))
            values = frame.decode_values(header, body)
            position = offset * lanes + lane
            names.setdefault(position // 6, set()).add(values["dataset_name"])
            # The sources of the one set have its name, those of the other names of their own.
            sources = {sample.source for sample in header.samples}
            assert (values["dataset_name"] == "packed") == (sources == {"packed"})

    assert all(len(found) == 1 for found in names.values())
    assert job.shares() == {"packed": 0.6, "padded": 0.4}
    assert {name for found in names.values() for name in found} == {"packed", "padded"}


@pytest.mark.parametrize("number", [0, 1])
def test_an_inner_line_is_that_of_its_set_alone(number: int) -> None:
    """Its order depends neither on the others nor on when it is chosen: other ratios, same rows."""
    joint = stepwise()
    roles, inner = joint.lane_roles(2)[number]
    alone = Job(
        dict(roles.sources),
        roles.distributor,
        roles.processor,
        roles.batcher,
        roles.collator,
        seed=joint.seed,
        lanes=roles.lanes,
        on_item_error="quarantine",
    )
    own = [plan.rows for plan in of_lane(stepwise(), 2, 60) if plan.role_set == number]
    sparse = JointJob(
        {"packed": packed_set(1), "padded": padded_set(5)},
        choice="batch",
        lanes=4,
        seed=5,
        on_item_error="quarantine",
    )
    others = [plan.rows for plan in of_lane(sparse, 2, 60) if plan.role_set == number]

    assert len(own) >= 15
    assert own == [plan.rows for plan in of_lane(alone, inner, len(own))]
    assert others == own[: len(others)] or own == others[: len(own)]


def test_everything_that_a_joint_lane_draws_is_accounted_for() -> None:
    """Delivered, held by one of its batchers, or left out by reason."""
    counters = check_conservation(stepwise(), 3, 30)

    assert counters["filtered:every seventh"] > 0
    assert counters["quarantined:draw"] > 0


def test_a_batch_is_made_alike_from_its_plan_elsewhere() -> None:
    """A plan names its set and its place in the lane: who gets it needs no line."""
    job, maker = stepwise(), Maker(stepwise(), Items(stepwise()))
    line = Line(job, 0)
    for offset in range(12):
        plan = line.advance()
        sent = BatchPlan.from_json(json.loads(json.dumps(plan.to_json())))
        assert (sent, plan.offset) == (plan, offset)
        made, other = line.make(plan), maker.make(sent)
        bodies = [bytearray(each.nbytes) for each in (made, other)]
        headers = [m.write(memoryview(b)) for m, b in zip((made, other), bodies, strict=True)]
        assert (headers[0], bodies[0]) == (headers[1], bodies[1])


def test_verdicts_have_the_offset_of_the_lane() -> None:
    """Not that of an inner line: other nodes and people know the lane's alone."""
    job, book = stepwise(), VerdictBook()
    line = Line(job, 1, Items(job, book))
    offsets = []
    for _ in range(40):
        known = len(list(book))
        plan = line.advance()
        offsets += [(verdict.offset, plan.offset) for verdict in list(book)[known:]]

    assert offsets
    assert all(place == offset for place, offset in offsets)


def test_arithmetic_leads_to_any_offset_where_it_does_in_every_set() -> None:
    """In no time, and to the same plan; a packer in one set takes a snapshot, for all of them."""

    def simple(seed: int) -> JointJob:
        sets = {
            name: RoleSet(ItemsSource(list(range(50))), MapDistributor(), batch_size=size, ratio=of)
            for name, size, of in (("a", 2, 0.7), ("b", 3, 0.2), ("c", 1, 0.1))
        }
        return JointJob(sets, lanes=6, batches_per_step=4, seed=seed)

    plans = of_lane(simple(1), 5, 80)
    line = Line(simple(1), 5)
    assert line.planner.can_seek()
    for offset in (79, 3, 40, 0, 17):
        line = Line(simple(1), 5)
        line.skip_to(offset)
        assert line.advance() == plans[offset]
    far = Line(simple(1), 5)
    far.skip_to(10**12)
    assert far.advance().offset == 10**12
    assert not Line(stepwise(), 0).planner.can_seek()


def test_the_state_is_small_and_of_its_own_sets() -> None:
    """It holds the state of each set, and neither counts nor choices."""
    line = Line(stepwise(), 1)
    for _ in range(20):
        line.advance()
    data = line.planner.snapshot()
    _, state = snapshot.decode(data, line.job.log_id, 1)

    assert list(state) == ["sets"]
    assert len(state["sets"]) == 2
    assert len(data) < 4000
    state["sets"].reverse()
    other = snapshot.encode(line.job.log_id, 1, 20, state)
    with pytest.raises(BadSnapshot, match="set of roles"):
        Line(stepwise(), 1, snapshot=other)


@pytest.mark.parametrize("exhausted", ["repeat", "stop"])
def test_a_finite_joint_job_ends_where_a_set_that_stops_has_nothing_more(exhausted: str) -> None:
    """The other one is repeated as often as it takes, or ends the lane where it is the first."""
    job = ending(exhausted)
    ensure_counted(job)
    epochs: dict[str, Counter[int]] = {"packed": Counter(), "padded": Counter()}
    for lane in range(job.lanes):
        line = Line(job, lane)
        end = job.lane_end(lane)
        assert end is not None
        for offset in range(end):
            plan = line.advance()
            assert plan.offset == offset
            name = job.role_sets[plan.role_set].name
            epochs[name].update(ref.item.epoch for row in plan.rows for ref in row)
        assert line.planner.next() is None
        assert line.planner.end == end

    assert set(epochs["packed"]) <= {0, 1}
    if exhausted == "repeat":
        assert max(epochs["packed"]) == 1
        assert epochs["packed"][1] > 0.5 * epochs["packed"][0]
    else:
        assert set(epochs["padded"]) <= {0, 1}


def test_the_ends_of_a_joint_job_are_arithmetic_where_those_of_its_sets_are() -> None:
    """They are what planning to the end finds."""

    def make() -> JointJob:
        sets = {
            "few": RoleSet(ItemsSource(list(range(7))), batch_size=2, exhausted="repeat"),
            "many": RoleSet(ItemsSource(list(range(40))), batch_size=3, ratio=2.5),
        }
        return JointJob(sets, lanes=3, batches_per_step=2, epochs=2)

    job = make()
    ends = [job.known_end(lane) for lane in range(3)]
    assert not job.needs_counting
    assert job.numbering().is_complete
    for lane, end in enumerate(ends):
        planner = JointPlanner(make(), lane, Items(make()))
        while planner.next() is not None:
            pass
        assert planner.end == end


class Named(BatchCollator):
    """Gives a value of the reserved name."""

    def collate(self, rows: Any, context: Any) -> dict[str, Any]:
        """Return it."""
        return {"dataset_name": "mine"}


def test_what_a_joint_job_cannot_be_is_refused() -> None:
    """One sentence that says what to give in its place."""

    def two(**more: Any) -> JointJob:
        sets = {"a": RoleSet(ItemsSource([1]), batch_size=1), "b": padded_set(1)}
        return JointJob(sets, **more)

    def repeated(**more: Any) -> JointJob:
        return JointJob({"a": padded_set(1, exhausted="repeat")}, epochs=1, **more)

    with pytest.raises(InvalidJob, match="give batches_per_step, or choice: batch"):
        two()
    with pytest.raises(InvalidJob, match="choice is 'rank'"):
        two(choice="rank")
    with pytest.raises(InvalidJob, match="deals 1 lanes to 2 sets"):
        two(choice="lane", lanes=1)
    with pytest.raises(InvalidJob, match="all of them are repeated"):
        repeated(choice="batch")
    with pytest.raises(InvalidJob, match="the lanes of 'a' would never end"):
        repeated(choice="lane")
    for ratio in (0, -1, float("inf"), "2", True):
        with pytest.raises(InvalidJob, match=r"ratio is .*: give a number above 0"):
            padded_set(ratio)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="exhausted is 'never'"):
        padded_set(1, exhausted="never")
    job = two(batches_per_step=12)
    for fits in (1, 2, 3, 4, 6, 12):
        job.check_steps(fits)
    for wrong in (5, 24):
        with pytest.raises(InvalidRequest, match="use 1, 2, 3, 4, 6, 12, or choice: batch"):
            job.check_steps(wrong)
    two(choice="batch").check_steps(7)
    named = {"a": RoleSet(ItemsSource([1]), batch_size=1, collator=Named())}
    line = Line(JointJob(named, choice="batch"), 0)
    with pytest.raises(InvalidJob, match=r"Named.collate\(\) of 'a' gives a value 'dataset_name'"):
        line.make(line.advance())
