"""What a plan says of a planned job is what its readers get, to the token."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.commands.plan import report
from penstock.server.commands.plan_text import render
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.lane_counts import MAX_REASONS
from penstock.server.pipeline.line import Line
from penstock.server.planning.index.block import QUARANTINED, ItemSizes
from penstock.server.planning.index.index_file import SourceBlocks, blocks_of, write_index
from penstock.server.planning.index.inputs import index_inputs
from penstock.server.planning.log.job_plan import Plan
from penstock.server.planning.report.plan_report import PlanReport
from penstock.server.planning.report.planned_figures import check_fits, figures_of_planned
from penstock.server.planning.report.window_figures import WindowFigures, add_up
from penstock.server.roles import (
    BestFitDecreasingPackingBatcher,
    Blocks,
    ConcatPackingBatcher,
    KnapsackPackingBatcher,
    MapDistributor,
    PackedCollator,
    PaddedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SimpleBatcher,
)
from penstock.server.roles.batchers import FirstFitPackingBatcher, SequentialPackingBatcher
from penstock.server.roles.filling import BatchSizes, Filling, sums
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadBatch, InvalidJob, InvalidRequest, PastEnd
from planned import with_plan
from planned_read import Read, SizedItems, tokens_of
from resume.plans import LENGTHS
from truth import Truth

PACKERS: dict[str, SampleBatcher] = {
    "decreasing": BestFitDecreasingPackingBatcher(32, rows=2),
    "cut": BestFitDecreasingPackingBatcher(32, overlong="truncate"),
    "dropped": BestFitDecreasingPackingBatcher(32, overlong="drop"),
    "knapsack": KnapsackPackingBatcher(32, rows=2, packing_ratio=0.9),
    "few packs": KnapsackPackingBatcher(32, max_packs=5),
    "concat": ConcatPackingBatcher(32, rows=2),
    "concat, no tail": ConcatPackingBatcher(32, drop_last=True),
    "first fit": FirstFitPackingBatcher(32, rows=2),
    "sequential": SequentialPackingBatcher(max_sequence_length=33),
    "simple": SimpleBatcher(4),
    "simple, no tail": SimpleBatcher(4, drop_last=True),
}

PLANS: dict[str, dict[str, Any]] = {
    "one window": {},
    "windows": {"window": 30},
    "balanced": {"window": 30, "balance": "tokens + squares / 32"},
}


class Blocked(SizedItems):
    """Items in storage blocks of ten."""

    def blocks(self) -> Blocks:
        """Return how many items each has."""
        return Blocks((10,) * (len(self) // 10))


def items(count: int, kind: type[SizedItems] = SizedItems) -> SizedItems:
    lengths = [LENGTHS[(3 * number) % len(LENGTHS)] for number in range(count)]
    return kind([{"input_ids": list(range(length))} for length in lengths])


def make(batcher: SampleBatcher, folder: Path, plan: dict[str, Any], **options: Any) -> Job:
    """Return a planned job, and write its index."""
    packs = not isinstance(batcher, SimpleBatcher)
    collator = PackedCollator() if packs else PaddedCollator()
    given = {"collator": collator, "lanes": 4, "seed": 5, "batches_per_step": 4, **options}
    data = given.pop("data", None) or items(110)
    drawn = given.pop("drawn", {})

    def built(plan: Plan | None) -> Job:
        return Job(data, MapDistributor(**drawn), None, batcher.clone(), plan=plan, **given)

    bare = built(None)
    sizes = {
        name: ItemSizes(None, np.array(source.sizes(range(len(source))), np.int64))
        for name, source in bare.sources.items()
        if isinstance(source, SizedItems)
    }
    url = str(folder / "sizes.index")
    write_index(
        url,
        index_inputs(bare.role_sets[0], bare.seed),
        [SourceBlocks(name, told.positions, blocks_of(told)) for name, told in sizes.items()],
    )
    return built(Plan(url, **plan))


def planned(job: Job, epochs: int | None = None) -> PlanReport:
    return report(job, (4, "option"), [2, 4], (), epochs)


def check_agrees(job: Job, read: Read, found: PlanReport) -> None:
    assert (found.batches, found.rows, found.samples) == (read.batches, read.rows, read.samples)
    assert found.packing is not None
    assert found.packing.tokens == read.counts["tokens"]
    assert found.packing.padding == read.counts["padding_tokens"]
    assert found.is_planned


@pytest.mark.parametrize(
    ("batcher", "plan"),
    [(name, list(PLANS)[number % len(PLANS)]) for number, name in enumerate([*PACKERS, *PACKERS])],
)
def test_a_finite_job_gives_what_its_plan_says(batcher: str, plan: str, tmp_path: Path) -> None:
    """Two epochs of every batcher: batches, tokens, padding, and what is left out by reason."""
    job = make(PACKERS[batcher], tmp_path, PLANS[plan], epochs=2, data=items(70))
    read, found = Read(job), planned(job)

    check_agrees(job, read, found)
    assert {name: n for name, n in found.counts.items() if n} == {
        name: n for name, n in read.planner.items() if n
    }
    assert (found.is_all, found.items) == (True, 140)


@pytest.mark.parametrize("epochs", [2, None])
@pytest.mark.parametrize("plan", ["windows", "balanced"])
def test_a_job_without_a_batch_is_refused_as_a_node_refuses_it(
    plan: str, epochs: int | None, tmp_path: Path
) -> None:
    """Every sample is too long: a table of zeros would look like a plan."""
    long = SizedItems([{"input_ids": list(range(40))} for _ in range(5)])
    job = make(PACKERS["dropped"], tmp_path, PLANS[plan], epochs=epochs, data=long)

    with pytest.raises(InvalidJob, match=r"gives no batch: .* dropped:overlong: (5|10); loosen"):
        planned(job)


@pytest.mark.parametrize("plan", ["windows", "balanced"])
@pytest.mark.parametrize("batcher", ["decreasing", "simple"])
def test_costs_are_those_of_positions(batcher: str, plan: str, tmp_path: Path) -> None:
    """In the order in which ranks meet the batches of the first epoch."""
    job = make(PACKERS[batcher], tmp_path, PLANS[plan], epochs=1)
    loader, position, tokens = Truth(job), 0, []
    while True:
        try:
            tokens.append(tokens_of(loader.batch(position).header))
        except PastEnd:
            break
        position += 1

    costs = figures_of_planned(job).costs["tokens"].tolist()

    whole = len(tokens) if plan == "windows" else len(tokens) // 4 * 4
    assert costs == tokens[:whole]


def test_an_endless_job_goes_on_as_it_began(tmp_path: Path) -> None:
    """One epoch of it; and balanced steps are those of an epoch, with what the one before left."""
    job = make(PACKERS["decreasing"], tmp_path, PLANS["balanced"])
    batches = job.role_sets[0].planned.streams[0].batches  # type: ignore[union-attr]
    loader, found = Truth(job), planned(job)
    whole = range(batches // 4 * 4)
    tokens = [tokens_of(loader.batch(position).header) for position in whole]

    assert (found.batches, found.is_all, found.epochs) == (batches, False, 1)
    assert figures_of_planned(job).costs["tokens"].tolist() == tokens
    assert planned(job, 3).batches == 3 * batches


def test_balanced_steps_differ_less(tmp_path: Path) -> None:
    """That is what they are for."""
    job = make(PACKERS["decreasing"], tmp_path, PLANS["balanced"], data=items(400))
    plain = make(PACKERS["decreasing"], tmp_path, PLANS["windows"], data=items(400))
    skews = [
        found.ranks[1].skews["squares"].micro.mean  # type: ignore[union-attr]
        for found in (planned(job), planned(plain))
    ]

    assert skews[0] < skews[1] / 1.5
    assert "balance" in planned(job).ranks[0].skews
    assert planned(job).balance == "(tokens + (squares / 32.0))"


@pytest.mark.parametrize("epochs", [1, 2])
def test_reading_groups_have_their_own_windows(epochs: int, tmp_path: Path) -> None:
    """Positions deal the batches of several groups to steps."""
    data = items(110, Blocked)
    drawn = {"shuffle": "blocks", "reading_groups": 2, "window_blocks": 2}
    job = make(PACKERS["decreasing"], tmp_path, {}, data=data, drawn=drawn, epochs=epochs)
    read, found = Read(job), planned(job)
    loader, costs = Truth(job), figures_of_planned(job).costs["tokens"].tolist()

    check_agrees(job, read, found)
    assert costs == [tokens_of(loader.batch(place).header) for place in range(len(costs))]
    assert len(costs) > 0.8 * found.batches / epochs


@pytest.mark.parametrize("epochs", [1, None])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_reading_groups_without_a_block(blocks: int, epochs: int | None, tmp_path: Path) -> None:
    """Their lanes have no batch: a finite job ends so, and the plan counts what others have."""
    data = items(10 * blocks, Blocked)
    drawn = {"shuffle": "blocks", "reading_groups": 4, "window_blocks": 2}
    job = make(PACKERS["decreasing"], tmp_path, {}, data=data, drawn=drawn, epochs=epochs)
    log = job.role_sets[0].planned
    assert log is not None
    figures, found = figures_of_planned(job), planned(job)
    lanes = [log.batches_of(lane, 1) for lane in range(4)]

    assert [stream.windows for stream in log.streams] == [1] * blocks + [0] * (4 - blocks)
    assert lanes[blocks:] == [0] * (4 - blocks)
    assert (found.batches, found.is_all) == (sum(lanes), epochs is not None)
    # Positions of an endless job have a gap where the first lane without a batch would stand.
    loader, places = Truth(job), range(blocks if epochs is None else found.batches)
    costs = figures.costs["tokens"].tolist()
    assert costs == [tokens_of(loader.batch(place).header) for place in places]
    if epochs is not None:
        check_agrees(job, Read(job), found)


def test_tokens_by_source(tmp_path: Path) -> None:
    """Of all that is in batches; in every epoch the same, whichever sample takes which place."""
    data = {"one": items(80), "other": items(31)}
    job = make(PACKERS["dropped"], tmp_path, PLANS["windows"], data=data, epochs=2)
    read, found = Read(job), planned(job)

    assert {name: samples for name, (samples, _) in found.sources.items()} == dict(read.sources)
    assert found.packing is not None
    assert sum(tokens for _, tokens in found.sources.values()) == found.packing.tokens


MAX_NAMES = MAX_REASONS + 3
"""Beside those of the role: `drawn`, items that fail, and all other reasons."""


class Long(RawItemProcessor):
    """Leaves out every other item, each with a reason of its own, and fails at the first."""

    version = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample | None:
        """Return a sample of even items."""
        if not raw["n"]:
            raise ValueError("the first one")
        if raw["n"] % 2:
            return context.skip(f"too short: {raw['n']}")
        return {"input_ids": [1] * 5}


@pytest.mark.parametrize("plan", ["windows", "balanced"])
def test_a_reason_for_each_item_is_counted_by_few_names(plan: str, tmp_path: Path) -> None:
    """In batches, on the way and in the plan alike: sums agree by name, and no item is missing."""
    data = {name: ItemsSource([{"n": n} for n in range(600)]) for name in ("one", "other")}

    def built(plan: Plan | None) -> Job:
        batcher = BestFitDecreasingPackingBatcher(32, rows=2)
        roles = (data, MapDistributor(), Long(), batcher, PackedCollator())
        settings = {"epochs": 2, "batches_per_step": 4, "on_item_error": "quarantine"}
        return Job(*roles, plan=plan, lanes=4, **settings)

    job = with_plan(built, tmp_path / "sizes.index", PLANS[plan])
    log = job.role_sets[0].planned
    assert log is not None

    summed: Counter[str] = Counter()
    for lane in range(4):
        for offset in range(job.known_end(lane) or 0):
            batch = log.plan(lane, offset)
            assert batch is not None
            assert len(batch.accounting) <= MAX_NAMES
            summed.update(dict(batch.accounting))
    before_end = [log.counts(lane, job.known_end(lane) or 0) for lane in range(4)]

    assert MAX_REASONS < len(summed) <= MAX_NAMES
    assert sum(count for name, count in summed.items() if name.startswith("filtered:")) == 1200
    assert (summed[QUARANTINED], summed["drawn"]) == (4, 2400)
    assert sum(before_end, Counter()) == summed
    assert sum((log.counts_of_epoch() for _ in range(2)), Counter()) == summed
    assert planned(job).counts == summed


@pytest.mark.parametrize("epochs", [1, 2])
def test_pieces_by_source(epochs: int, tmp_path: Path) -> None:
    """`concat` splits by place, and a place has a sample of either source: it is said to differ."""
    data = {"one": items(80), "other": items(31)}
    job = make(PACKERS["concat"], tmp_path, PLANS["windows"], data=data, epochs=epochs)
    read, found = Read(job), planned(job)

    samples = {name: samples for name, (samples, _) in found.sources.items()}
    assert sum(samples.values()) == sum(read.sources.values())
    assert (samples == dict(read.sources)) == (epochs == 1)
    said = "which samples are left out or split differs from epoch to epoch"
    assert any(note.startswith(said) for note in found.notes) == (epochs == 2)


def test_several_processes_add_up_to_one(tmp_path: Path) -> None:
    """Windows may be added up apart, and sent as bytes."""
    data = {"one": items(80), "other": items(31)}
    job = make(PACKERS["few packs"], tmp_path, PLANS["balanced"], data=data, epochs=2)

    def apart(roles: RoleSet, keys: Any, epochs: int) -> WindowFigures:
        found = [add_up(roles, keys[part::3], epochs) for part in range(3)]
        whole = WindowFigures.decode(found[0].encode())
        for other in found[1:]:
            whole.merge(WindowFigures.decode(other.encode()))
        return whole

    together, one = figures_of_planned(job, add=apart), figures_of_planned(job)

    for name, costs in one.costs.items():
        assert together.costs[name].tolist() == costs.tolist()
    assert together.tally.to_arrays().keys() == one.tally.to_arrays().keys()
    for name, array in one.tally.to_arrays().items():
        assert together.tally.to_arrays()[name].tolist() == array.tolist()
    assert (together.sources, together.counts) == (one.sources, one.counts)


@pytest.mark.parametrize("epochs", [1, None])
def test_a_joint_job_may_have_planned_sets(epochs: int | None, tmp_path: Path) -> None:
    """Their planners plan them, beside the others; any of them that ends an epoch ends it."""
    data = {"planned": items(50)}
    one = make(PACKERS["simple"], tmp_path, {}, data=data).role_sets[0]
    batchers = {"batcher": SimpleBatcher(4), "collator": PaddedCollator()}
    sets = {
        "first": RoleSet(data, **batchers, plan=one.plan),
        "other": RoleSet(items(60), batcher=SimpleBatcher(3), collator=PaddedCollator(), ratio=2),
    }
    job = JointJob(sets, choice="batch", lanes=2, epochs=epochs)
    found, read = planned(job), Read(job, limit=epoch_of_joint(job))

    assert (found.batches, found.samples) == (read.batches, read.samples)
    assert found.packing is not None
    assert found.packing.tokens == read.counts["tokens"]
    assert found.packing.padding == read.counts["padding_tokens"]


def test_other_lanes_of_a_joint_job_have_its_plans(tmp_path: Path) -> None:
    """A row of the table says what a job of so many lanes gives: its sets are planned, too."""
    data = {"planned": items(50)}
    one = make(PACKERS["decreasing"], tmp_path, {}, data=data).role_sets[0]

    def of_lanes(lanes: int) -> JointJob:
        batcher = PACKERS["decreasing"].clone
        sets = {
            "first": RoleSet(data, batcher=batcher(), collator=PackedCollator(), plan=one.plan),
            "other": RoleSet(items(500), batcher=batcher(), collator=PackedCollator()),
        }
        return JointJob(sets, choice="batch", lanes=lanes, epochs=1)

    found = report(of_lanes(2), (4, "option"), [2], (6,))

    row = next(row for row in found.other_lanes if row.lanes == 6)
    assert row.why_not == ""
    assert (row.batches, row.packing) == (
        planned(of_lanes(6)).batches,
        planned(of_lanes(6)).packing,
    )


TOO_MANY = re.compile(
    r"lane (\d+), offset (\d+): there are (\d+) documents, padding among them, and max_documents "
    r"of the collator is (\d+), so (\d+) of (\d+) batches cannot be made; raise it to (\d+), "
)


@pytest.mark.parametrize("pad_to", [None, 32])
@pytest.mark.parametrize("layout", ["flash", "megatron", "thd", "seams"])
@pytest.mark.parametrize("plan", ["windows", "balanced", "groups"])
def test_more_documents_than_there_is_room_for_are_refused(
    plan: str, layout: str, pad_to: int | None, tmp_path: Path
) -> None:
    """Named is the batch that needs most, as whoever makes it is told; with its room all fit."""
    options: dict[str, Any] = {"data": items(110, Blocked), "epochs": 1}
    if plan == "groups":
        options["drawn"] = {"shuffle": "blocks", "reading_groups": 2, "window_blocks": 4}

    def of(most: int) -> Job:
        batcher = BestFitDecreasingPackingBatcher(32, rows=2, overlong="truncate")
        collator = PackedCollator(pad_to=pad_to, layout=layout, max_documents=most)
        return make(batcher, tmp_path, PLANS.get(plan, {}), collator=collator, **options)

    job = of(4)
    with pytest.raises(BadBatch) as caught:
        planned(job)
    with pytest.raises(BadBatch) as checked:
        check_fits(job.role_sets[0], 1)

    said = TOO_MANY.match(caught.value.message)
    assert said is not None
    lane, offset, needed, room, many, batches, remedy = map(int, said.groups())
    told = refused(job)
    assert f"there are {needed} documents" in told[lane, offset]
    assert all(int(text.split("there are ")[1].split()[0]) <= needed for text in told.values())
    assert (room, many, remedy) == (4, len(told), needed)
    assert batches == sum(job.known_end(lane) or 0 for lane in range(job.lanes))
    assert checked.value.message == caught.value.message
    assert refused(of(needed)) == {}
    assert planned(of(needed)).batches == batches
    with pytest.raises(BadBatch):
        check_fits(of(needed - 1).role_sets[0], 1)


def test_of_batches_that_need_as_much_the_first_is_named(tmp_path: Path) -> None:
    """In whatever order processes have added up their windows."""
    data = SizedItems([{"input_ids": [1]} for _ in range(110)])
    collator, plan = PackedCollator(max_documents=8), {"window": 30}
    job = make(PACKERS["decreasing"], tmp_path, plan, data=data, collator=collator, epochs=1)
    said = set()

    for step in (1, -1):

        def apart(roles: RoleSet, keys: Any, epochs: int, step: int = step) -> WindowFigures:
            first, *others = [add_up(roles, [key], epochs) for key in keys[::step]]
            for other in others:
                first.merge(other)
            assert len(first.misfits) > 1
            return first

        with pytest.raises(BadBatch) as caught:
            check_fits(job.role_sets[0], 1, apart)
        said.add(caught.value.message)

    assert len(said) == 1


class Own(PackedCollator):
    """A collator of a user, which says nothing of no batches."""

    version = 1

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self._most = most

    def filling(self, batches: BatchSizes) -> Filling | None:
        """Return how full batches are: all as wide as the longest row."""
        tokens, width = sums(batches.sizes, batches.slots), sums(batches.sizes, batches.rows).max()
        widths = np.full_like(tokens, width)
        places = widths * np.diff(batches.batches)
        return Filling(tokens, places, tokens, widths, np.diff(batches.slots), self._most)


@pytest.mark.parametrize("most", [None, 2, 40])
def test_no_collator_is_asked_about_no_batches(most: int | None, tmp_path: Path) -> None:
    """It is asked for how many documents it has room, and then about batches that there are."""
    job = make(PACKERS["cut"], tmp_path, {}, collator=Own(most), epochs=1)

    if most == 2:
        with pytest.raises(BadBatch):
            check_fits(job.role_sets[0], 1)
    else:
        check_fits(job.role_sets[0], 1)
        assert planned(job).batches > 0


def refused(job: Job) -> dict[tuple[int, int], str]:
    """Return what is said of the batches that cannot be made, by lane and offset."""
    found: dict[tuple[int, int], str] = {}
    for lane in range(job.lanes):
        line = Line(job, lane)
        for offset in range(job.known_end(lane) or 0):
            plan = line.advance()
            try:
                line.make(plan)
            except BadBatch as error:
                found[lane, offset] = error.message
    return found


def test_a_set_of_a_joint_job_is_named_where_documents_are_too_many(tmp_path: Path) -> None:
    """By its own lanes and offsets: which batch of the job that is, its choices say."""
    data = {"planned": items(50)}
    one = make(PACKERS["cut"], tmp_path, {}, data=data).role_sets[0]
    collator = PackedCollator(max_documents=3)
    batchers = {"batcher": PACKERS["cut"].clone(), "collator": collator}
    sets = {
        "first": RoleSet(items(60), batcher=PACKERS["cut"].clone(), collator=PackedCollator()),
        "other": RoleSet(data, **batchers, plan=one.plan),
    }
    job = JointJob(sets, choice="batch", lanes=2, epochs=1)

    with pytest.raises(BadBatch, match=r"^set 'other', its lane \d, offset \d+: there are "):
        check_fits(job.role_sets[1], 1)


def epoch_of_joint(job: JointJob) -> list[int]:
    """Return how many batches of each lane come before one that draws of the second epoch."""
    log = job.role_sets[0].planned
    assert log is not None
    found = []
    for lane in range(job.lanes):
        left = [log.batches_of(lane, 1), 60 // job.lanes // 3]
        offset = 0
        while left[job.choice(lane, offset)]:
            left[job.choice(lane, offset)] -= 1
            offset += 1
        found.append(offset)
    return found


def test_options_that_a_planned_job_has_no_use_for_are_refused(tmp_path: Path) -> None:
    """They would be ignored."""
    job = make(PACKERS["decreasing"], tmp_path, {})

    with pytest.raises(InvalidRequest, match="its batches come from the index in its plan"):
        report(job, (4, "option"), [2], (2,))
    with pytest.raises(InvalidRequest, match="--index names an index"):
        report(job, (4, "option"), [2], (), None, ["other.index"])


class Spelled(RawItemProcessor):
    """Makes as many ids as are asked for, and counts them."""

    version = 1
    uses_global_rng = False
    made = 0

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return a sample of `n` ids."""
        Spelled.made += raw["n"]
        return {"input_ids": list(range(raw["n"]))}


@pytest.mark.parametrize("lanes", [4, 24])
@pytest.mark.parametrize("packer", ["decreasing", "concat", "cut"])
def test_what_is_processed_for_each_piece_is_told(packer: str, lanes: int, tmp_path: Path) -> None:
    """As often as making the batches does it: more often where lanes have few of a window."""
    data = ItemsSource([{"n": 5 if n % 3 else 200} for n in range(90)])

    def built(plan: Plan | None) -> Job:
        batcher = PACKERS[packer].clone()
        given = {"plan": plan, "epochs": 1, "lanes": lanes}
        return Job(data, None, Spelled(), batcher, PackedCollator(), **given)

    job = with_plan(built, tmp_path / "sizes.index", {})
    found = planned(job)
    Spelled.made = 0
    for lane in range(lanes):
        line = Line(job, lane)
        for _ in range(job.known_end(lane) or 0):
            line.make(line.advance())

    times = Spelled.made / sum(item["n"] for item in data.fetch(range(90)))
    told = [note for note in found.notes if note.startswith("samples are processed")]
    assert bool(told) == (times > 1.2)
    assert all(f"samples are processed {times:.1f} times" in note for note in told)
    assert (found.processing is None) == (packer == "cut")
    if found.processing is not None:
        assert found.processing.times == pytest.approx(times, rel=1e-12)
        assert f"{times:.2f} times; lanes keep up to" in render(found)
        said = found.to_json()["processing"]
        assert said == {"times": round(times, 6), "kept_tokens": found.processing.kept}
