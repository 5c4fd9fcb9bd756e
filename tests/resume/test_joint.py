"""Jobs whose lanes have different roles: each lane is that of its set, and resumes exactly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from invariants import check_conservation
from penstock.server.core.refs import BatchPlan
from penstock.server.job import Job
from penstock.server.joint_job import JointJob
from penstock.server.node.count import ensure_counted, lanes_of_part
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Maker
from penstock.server.role_set import RoleSet, deal_lanes, joint_specs
from penstock.server.roles import (
    PackedCollator,
    PaddedCollator,
    ProcessContext,
    Sample,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_job
from penstock.wire import frame
from penstock.wire.errors import BadSnapshot, InvalidJob
from resume.joint import counted, endless, packed_set, padded_set
from resume.plans import SizedProcessor, raw_items
from truth import Truth

LANES = ["packed", "padded", "packed", "padded", "packed"]
"""How `endless` deals its lanes: three and two, as evenly as it can be."""


@pytest.mark.parametrize("lane", [2, 3])
def test_every_offset_of_a_joint_lane_restores_exactly(lane: int) -> None:
    """Bytes and snapshots from every offset are those of a run without a break."""
    check_job(endless, lane=lane, batches=25)


@pytest.mark.parametrize("lane", range(5))
def test_a_lane_gives_what_its_set_gives_alone(lane: int) -> None:
    """Draws, plans and accounting of an inner lane are those of a job of this set only."""
    joint = endless()
    [(roles, inner)] = joint.lane_roles(lane)
    assert roles.name == LANES[lane]
    alone = Job(
        # A source without a name of its own is called after its set.
        dict(roles.sources),
        roles.distributor,
        roles.processor,
        roles.batcher,
        roles.collator,
        seed=joint.seed,
        lanes=roles.lanes,
        on_item_error="quarantine",
    )

    ours, theirs = Line(joint, lane), Line(alone, inner)
    for _ in range(20):
        plan, other = ours.advance(), theirs.advance()
        assert (plan.lane, plan.role_set) == (lane, roles.number)
        assert (plan.offset, plan.rows) == (other.offset, other.rows)

    assert check_conservation(endless(), lane, 20) == ours.counters()


def test_plans_and_snapshots_name_their_set() -> None:
    """By number, which for a snapshot of the first set is left out, as of a job with one set."""
    job, maker = endless(), Maker(endless(), Items(endless()))
    for lane, name in enumerate(LANES):
        line = Line(job, lane)
        plan = line.advance()

        sent = json.loads(json.dumps(plan.to_json()))
        assert sent[3] == LANES.index(name)
        assert BatchPlan.from_json(sent) == plan
        state = snapshot.decode(line.planner.snapshot(), job.log_id, lane)[1]
        assert state.get("role_set", 0) == LANES.index(name)
        # Whoever is sent the plan makes it by the roles of its set.
        made, other = line.make(plan), maker.make(BatchPlan.from_json(sent))
        bodies = [bytearray(each.nbytes) for each in (made, other)]
        headers = [m.write(memoryview(b)) for m, b in zip((made, other), bodies, strict=True)]
        assert (headers[0], bodies[0]) == (headers[1], bodies[1])
        values = {value.name for value in frame.read_header(headers[0]).values}
        assert ("document_ids" in values) == (name == "packed")


def test_a_snapshot_of_another_set_is_refused() -> None:
    """Though it be of this lane and log."""
    line = Line(endless(), 1)
    offset, state = snapshot.decode(line.planner.snapshot(), line.job.log_id, 1)
    other = snapshot.encode(line.job.log_id, 1, offset, {**state, "role_set": 0})

    with pytest.raises(BadSnapshot, match="set of roles 0"):
        Line(endless(), 1, snapshot=other)


def test_a_finite_job_ends_where_each_of_its_sets_does() -> None:
    """Every item comes as often as there are epochs, whether its lane's end is known or found."""
    job = counted()
    assert [end is None for end in job.numbering().order.ends or ()] == [
        job.lane_roles(lane)[0].roles.name == "found" for lane in range(job.lanes)
    ]
    ensure_counted(job)
    loader, seen = Truth(job), Counter[tuple[str, int, int]]()
    for position in range(job.order.batches or 0):
        header = frame.read_header(loader.batch(position).header)
        seen.update({(s.source, s.index, s.epoch) for s in header.samples})

    named = {item for item in seen if item[0] != "found"}
    assert named == {
        (source, index, epoch)
        for source, count in (("short", 9), ("long", 14))
        for index in range(count)
        for epoch in range(2)
    }
    choosy = {(index, epoch) for source, index, epoch in seen if source == "found"}
    good = [n for n in range(23) if n % 7 != 3 and n != 11]
    assert choosy == {(index, epoch) for index in good for epoch in range(2)}


def test_reading_groups_are_numbered_over_the_sets() -> None:
    """Lanes of one group are counted by one process, and no lane by two."""
    three = {"a": packed_set(6), "b": padded_set(3), "c": packed_set(2)}
    job = JointJob(three, choice="lane", lanes=11, seed=1)
    groups = job.reading_groups
    sets = [job.lane_roles(lane)[0].roles.name for lane in range(job.lanes)]

    assert {sets[lane] for lane, group in enumerate(groups) if group is None} == {"b"}
    of_group: dict[int, set[str]] = {}
    for lane, group in enumerate(groups):
        if group is not None:
            of_group.setdefault(group, set()).add(sets[lane])
    assert sorted(of_group) == list(range(len(of_group)))
    assert all(len(names) == 1 for names in of_group.values())
    parts = [lanes_of_part(job, part, 3) for part in range(3)]
    assert sorted(lane for part in parts for lane in part) == list(range(job.lanes))
    assert max(of_group) < sum(roles.lanes for roles in job.role_sets if roles.name != "b")
    assert sum(len({groups[n] for n in part if groups[n] is not None}) for part in parts) == len(
        of_group
    )


def test_a_batch_that_quarantine_has_emptied_has_the_shapes_of_its_set() -> None:
    """Its padding is made of items of the same set, whose keys and sizes it has."""

    class Broken(SizedProcessor):
        def process(self, raw: Any, context: ProcessContext) -> Sample:
            if context.item.epoch > 0:
                raise ValueError("a damaged record")
            return super().process(raw, context)

    items = ItemsSource(raw_items()[:9])
    broken = RoleSet(items, None, Broken(), SimpleBatcher(3), PaddedCollator())
    two = {"packed": packed_set(1), "broken": broken}
    job = JointJob(two, choice="lane", lanes=2, seed=5, on_item_error="quarantine")
    line = Line(job, 1)
    made = []
    for _ in range(5):
        batch = line.make(line.advance())
        body = bytearray(batch.nbytes)
        made.append((batch.emptied, frame.read_header(batch.write(memoryview(body)))))

    assert [emptied for emptied, _ in made] == [False] * 3 + [True] * 2
    names = [[value.name for value in header.values] for _, header in made]
    assert names == [["input_ids", "attention_mask", "labels", "dataset_name"]] * 5


def test_lanes_are_dealt_as_evenly_as_they_can_be() -> None:
    """In any run of lanes from the first on, no set is a whole lane from its share."""
    for counts in ([3, 2], [1, 1, 1], [5], [1, 7], [4, 2, 1], [12, 35, 1]):
        dealt, total = deal_lanes(counts), sum(counts)
        assert [dealt.count(number) for number in range(len(counts))] == counts
        for lane in range(total + 1):
            for number, count in enumerate(counts):
                share = count * lane / total
                assert abs(dealt[:lane].count(number) - share) <= len(counts) / 2


def test_the_log_id_covers_all_sets() -> None:
    """Any role of any set, their names, order and lanes: another value is another log."""

    def joint(choice: str = "batch", **sets: RoleSet) -> JointJob:
        return JointJob(sets, choice=choice, lanes=4, seed=5, batches_per_step=2)

    def simple(size: int = 2, ratio: float = 2, exhausted: str = "stop") -> RoleSet:
        source = ItemsSource(list("abcd"))
        return RoleSet(source, batch_size=size, ratio=ratio, exhausted=exhausted)

    jobs = [
        joint(a=simple(), b=simple()),
        joint(a=simple(), b=simple(3)),
        joint(a=simple(3), b=simple()),
        joint(b=simple(), a=simple()),
        joint(a=simple(), c=simple()),
        joint(a=simple(), b=simple(ratio=1)),
        joint(a=simple(ratio=1), b=simple(ratio=3)),
        joint(a=simple(), b=simple(exhausted="repeat")),
        joint("step", a=simple(), b=simple()),
        joint("lane", a=simple(), b=simple()),
        JointJob({"a": simple(), "b": simple()}, lanes=4, seed=5, batches_per_step=4),
        joint(a=simple()),
        Job({"a": ItemsSource(list("abcd"))}, batch_size=2, lanes=4, seed=5),
    ]
    assert len({job.log_id for job in jobs}) == len(jobs)
    assert joint(a=simple(ratio=0.5), b=simple(ratio=0.5)).log_id == jobs[0].log_id


def test_what_is_known_of_values_holds_for_every_set() -> None:
    """A value that one set gives is optional; a dimension that differs is open."""
    specs = {spec.name: spec for spec in endless().specs()}
    assert not specs["input_ids"].optional
    assert specs["document_ids"].optional
    assert specs["attention_mask"].optional
    assert endless().value_layout().name == ""

    sets = [
        RoleSet(
            ItemsSource([1]), batcher=SimpleBatcher(1), collator=PaddedCollator(pad_to=width)
        ).placed(4, name, number)
        for number, (name, width) in enumerate([("a", 8), ("b", 16)])
    ]
    assert {spec.shape for spec in joint_specs(sets)} == {(-1, -1), ()}


def _two(first: RoleSet, second: RoleSet) -> Callable[[], JointJob]:
    return lambda: JointJob({"a": first, "b": second}, choice="batch")


def _plain(**more: ItemsSource) -> RoleSet:
    return RoleSet(more or ItemsSource([1, 2]), batch_size=1)


SAME = ItemsSource([1, 2])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: JointJob({}), "there is no set of roles"),
        (lambda: JointJob({"a b": _plain()}, choice="batch"), "'a b' is not a name"),
        (_two(_plain(x=ItemsSource([1])), _plain(x=ItemsSource([2]))), "same name"),
        (_two(_plain(x=SAME), _plain(y=SAME)), "same object in the sets 'a' and 'b'"),
        (
            _two(
                RoleSet(ItemsSource([1]), batch_size=1, collator=PaddedCollator()),
                RoleSet(ItemsSource([1]), batch_size=1, collator=PackedCollator(ids_dtype="int32")),
            ),
            "value 'input_ids' is a tensor of int64 .* 'a' and a tensor of int32",
        ),
    ],
    ids=["none", "name", "one name twice", "one source twice", "values"],
)
def test_sets_that_do_not_go_together_are_refused(make: Callable[[], JointJob], said: str) -> None:
    """With what is wrong, and between which sets."""
    with pytest.raises(InvalidJob, match=said):
        make()
