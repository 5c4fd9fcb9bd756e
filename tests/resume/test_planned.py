"""Planned lanes: at every offset by arithmetic, whatever fails or is left out on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.job import Job
from penstock.server.joint_job import JointJob
from penstock.server.node.count import ensure_counted
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line, compute
from penstock.server.pipeline.planner import open_planner
from penstock.server.planned.plan import Plan
from penstock.server.role_set import RoleSet
from penstock.server.roles import (
    MapDistributor,
    PackedCollator,
    PaddedCollator,
    ProcessContext,
    Sample,
)
from penstock.server.roles.batchers import (
    BestFitDecreasingPackingBatcher,
    ConcatPackingBatcher,
    KnapsackPackingBatcher,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_job
from penstock.server.testing.job import Step, step
from penstock.wire import frame
from penstock.wire.errors import BadItem, BadSnapshot, PastEnd
from penstock.wire.order import Cut
from planned import with_plan, write_index_of
from resume.plans import (
    BlockedSource,
    ChoosyProcessor,
    IdentityProcessor,
    SizedProcessor,
    raw_items,
)
from truth import Truth

G = 4

ROLES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    # The batcher, the processor, what the distributor is given, the plan.
    "decreasing": (
        BestFitDecreasingPackingBatcher(32, rows=2),
        SizedProcessor,
        {},
        {"window": 9},
    ),
    "knapsack": (
        KnapsackPackingBatcher(32, packing_ratio=0.8),
        IdentityProcessor,
        {"sample_ratio": 2.5},
        {"window": 20, "balance": "tokens + squares / 32"},
    ),
    "choosy": (
        BestFitDecreasingPackingBatcher(64),
        ChoosyProcessor,
        {"shuffle": "full"},
        {"window": 12},
    ),
    "blocks": (
        BestFitDecreasingPackingBatcher(32, overlong="truncate"),
        SizedProcessor,
        {"shuffle": "blocks", "reading_groups": 3, "window_blocks": 1},
        {},
    ),
    "concat": (ConcatPackingBatcher(32), IdentityProcessor, {"shuffle": "none"}, {}),
    "grouped": (SimpleBatcher(3), SizedProcessor, {}, {"group_by_length": True, "window": 10}),
    "plain": (SimpleBatcher(3), ChoosyProcessor, {}, {"balance": "longest"}),
}


def make_job(
    name: str, folder: Path, *, epochs: int | None = None, processor: Any = None, **job: Any
) -> Job:
    """Return a planned job of three lanes; the index is made with the first."""
    batcher, usual, drawing, plan = ROLES[name]

    def make(plan: Plan | None) -> Job:
        packs = not isinstance(batcher, SimpleBatcher)
        items = raw_items()
        return Job(
            BlockedSource(items) if drawing.get("shuffle") == "blocks" else ItemsSource(items),
            MapDistributor(**drawing),
            (processor or usual)(),
            batcher.clone(),
            PackedCollator() if packs else PaddedCollator(),
            plan=plan,
            seed=5,
            lanes=3,
            epochs=epochs,
            batches_per_step=G,
            **{"on_item_error": "quarantine", **job},
        )

    return with_plan(make, folder / f"{name}.index", plan)


@pytest.mark.parametrize("name", ROLES)
def test_every_offset_restores_exactly(name: str, tmp_path: Path) -> None:
    """Bytes and snapshots from every offset are those of a run without a break, over epochs."""
    job = make_job(name, tmp_path)
    log = job.role_sets[0].planned
    assert log is not None
    batches = max(stream.batches for stream in log.streams)

    truth = check_job(partial(make_job, name, tmp_path), lane=2, batches=min(batches + 5, 40))

    states = [snapshot.decode(each.snapshot, job.log_id, 2) for each in truth]
    assert states == [(offset, {}) for offset in range(len(truth))]


@pytest.mark.parametrize("name", ROLES)
def test_a_line_goes_anywhere_without_planning_what_is_between(name: str, tmp_path: Path) -> None:
    """Far ahead, back and to the same batch again; its counts are those of all before."""
    job = make_job(name, tmp_path)
    line = Line(job, 1)
    walked = [step(line) for _ in range(30)]
    sums = [Counter[str]()]
    for each in walked:
        borne = {count.name: count.value for count in frame.read_header(each.header).accounting}
        exits = {n: v for n, v in borne.items() if n.startswith(("size:", "quarantined:exit"))}
        sums.append(sums[-1] + Counter(borne) - Counter(exits))

    other = Line(make_job(name, tmp_path), 1)
    for offset in (29, 3, 3, 17, 0, 28):
        other.skip_to(offset)
        assert Counter(other.counters()) == sums[offset]
        assert step(other) == walked[offset]
        assert Counter(other.counters()) == sums[offset + 1]
        assert Counter(other.counters_before()) == sums[offset], "what others may have counted"
    far = 10**12
    other.skip_to(far)
    assert other.planner.next() is not None
    assert other.planner.offset == far + 1


def headers_of(job: Job) -> list[Any]:
    """Return the headers of all batches of a finite job, as `local:` gives them."""
    loader = Truth(job)
    return [
        frame.read_header(loader.batch(position).header)
        for position in range(job.order.batches or 0)
    ]


@pytest.mark.parametrize("name", ROLES)
def test_all_that_is_drawn_is_delivered_or_counted(name: str, tmp_path: Path) -> None:
    """Over all batches: drawn = items in batches + filtered + quarantined + dropped whole."""
    job = make_job(name, tmp_path, epochs=2)

    headers = headers_of(job)

    told: Counter[str] = Counter()
    seen: Counter[Any] = Counter()
    for header in headers:
        told.update({count.name: count.value for count in header.accounting})
        seen.update((s.source, s.index, s.epoch) for s in header.samples)
    drawer = job.role_sets[0].distributor
    assert isinstance(drawer, MapDistributor)
    assert told["drawn"] == 2 * drawer.items
    left_out = sum(n for key, n in told.items() if key.startswith(("filtered:", "quarantined:")))
    assert len(seen) + left_out == told["drawn"]
    if name in ("choosy", "plain"):
        assert told["quarantined:index"] == 2, "item 11 fails in each epoch"
        assert told["filtered:every seventh"] == 6
    else:
        assert left_out == 0
    for epoch in range(2):
        own = Counter({key[:2]: n for key, n in seen.items() if key[2] == epoch})
        again = Counter({key[:2]: n for key, n in seen.items() if key[2] == epoch + 1})
        assert name == "knapsack" or epoch or set(own) == set(again)


def test_the_length_is_known_before_an_item_is_read(tmp_path: Path) -> None:
    """From the index alone: nobody counts, and nothing is processed."""
    make_job("choosy", tmp_path, epochs=3)

    class Unread(ChoosyProcessor):
        def process(self, raw: Any, context: ProcessContext) -> Any:
            raise AssertionError("an item was read")

        def identity(self) -> dict[str, Any]:
            return ChoosyProcessor().identity()

    job = make_job("choosy", tmp_path, epochs=3, processor=Unread)

    assert not job.needs_counting
    assert job.numbering().is_complete
    total = job.order.batches
    ends = [job.known_end(lane) for lane in range(3)]
    assert total == sum(end or 0 for end in ends) > 0
    planner = open_planner(job, 1, Items(job))
    assert [planner.next() is not None for _ in range(ends[1] or 0)] == [True] * (ends[1] or 0)
    assert planner.next() is None
    line = Line(job, 1)
    line.skip_to(ends[1] or 0)
    with pytest.raises(PastEnd):
        line.advance()


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("name", ["choosy", "knapsack", "blocks"])
def test_a_finite_log_is_cut_into_steps(name: str, tail: str, tmp_path: Path) -> None:
    """The last step is filled with blanked batches, or left out; and then it is over."""
    job = make_job(name, tmp_path, epochs=1)
    total, size = job.order.batches or 0, G if (job.order.batches or 0) % G else G + 1
    cut = Cut(size, pad=tail == "pad")
    steps = cut.tail(total).steps
    loader = Truth(job)

    headers = [
        frame.read_header(loader.batch(position, cut).header) for position in range(steps * size)
    ]

    assert total % size, "the last step is not full"
    assert sum(not header.padding for header in headers) == min(total, steps * size)
    assert steps == (total // size if tail == "drop" else total // size + 1)
    with pytest.raises(PastEnd):
        loader.batch(steps * size, cut)


class Breaking(SizedProcessor):
    """Fails on some items, some day: not when the index was made."""

    broken: ClassVar[Mapping[int, Exception]] = {}

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens, or fail."""
        if (error := self.broken.get(raw["number"])) is not None:
            raise error
        return super().process(raw, context)


def all_steps(job: Job) -> dict[tuple[int, int], Step]:
    """Return every batch of a finite job by lane and offset."""
    found = {}
    for lane in range(job.lanes):
        line = Line(job, lane)
        for offset in range(job.known_end(lane) or 0):
            found[lane, offset] = step(line)
    return found


@pytest.mark.parametrize("name", ["decreasing", "grouped"])
def test_an_item_that_fails_after_it_was_indexed_changes_its_own_batch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other byte of the log; the batch says what it lacks."""
    make = partial(make_job, name, tmp_path, epochs=2, processor=Breaking)
    before = all_steps(make())
    monkeypatch.setattr(Breaking, "broken", {4: ValueError("a damaged record")})

    after = all_steps(make())

    holds = {
        key: sum(s.index == 4 for s in frame.read_header(each.header).samples)
        for key, each in before.items()
    }
    changed = {key for key, each in before.items() if after[key] != each}
    assert changed == {key for key, number in holds.items() if number}
    for key in changed:
        header = frame.read_header(after[key].header)
        told = {count.name: count.value for count in header.accounting}
        assert told["quarantined:exit"] == holds[key]
        assert not any(s.index == 4 for s in header.samples)
    with pytest.raises(BadItem, match=r"item main\[4\] in epoch . of job 'job' fails in"):
        all_steps(make(on_item_error="stop"))


def test_an_item_of_another_size_than_indexed_is_told_from_its_plan(tmp_path: Path) -> None:
    """Larger than its row has room for: it is left out of its batch, with the reason."""

    class Growing(SizedProcessor):
        more: ClassVar[int] = 0

        def process(self, raw: Any, context: ProcessContext) -> Sample:
            given = super().process(raw, context)
            return {"input_ids": [*given["input_ids"], *[7] * self.more * (raw["number"] == 9)]}

    make = partial(make_job, "decreasing", tmp_path, epochs=1, processor=Growing)
    before = all_steps(make())
    Growing.more = 40

    after = all_steps(make())

    changed = [key for key, each in before.items() if after[key] != each]
    [key] = changed
    told = {c.name: c.value for c in frame.read_header(after[key].header).accounting}
    assert told["quarantined:size"] == 1


def test_a_snapshot_of_a_job_without_a_plan_is_refused(tmp_path: Path) -> None:
    """Its log is another one; and what only looks like one of this log is refused as well."""
    job = make_job("concat", tmp_path)
    ours = open_planner(job, 0, Items(job))
    state = snapshot.encode(job.log_id, 0, 3, {"draws": [1]})

    with pytest.raises(BadSnapshot, match="it is of a job that is not planned"):
        ours.restore(state)
    assert ours.offset == 0


def test_epochs_hold_the_same_sizes_in_other_places(tmp_path: Path) -> None:
    """Each sample takes the place of one of its own size, another one in most places."""
    job = make_job("choosy", tmp_path, epochs=2)
    planners = [open_planner(job, lane, Items(job)) for lane in range(3)]
    plans = [plan for planner in planners for plan in iter(planner.next, None)]

    by_epoch: list[list[Any]] = [[], []]
    for plan in plans:
        by_epoch[plan.rows[0][0].item.epoch].append(
            [[(ref.item.index, ref.part, ref.size) for ref in row] for row in plan.rows]
        )
    sizes = [Counter(tuple(s for *_, s in row) for p in own for row in p) for own in by_epoch]
    assert sizes[0] == sizes[1]
    assert Counter(map(str, by_epoch[0])) != Counter(map(str, by_epoch[1]))


# --- joint jobs -----------------------------------------------------------------------------------


def joint_job(folder: Path, choice: str, epochs: int | None) -> JointJob:
    """Return a job of a planned set and one that is not."""

    def planned_set(plan: Plan | None) -> RoleSet:
        return RoleSet(
            ItemsSource(raw_items()),
            MapDistributor(),
            ChoosyProcessor(),
            BestFitDecreasingPackingBatcher(64),
            PackedCollator(),
            plan=plan,
            ratio=2,
        )

    path = folder / "planned.index"
    if not path.exists():
        alone = planned_set(None)
        bare = Job(
            {"planned": alone.sources["main"]},
            alone.distributor,
            alone.processor,
            alone.batcher,
            alone.collator,
            seed=5,
            on_item_error="quarantine",
        )
        write_index_of(bare, path)
    other = RoleSet(
        ItemsSource(raw_items()[:9]),
        None,
        SizedProcessor(),
        ConcatPackingBatcher(32),
        PackedCollator(),
    )
    return JointJob(
        {"planned": planned_set(Plan(str(path), window=10)), "other": other},
        choice=choice,
        seed=5,
        lanes=4,
        epochs=epochs,
        batches_per_step=G,
        on_item_error="quarantine",
        snapshot_every=4,
    )


@pytest.mark.parametrize("choice", ["step", "batch", "lane"])
def test_a_planned_set_of_a_joint_job_resumes(choice: str, tmp_path: Path) -> None:
    """At every offset, beside a set that is planned draw by draw."""
    check_job(partial(joint_job, tmp_path, choice, None), lane=3, batches=20)


@pytest.mark.parametrize("choice", ["step", "batch", "lane"])
def test_a_joint_job_with_a_planned_set_ends(choice: str, tmp_path: Path) -> None:
    """Its lanes are counted where a set is not planned; nothing of the planned set comes twice."""
    job = joint_job(tmp_path, choice, 2)
    ensure_counted(job)

    headers = headers_of(job)

    seen = Counter((s.source, s.index, s.part, s.epoch) for h in headers for s in h.samples)
    planned = {key: n for key, n in seen.items() if key[0] == "planned"}
    assert set(planned.values()) == {1}
    if choice == "lane":
        assert {key[3] for key in planned} == {0, 1}
        good = [n for n in range(23) if n % 7 != 3 and n != 11]
        assert {key[1:3] for key in planned} == {(n, p) for n in good for p in range(1 + n % 3)}


def test_positions_are_computed_alone_as_well(tmp_path: Path) -> None:
    """As `penstockd show` does: from nothing but the job and the position, in any order."""
    job = make_job("knapsack", tmp_path, epochs=3)
    loader = Truth(make_job("knapsack", tmp_path, epochs=3))
    every = [loader.batch(position) for position in range(job.order.batches or 0)]

    for position in np.random.default_rng(1).permutation(len(every))[:20].tolist():
        assert compute(make_job("knapsack", tmp_path, epochs=3), position) == every[position]
