"""Jobs whose samples count images and patches: rows keep to every limit, wherever one begins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from indexes import made
from penstock.server.core.refs import BatchPlan, SampleRef
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.jobs.load import load
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Maker
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.log.job_plan import Plan
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.planning.report.figures import Figures
from penstock.server.planning.report.index_lookup import IndexLookup
from penstock.server.planning.report.planned_figures import figures_of_planned
from penstock.server.planning.report.simulated import simulate
from penstock.server.planning.report.window_figures import WindowFigures, add_up
from penstock.server.roles import (
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    FirstFitPackingBatcher,
    KnapsackPackingBatcher,
    NextFitPackingBatcher,
    PackedCollator,
    PoolPackingBatcher,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SampleSizes,
    SequentialPackingBatcher,
    SimpleBatcher,
    WindowPackingBatcher,
)
from penstock.server.roles.collators import PaddedCollator
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_job, check_processor
from penstock.wire import frame
from penstock.wire.errors import BadBatch, BadItem, InvalidJob, PastEnd, PenstockError

ROW, LIMITS = 32, {"patches": 40, "images": 3}

ITEMS: Sequence[tuple[int, int, int]] = tuple(
    (3 + (7 * n) % 23, (n * n) % 4, (11 * n) % 31 if n % 3 else 0) for n in range(25)
)
"""Sizes, images and patches."""

MORE: Sequence[tuple[int, int, int]] = ((9, 4, 1), (9, 1, 50), (40, 1, 1), (40, 0, 0))
"""Above the limit of images, of patches, of tokens with a picture, and of tokens without."""

BATCHERS: dict[str, SampleBatcher] = {
    "best_fit": BestFitPackingBatcher(ROW, pool_size=6, rows=2, limits=LIMITS),
    "first_fit": FirstFitPackingBatcher(ROW, open_rows=3, limits=LIMITS),
    "next_fit": NextFitPackingBatcher(ROW, limits=LIMITS),
    "knapsack": KnapsackPackingBatcher(ROW, window=9, packing_ratio=0.8, rows=2, limits=LIMITS),
    "best_fit_decreasing": BestFitDecreasingPackingBatcher(ROW, window=9, limits=LIMITS),
    "window": WindowPackingBatcher(ROW, window=5, limits=LIMITS),
    "sequential": SequentialPackingBatcher(ROW + 1, lookahead_limit=3, rows=2, limits=LIMITS),
    "sequential_count": SequentialPackingBatcher(None, 4, 3, limits=LIMITS),
    "pool": PoolPackingBatcher(4 * ROW, 5, None, limits=LIMITS),
}


class Pictures(RawItemProcessor):
    """Makes tokens, and says how many pictures and patches they stand for.

    `told` of an item is what is known of it unprocessed.
    """

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True
    measures: ClassVar[Sequence[str]] = ("images", "patches")  # type: ignore[assignment]

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens: the item's number, what it counts, and its number again."""
        size, images, patches = raw["real"]
        return {"input_ids": [raw["number"], images, patches, *[raw["number"]] * (size - 3)]}

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return what is in the tokens."""
        return [int(sample["input_ids"][1]), int(sample["input_ids"][2])]

    def size(self, raw: Any) -> SampleSizes:
        """Return it as it is told."""
        size, *counts = raw["told"]
        return SampleSizes(size, tuple(counts))


class Untold(Pictures):
    """Is known when it is there."""

    def knows_size(self) -> bool:
        """Return False."""
        return False


class Lying(Pictures):
    """Gives counts that are none."""

    gives: ClassVar[Any] = ()

    def counts(self, sample: Sample) -> Any:
        """Return them."""
        return self.gives

    def knows_size(self) -> bool:
        """Return False."""
        return False


def make_job(
    batcher: str | SampleBatcher,
    processor: RawItemProcessor | None = None,
    *,
    items: Sequence[tuple[int, int, int]] = (*ITEMS, *MORE),
    told: Sequence[tuple[int, int, int]] | None = None,
    plan: Plan | None = None,
    **more: Any,
) -> Job:
    raws = [
        {"number": number, "real": real, "told": real if told is None else told[number]}
        for number, real in enumerate(items)
    ]
    more = {"lanes": 2, "snapshot_every": 4, "on_item_error": "quarantine", **more}
    own = BATCHERS[batcher].clone() if isinstance(batcher, str) else batcher
    by_count = isinstance(own, SimpleBatcher) or batcher == "sequential_count"
    collator = PackedCollator(pad_to=None if by_count else ROW)
    return Job(
        ItemsSource(raws),
        processor=processor or Pictures(),
        batcher=own,
        collator=PaddedCollator() if isinstance(own, PoolPackingBatcher) else collator,
        plan=plan,
        **more,
    )


def plans_of(job: Job) -> list[BatchPlan]:
    """Return the plans of all lanes of a finite job, each made."""
    found = []
    for lane in range(job.lanes):
        line = Line(job, lane)
        while True:
            try:
                plan = line.advance()
            except PastEnd:
                break
            found.append(line.make(plan).plan)
    return found


def refs_in(plans: Sequence[BatchPlan]) -> list[SampleRef]:
    return [ref for plan in plans for row in plan.rows for ref in row]


def check_rows(plans: Sequence[BatchPlan], *, batches: bool = False) -> None:
    """Test that no row, or no batch, is above a limit by what its samples really count."""
    for plan in plans:
        every = [ref for row in plan.rows for ref in row]
        for row in [every] if batches else plan.rows:
            if len(row) == 1 and batches:
                continue  # the oldest of a pool is never left out
            whole = [ref for ref in row if ref.span is None or not ref.span.start]
            real = [(*ITEMS, *MORE)[ref.item.index] for ref in whole]
            assert sum(images for _, images, _ in real) <= LIMITS["images"], row
            assert sum(patches for _, _, patches in real) <= LIMITS["patches"], row
            assert [ref.counts for ref in whole] == [(i, p) for _, i, p in real]


@pytest.mark.parametrize("processor", [Pictures, Untold])
@pytest.mark.parametrize("batcher", BATCHERS)
def test_every_offset_restores_exactly(batcher: str, processor: type[Pictures]) -> None:
    """From every offset on, bytes and snapshots are those of the uninterrupted line."""
    steps = check_job(lambda: make_job(batcher, processor()), lane=1, batches=15)

    assert b"_penstock" not in steps[-1].snapshot, "what a job tells a batcher is no state"


@pytest.mark.parametrize("processor", [Pictures, Untold])
@pytest.mark.parametrize("batcher", BATCHERS)
def test_rows_keep_to_every_limit_and_each_sample_comes_once(
    batcher: str, processor: type[Pictures]
) -> None:
    """Over two epochs, all that is not left out by name."""
    job = make_job(batcher, processor(), epochs=2)

    plans = plans_of(job)

    check_rows(plans, batches=batcher == "pool")
    found = Counter((ref.item, ref.span and ref.span.start) for ref in refs_in(plans))
    assert set(found.values()) == {1}
    numbers = {item.index for item, _ in found}
    assert set(range(len(ITEMS))) <= numbers
    left_out = set(range(len(ITEMS) + len(MORE))) - numbers
    expected = {
        "pool": set(),
        "sequential": {25, 26, 27, 28},
        "sequential_count": {25, 26},
    }
    assert left_out == expected.get(batcher, {25, 26, 27})


@pytest.mark.parametrize("batcher", sorted(set(BATCHERS) - {"pool"}))
def test_told_or_found_the_same_batches_come(batcher: str) -> None:
    """What is told beforehand is what processing finds: so are rows, and their counts."""
    told, found = (plans_of(make_job(batcher, p, epochs=1)) for p in (Pictures(), Untold()))

    assert [plan.rows for plan in told] == [plan.rows for plan in found]


@pytest.mark.parametrize("batcher", ["best_fit", "knapsack"])
def test_any_worker_makes_any_batch_of_a_plan_that_was_sent(batcher: str) -> None:
    job = make_job(batcher)
    line = Line(job, 0)
    for _ in range(12):
        plan = line.advance()
        made = line.make(plan)

        sent = BatchPlan.from_json(json.loads(json.dumps(plan.to_json())))

        assert sent == plan
        again = Maker(job, Items(job)).make(sent)
        bodies = [bytearray(made.nbytes), bytearray(again.nbytes)]
        headers = [one.write(memoryview(b)) for one, b in zip((made, again), bodies, strict=True)]
        assert headers[0] == headers[1]
        assert bodies[0] == bodies[1]


# --- counts that were told wrong ------------------------------------------------------------------


TOLD = tuple(
    (size, max(0, images - n % 2), patches // 2) for n, (size, images, patches) in enumerate(ITEMS)
)
"""Of about half of the items too few images and patches are told."""


@pytest.mark.parametrize("batcher", ["best_fit", "first_fit", "next_fit", "best_fit_decreasing"])
def test_what_counts_more_than_told_comes_later(batcher: str) -> None:
    """No row is above a limit by what its samples turn out to count; each comes, or is counted."""
    job = make_job(batcher, items=ITEMS, told=TOLD, epochs=2, later_within=6)

    seen, counts = Counter[Any](), Counter[str]()
    for lane in range(job.lanes):
        line = Line(job, lane)
        while True:
            try:
                plan = line.advance()
            except PastEnd:
                break
            batch = line.make(plan)
            counts.update(batch.accounting)
            head = frame.read_header(batch.write(memoryview(bytearray(batch.nbytes))))
            rows: dict[int, list[int]] = {}
            for sample in head.samples:
                rows.setdefault(sample.row, []).append(sample.index)
            for row in rows.values():
                real = [ITEMS[number] for number in row]
                assert sum(images for _, images, _ in real) <= LIMITS["images"]
                assert sum(patches for _, _, patches in real) <= LIMITS["patches"]
            seen.update((sample.index, sample.epoch) for sample in head.samples)

    assert set(seen.values()) == {1}
    assert len(seen) + counts["quarantined:size"] == 2 * len(ITEMS)
    assert counts["size:later"], "the proof must see samples that come later"
    assert counts["size:larger"], "and such as find room in their row"


def test_a_sample_that_was_cut_and_has_pictures_after_all_is_a_bad_item() -> None:
    """It was told to be of tokens alone."""
    job = make_job(
        BestFitPackingBatcher(ROW), items=[(40, 1, 0)], told=[(40, 0, 0)], on_item_error="stop"
    )
    line = Line(job, 0)

    with pytest.raises(BadItem, match=r"it counts 1 images, and it was planned with 0 images"):
        line.make(line.advance())


# --- planned --------------------------------------------------------------------------------------


PLANNED = ["best_fit", "knapsack", "best_fit_decreasing", "next_fit", "sequential"]


def planned_job(batcher: str | SampleBatcher, folder: Path, **more: Any) -> Job:
    path = folder / "sizes.index"
    if not path.exists():
        made(make_job(batcher, **more), path)
    return make_job(batcher, plan=Plan(str(path), window=12), **more)


@pytest.mark.parametrize("batcher", PLANNED)
def test_planned_rows_keep_to_every_limit_in_every_epoch(batcher: str, tmp_path: Path) -> None:
    """Whatever sample of the same size takes a place, it counts the same of all that is limited."""
    job = planned_job(batcher, tmp_path, epochs=3)

    plans = plans_of(job)

    check_rows(plans)
    for epoch in range(3):
        numbers = [ref.item.index for ref in refs_in(plans) if ref.item.epoch == epoch]
        assert set(range(len(ITEMS))) <= set(numbers)
    assert max(Counter(ref for ref in refs_in(plans)).values()) == 1


def test_steps_are_balanced_by_what_samples_count(tmp_path: Path) -> None:
    """In every epoch: a sample gives its place to one that counts as much of what is balanced."""
    path = tmp_path / "sizes.index"
    more = {"lanes": 2, "epochs": 3, "batches_per_step": 2}
    batcher = BestFitDecreasingPackingBatcher(ROW, window=9)  # without limits
    made(make_job(batcher, **more), path)
    job = make_job(batcher, plan=Plan(str(path), window=99, balance="patches + tokens"), **more)

    costs = []
    for epoch in range(3):
        found = [plan for plan in plans_of(job) if plan.rows[0][0].item.epoch == epoch]
        found.sort(key=lambda plan: (plan.offset, plan.lane))
        refs = [[ref for row in plan.rows for ref in row] for plan in found]
        costs.append([sum(ref.size + ref.counts[1] for ref in each) for each in refs])

    assert len({tuple(sorted(each)) for each in costs}) == 1
    steps = [{tuple(sorted(each[n : n + 2])) for n in range(0, len(each), 2)} for each in costs]
    alike = sorted(costs[0])
    by_cost = {tuple(alike[n : n + 2]) for n in range(len(alike) % 2, len(alike), 2)}
    for each in steps:
        assert len(each & by_cost) >= len(by_cost) - 1, "all but those beside the border of epochs"


@pytest.mark.parametrize("later_within", [0, 6])
@pytest.mark.parametrize("batcher", ["best_fit", "knapsack", "best_fit_decreasing"])
def test_an_index_whose_counts_lie_puts_no_row_above_a_limit(
    batcher: str, later_within: int, tmp_path: Path
) -> None:
    """What it counts too low comes later or is counted, and each sample comes once at most."""
    more = {"items": ITEMS, "told": TOLD, "epochs": 2}
    job = planned_job(batcher, tmp_path, later_within=later_within, **more)

    seen, left_out = Counter[Any](), 0
    for lane in range(job.lanes):
        line = Line(job, lane)
        while True:
            try:
                plan = line.advance()
            except PastEnd:
                break
            batch = line.make(plan)
            left_out += dict(batch.accounting).get("quarantined:size", 0)
            head = frame.read_header(batch.write(memoryview(bytearray(batch.nbytes))))
            rows: dict[int, list[int]] = {}
            for sample in head.samples:
                rows.setdefault(sample.row, []).append(sample.index)
            for row in rows.values():
                assert sum(ITEMS[number][1] for number in row) <= LIMITS["images"]
                assert sum(ITEMS[number][2] for number in row) <= LIMITS["patches"]
            seen.update((sample.index, sample.epoch) for sample in head.samples)

    assert set(seen.values()) == {1}
    assert len(seen) + left_out == 2 * len(ITEMS)
    assert left_out or later_within


def test_an_edited_index_is_refused(tmp_path: Path) -> None:
    """Whatever byte of its counts is another one."""
    planned_job("knapsack", tmp_path)
    path = tmp_path / "sizes.index"
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(PenstockError):
            plans_of(planned_job("knapsack", tmp_path, epochs=1))


@pytest.mark.parametrize("counts", [(0, 0), (2, 7)])
def test_steps_are_balanced_where_all_cost_the_same(
    counts: tuple[int, int], tmp_path: Path
) -> None:
    """Nothing, or the same: each sample comes once, and every lane restores."""
    items = [(3 + (7 * n) % 23, *counts) for n in range(25)]
    more: Any = {"items": items, "batches_per_step": 2, "epochs": 2}
    batcher = BestFitDecreasingPackingBatcher(ROW, window=9)
    made(make_job(batcher, **more), tmp_path / "sizes.index")
    plan = Plan(str(tmp_path / "sizes.index"), window=12, balance="patches")

    def job() -> Job:
        return make_job(batcher, plan=plan, **more)

    found = Counter((ref.item.index, ref.item.epoch) for ref in refs_in(plans_of(job())))
    assert set(found.values()) == {1}
    assert len(found) == 2 * len(items)
    check_job(job, batches=6)


def test_a_balance_by_what_nobody_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"'seconds' is not known.*images, .*patches"):
        make_job("best_fit", plan=Plan(str(tmp_path / "x"), balance="seconds + tokens"))


@pytest.mark.parametrize("batcher", ["knapsack", "best_fit_decreasing"])
def test_planned_lanes_restore_exactly(batcher: str, tmp_path: Path) -> None:
    check_job(lambda: planned_job(batcher, tmp_path), batches=15)


def test_an_index_has_what_samples_count(tmp_path: Path) -> None:
    """In a file of version 2; of a job without measures it is one of version 1."""
    planned_job("best_fit", tmp_path)
    data = (tmp_path / "sizes.index").read_bytes()

    index = SizeIndex.open(str(tmp_path / "sizes.index"))

    index.check()
    assert data[14:16] == b"\x02\0"
    assert index.measures == ("images", "patches")
    every = (*ITEMS, *MORE)
    assert index.sources["main"].counted == {
        "images": sum(images for _, images, _ in every),
        "patches": sum(patches for _, _, patches in every),
    }
    found = index.sources["main"].read(3, 9)
    assert found.measured is not None
    assert found.measured.tolist() == [[i, p] for _, i, p in every[3:9]]


def test_a_batcher_without_sizes_still_has_counts_in_a_plan(tmp_path: Path) -> None:
    plans = plans_of(planned_job(SimpleBatcher(4), tmp_path, epochs=1))

    every = (*ITEMS, *MORE)
    assert all(ref.counts == every[ref.item.index][1:] for ref in refs_in(plans))


@pytest.mark.parametrize("choice", ["batch", "lane"])
def test_each_set_of_a_joint_job_counts_its_own(choice: str) -> None:
    """Pictures beside text: at every offset it goes on exactly, and text has no counts."""

    def make() -> JointJob:
        pictures = [{"number": n, "real": real, "told": real} for n, real in enumerate(ITEMS)]
        texts = [{"input_ids": [n] * (1 + n % 9)} for n in range(20)]
        packed = PackedCollator(pad_to=ROW)
        sets = {
            "pictures": RoleSet(
                ItemsSource(pictures), None, Pictures(), BATCHERS["best_fit"].clone(), packed
            ),
            "text": RoleSet(
                ItemsSource(texts), None, None, BestFitPackingBatcher(ROW, rows=2), packed
            ),
        }
        return JointJob(sets, choice=choice, lanes=2, seed=3, batches_per_step=2)

    job = make()
    counts: dict[str, set[int]] = {}
    for lane in range(2):
        check_job(make, lane=lane, batches=12)
        line = Line(job, lane)
        for _ in range(12):
            plan = line.advance()
            assert BatchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
            name = job.role_sets[plan.role_set].name
            counts.setdefault(name, set()).update(len(ref.counts) for ref in refs_in([plan]))

    assert counts == {"pictures": {2}, "text": {0}}


def test_a_processor_with_measures_keeps_the_contract() -> None:
    for processor in (Pictures(), Untold()):
        check_processor(processor, [{"number": 1, "real": (5, 1, 2), "told": (5, 1, 2)}])


# --- what is refused ------------------------------------------------------------------------------


def test_a_limit_of_no_measure_is_refused_at_load(tmp_path: Path) -> None:
    """With file and key, and what samples count instead."""
    (tmp_path / "jobs.yaml").write_text(
        "jobs:\n  job:\n    source: {type: items, items: [{input_ids: [1]}]}\n    lanes: 1\n"
        "    batcher: {type: best_fit, max_tokens: 8, limits: {images: 2}}\n    collator: packed\n"
    )

    with pytest.raises(InvalidJob, match=r"jobs\.yaml:5: .*nothing beside their size"):
        load(str(tmp_path / "jobs.yaml")).job("job")

    with pytest.raises(InvalidJob, match=r"limits has 'seconds', .* images, patches: name one"):
        make_job(NextFitPackingBatcher(9, limits={"seconds": 2}))


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ((1,), "its measures are images, patches, so give 2 counts"),
        ((1, -1), "patches is -1: give a number from 0"),
        ((1, 2.5), "patches is 2.5: give a whole number"),
    ],
)
def test_counts_that_are_none_name_the_processor_and_the_item(
    gives: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lying, "gives", gives)

    with pytest.raises(BadBatch) as caught:
        Line(make_job("best_fit", Lying()), 0).advance()

    assert said in str(caught.value)


class Short(Pictures):
    """Tells a size alone."""

    def size(self, raw: Any) -> Any:
        """Return a number."""
        return 5


def test_a_size_without_counts_makes_a_bad_item() -> None:
    with pytest.raises(BadItem, match=r"Short\.size\(\) gave 5 .* give 2 counts, as SampleSizes"):
        Line(make_job("best_fit", Short(), on_item_error="stop"), 0).advance()


@pytest.mark.parametrize("processor", [Pictures, Untold])
def test_a_simulated_plan_is_what_is_read(processor: type[Pictures], tmp_path: Path) -> None:
    """Also of limits: rows and batches are those that a reader is given."""
    job = make_job("best_fit", processor(), epochs=1)
    index = made(job, tmp_path / "sizes.index").index

    lookup = IndexLookup(index, job.role_sets[0], job.seed, job.name)
    found, plans = simulate(job, {0: lookup}), plans_of(job)

    assert found.tally.batches == len(plans)
    assert found.tally.rows == sum(len(plan.rows) for plan in plans)
    assert totals(found) == read(plans)
    closed = found.counts["batcher:closed_by_images"], found.counts["batcher:closed_by_patches"]
    assert any(closed), "the proof must see rows that a limit closed"


@pytest.mark.parametrize("batcher", PLANNED)
def test_a_plan_reports_what_batches_count(batcher: str, tmp_path: Path) -> None:
    """Over two epochs; also as it comes out of another process."""
    job = planned_job(batcher, tmp_path, epochs=2)

    found = figures_of_planned(job)

    assert totals(found) == read(plans_of(job))
    log = planned_log(job.role_sets[0])
    keys = [(group, n) for group, s in enumerate(log.streams) for n in range(s.windows)]
    one = add_up(job.role_sets[0], keys, 1)
    again = WindowFigures.decode(one.encode())
    assert {n: c.total for n, c in again.tally.measured.items()} == {
        n: c.total for n, c in one.tally.measured.items()
    }


def totals(found: Figures) -> dict[str, tuple[int, int]]:
    """Return by measure all of it, and of how many batches that is."""
    return {name: (each.total, each.count) for name, each in found.tally.measured.items()}


def read(plans: Sequence[BatchPlan]) -> dict[str, tuple[int, int]]:
    counts = [ref.counts for ref in refs_in(plans)]
    return {
        name: (sum(each[place] for each in counts), len(plans))
        for place, name in enumerate(Pictures.measures)
    }
