"""A document is processed once an epoch, however many planned batches hold pieces of it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.server.commands.memory import node_memory
from penstock.server.commands.plan import report
from penstock.server.forecast.window_figures import add_up
from penstock.server.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Maker
from penstock.server.planned.plan import Plan
from penstock.server.roles import (
    BestFitDecreasingPackingBatcher,
    ConcatPackingBatcher,
    KnapsackPackingBatcher,
    MapDistributor,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
)
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.sources import ItemsSource
from planned import with_plan
from truth import Truth

ROW = 64
BALANCE = "tokens + squares / 64"


class Spelled(RawItemProcessor):
    """Makes as many ids as are asked for, and counts calls and ids, by item."""

    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    calls: ClassVar[Counter[int]] = Counter()

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return a sample of `n` ids."""
        Spelled.calls[context.item.index] += 1
        return {"input_ids": [7 * raw["n"] + k for k in range(raw["n"])]}


def documents(count: int, seed: int = 3) -> list[dict[str, int]]:
    """Return documents of which those longer than a row hold two thirds of the tokens.

    As in the standard library of Python, where they are a sixth of the documents, and up to 25 rows
    long.
    """
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        rows = min(25.0, 1 + chance.paretovariate(1.2) / 2)
        is_long = chance.random() < 0.2
        found.append({"n": int(ROW * rows) if is_long else chance.randint(1, ROW - 1)})
    return found


def a_job(
    path: Path,
    batcher: SampleBatcher,
    data: list[dict[str, int]],
    plan: dict[str, Any],
    **options: Any,
) -> Job:
    given = {"lanes": 12, "batches_per_step": 12, "epochs": 1, "seed": 4, **options}
    drawn = given.pop("drawn", {})

    def make(plan: Plan | None) -> Job:
        drawer = MapDistributor(**drawn)
        own = batcher.clone()
        return Job(ItemsSource(data), drawer, Spelled(), own, PackedCollator(), plan=plan, **given)

    return with_plan(make, path, plan)


def read_by_lines(job: Job, epochs: int = 1) -> dict[tuple[int, int], bytes]:
    """Return the bodies of all batches, each lane by a line of its own memory; counts anew."""
    Spelled.calls.clear()
    [roles] = job.role_sets
    assert roles.planned is not None
    found = {}
    for lane in range(job.lanes):
        line = Line(job, lane)
        for offset in range(roles.planned.batches_of(lane, epochs)):
            found[lane, offset] = body_of(line)
    return found


def body_of(line: Line) -> bytes:
    made = line.make(line.advance())
    body = bytearray(made.nbytes)
    return bytes(body) + made.write(memoryview(body)) + bytes(body)


def tokens_processed(data: list[dict[str, int]]) -> int:
    return sum(calls * data[item]["n"] for item, calls in Spelled.calls.items())


CASES: dict[str, tuple[SampleBatcher, dict[str, Any], dict[str, Any], float]] = {
    # The most that a token may be processed, as measured of these corpora; without an order that
    # keeps pieces together the first takes 3.6 times.
    "decreasing": (BestFitDecreasingPackingBatcher(ROW), {}, {}, 1.0),
    "balanced": (BestFitDecreasingPackingBatcher(ROW), {"balance": BALANCE}, {}, 1.2),
    "balanced tokens": (BestFitDecreasingPackingBatcher(ROW), {"balance": "tokens"}, {}, 1.05),
    "two rows": (BestFitDecreasingPackingBatcher(ROW, rows=2), {}, {}, 1.02),
    "two rows, balanced": (
        BestFitDecreasingPackingBatcher(ROW, rows=2),
        {"balance": BALANCE},
        {},
        1.25,
    ),
    "larger steps": (
        BestFitDecreasingPackingBatcher(ROW),
        {"balance": BALANCE},
        {"batches_per_step": 48},
        1.25,
    ),
    "smaller steps": (
        BestFitDecreasingPackingBatcher(ROW),
        {"balance": BALANCE},
        {"batches_per_step": 4},
        1.25,
    ),
    "windows": (BestFitDecreasingPackingBatcher(ROW), {"window": 400}, {}, 1.05),
    "one lane": (BestFitDecreasingPackingBatcher(ROW), {}, {"lanes": 1}, 1.0),
    "not shuffled": (
        BestFitDecreasingPackingBatcher(ROW),
        {},
        {"drawn": {"shuffle": "none"}},
        1.0,
    ),
    "ratio": (BestFitDecreasingPackingBatcher(ROW), {}, {"drawn": {"sample_ratio": 1.5}}, 1.0),
    "knapsack": (KnapsackPackingBatcher(ROW, packing_ratio=0.9), {}, {}, 1.0),
    "concat": (ConcatPackingBatcher(ROW), {}, {}, 1.1),
    "best fit": (BestFitPackingBatcher(ROW, pool_size=16), {}, {}, 1.05),
}


@pytest.mark.parametrize("case", CASES)
def test_processing_is_what_a_plan_says_and_little(case: str, tmp_path: Path) -> None:
    """Every call of `process` over an epoch, lane by lane, and side by side in one process."""
    batcher, plan, options, most = CASES[case]
    data = documents(900)
    job = a_job(tmp_path / "index", batcher, data, plan, **options)
    said = report(job, (12, "option"), [2], ()).processing
    assert said is not None

    by_lines = read_by_lines(job)
    processed = tokens_processed(data)
    Spelled.calls.clear()
    loader = Truth(job)
    for position in range(len(by_lines)):
        loader.batch(position)

    once = sum(data[item]["n"] * 1 for item in Spelled.calls)
    ratio = options.get("drawn", {}).get("sample_ratio", 1)
    if ratio == 1:
        assert once == sum(document["n"] for document in data)
        assert said.times == pytest.approx(processed / once, rel=1e-12)
    assert tokens_processed(data) == processed
    assert 1.0 <= said.times <= most


def test_later_epochs_take_as_little(tmp_path: Path) -> None:
    """Each has another order."""
    data = documents(800)
    job = a_job(tmp_path / "index", BestFitDecreasingPackingBatcher(ROW), data, {}, epochs=3)

    read_by_lines(job, epochs=3)

    assert tokens_processed(data) <= 3 * 1.01 * sum(document["n"] for document in data)


@pytest.mark.parametrize("plan", [{}, {"balance": BALANCE}])
def test_bytes_are_those_of_batches_made_alone(plan: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is kept: by lines in order, anywhere, without any memory, and by other lines."""
    chance = random.Random(8)
    batcher = BestFitDecreasingPackingBatcher(ROW, rows=2)
    data = documents(200)
    job = a_job(tmp_path / "index", batcher, data, plan, lanes=3, epochs=2, batches_per_step=6)
    truth = read_by_lines(job, epochs=2)

    forgetful = Items(job)
    forgetful.kept_bytes = 0
    maker = Maker(job, Items(job))
    for lane in range(job.lanes):
        offsets = [offset for of, offset in truth if of == lane]
        one, other = Line(job, lane, forgetful), Line(job, lane)
        for offset in offsets:
            assert body_of(one) == truth[lane, offset]
        for offset in chance.sample(offsets, len(offsets)):
            other.skip_to(offset)
            plan_there = other.advance()
            body = bytearray((made := maker.make(plan_there)).nbytes)
            header = made.write(memoryview(body))
            assert truth[lane, offset] == bytes(len(body)) + header + bytes(body)
            other.skip_to(offset)
            assert body_of(other) == truth[lane, offset]


def test_a_batch_anywhere_processes_no_more_than_it_holds(tmp_path: Path) -> None:
    """Whoever goes on in the middle: what came before is not planned, and not processed."""
    data = documents(300)
    job = a_job(tmp_path / "index", BestFitDecreasingPackingBatcher(ROW), data, {}, epochs=2)
    chance = random.Random(2)

    for _ in range(60):
        lane = chance.randrange(job.lanes)
        line = Line(job, lane)
        line.skip_to(chance.randrange(job.known_end(lane) or 0))
        Spelled.calls.clear()
        plan = line.advance()
        line.make(plan)
        assert set(Spelled.calls) == {ref.item.index for row in plan.rows for ref in row}
        assert set(Spelled.calls.values()) == {1}


def test_what_lanes_keep_is_bounded(tmp_path: Path) -> None:
    """In bytes: above the bound the oldest is processed again, as in a batch made alone."""
    data = documents(800)
    job = a_job(tmp_path / "index", BestFitDecreasingPackingBatcher(ROW), data, {})
    items = Items(job)
    items.kept_bytes = 20_000
    Spelled.calls.clear()
    loader_lines = [Line(job, lane, items) for lane in range(job.lanes)]
    most = 0
    for offset in range(min(job.known_end(lane) or 0 for lane in range(job.lanes))):
        for line in loader_lines:
            assert line.offset == offset
            line.make(line.advance())
            most = max(most, items.keeper().nbytes)

    assert 10_000 < most <= 20_000
    assert tokens_processed(data) > 1.1 * sum(document["n"] for document in data)


def test_nothing_is_kept_that_no_later_batch_needs(tmp_path: Path) -> None:
    """At its end a lane keeps nothing, and on the way no more than a plan says."""
    data = documents(600)
    plan = {"balance": BALANCE}
    job = a_job(tmp_path / "index", BestFitDecreasingPackingBatcher(ROW), data, plan)
    [roles] = job.role_sets
    said = add_up(roles, [(0, 0)], 1).kept
    items = Items(job)
    lines = [Line(job, lane, items) for lane in range(job.lanes)]
    most = 0
    for offset in range(max(job.known_end(lane) or 0 for lane in range(job.lanes))):
        for line in lines:
            if offset < (line.end or 0):
                line.make(line.advance())
        most = max(most, items.keeper().nbytes)

    assert items.keeper().nbytes == 0
    per_token = most / said
    assert 8 <= per_token <= 200  # a list of Python's numbers, by what it is taken for


@pytest.mark.parametrize("share", [1, 1_000_000])
def test_the_memory_of_a_node_has_what_lanes_keep(share: int, tmp_path: Path) -> None:
    """As many tokens as a plan says, by the memory of a token, up to the bound of all workers."""
    data = documents(600)
    job = a_job(tmp_path / "index", BestFitDecreasingPackingBatcher(ROW), data, {})
    said = report(job, (12, "option"), [2], ()).processing
    assert said is not None
    sample_bytes = share * 4 * sum(document["n"] for document in data) / len(data)

    found = node_memory(
        job,
        workers=8,
        ready_bytes=1 << 28,
        imported=(),
        sample_bytes=sample_bytes,
        batch_bytes=1000,
    )

    assert found.pieces == pytest.approx(min(share * 4 * said.kept / 2**20, 256))
    assert found.keeping_up > found.pieces


def test_what_splits_nothing_is_made_anywhere(tmp_path: Path) -> None:
    """And keeps nothing: pieces alone hold a lane at one worker."""
    for overlong, anywhere in (("split", False), ("truncate", True), ("drop", True)):
        batcher = BestFitDecreasingPackingBatcher(ROW, overlong=overlong)
        job = a_job(tmp_path / overlong, batcher, documents(50), {})
        assert job.makes_anywhere(0) is anywhere
        assert job.role_sets[0].keeps_pieces is not anywhere
        said = node_memory(
            job, workers=2, ready_bytes=1, imported=(), sample_bytes=1, batch_bytes=1
        )
        assert (said.pieces == 0) is anywhere


class Slow(ItemsSource):
    """Items that another thread may read; counts how often each is."""

    version: ClassVar[int | str | None] = 1
    may_read_ahead: ClassVar[bool] = True

    def __init__(self, items: list[dict[str, int]]) -> None:
        super().__init__(items)
        self.fetched: Counter[int] = Counter()

    def fetch(self, indices: Any) -> Any:
        """Return items, and note them."""
        self.fetched.update(indices)
        return super().fetch(indices)


def test_what_a_lane_keeps_is_not_read_ahead(tmp_path: Path) -> None:
    """Each item is read as often as it is processed, though another thread reads ahead."""
    data = documents(300)
    source = Slow(data)

    def make(plan: Plan | None) -> Job:
        batcher = BestFitDecreasingPackingBatcher(ROW)
        given: dict[str, Any] = {"plan": plan, "lanes": 4, "epochs": 1, "batches_per_step": 4}
        return Job(source, None, Spelled(), batcher, PackedCollator(), **given)

    job = with_plan(make, tmp_path / "index", {"balance": BALANCE})
    items = Items(job)
    source.fetched.clear()
    Spelled.calls.clear()
    for lane in range(4):
        line = Line(job, lane, items)
        for _ in range(job.known_end(lane) or 0):
            items.read_s = 1.0  # as if each call had taken so long
            line.make(line.advance())

    assert source.fetched == Spelled.calls
    assert Spelled.calls.total() > len(Spelled.calls), "some are processed again"


@pytest.mark.parametrize("plan", [{}, {"balance": BALANCE}])
def test_batches_that_share_a_sample_need_not_be_a_chain(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    """Three documents of two rows in batches of three: one of them is in both, and stays so."""
    data = [{"n": ROW * 2 - 5}] * 3
    batcher = BestFitDecreasingPackingBatcher(ROW, rows=3)
    job = a_job(tmp_path / "index", batcher, data, plan, lanes=2, batches_per_step=2)
    said = report(job, (2, "option"), [2], ()).processing
    assert said is not None

    read_by_lines(job)

    assert sorted(Spelled.calls.values()) == [1, 1, 2]
    assert said.times == pytest.approx(4 / 3)
