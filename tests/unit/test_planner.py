"""The planner: what each batch is made of, and what happens to what cannot be in one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from invariants import Ledger, check_conservation
from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline.draws_ahead import AHEAD_BYTES, LOOK_AHEAD
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.lane_counts import MAX_REASON_CHARACTERS, MAX_REASONS
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    BestFitPackingBatcher,
    MapDistributor,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SimpleBatcher,
)
from penstock.server.roles.collators import DefaultBatchCollator
from penstock.server.sources import ItemsSource
from penstock.wire.errors import (
    BadBatch,
    BadItem,
    InvalidJob,
    LaneStarved,
    PastEnd,
    SourceUnavailable,
)
from resume.plans import BATCHERS, PROCESSORS, make_job

Call = Callable[[Any, ProcessContext], Any]


class Does(RawItemProcessor):
    """Calls the function that a test gave."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, call: Call, one_to_one: bool = False) -> None:
        self.call, self.one_to_one = call, one_to_one  # type: ignore[misc]

    def parameters(self) -> dict[str, Any]:
        """Return nothing: a test's function needs no identity."""
        return {}

    def process(self, raw: Any, context: ProcessContext) -> Any:
        """Return what the function returns."""
        return self.call(raw, context)


class Sizes(Does):
    """Knows the size of an item: the item itself."""

    def size(self, raw: Any) -> Any:
        """Return what stands there; text stands for an error."""
        if isinstance(raw, str):
            raise ValueError(raw)
        return raw


def tokens(raw: int, context: ProcessContext) -> Sample:
    return {"input_ids": [1] * raw}


def make(
    items: list[Any], processor: RawItemProcessor, batcher: SampleBatcher, **options: Any
) -> Job:
    return Job(
        ItemsSource(items),
        MapDistributor(shuffle="none"),
        processor,
        batcher,
        PackedCollator() if isinstance(batcher, BestFitPackingBatcher) else DefaultBatchCollator(),
        **{"lanes": 1, **options},
    )


def plans(planner: SamplePlanner, count: int) -> list[list[int]]:
    """Return the items of the next batches, by index."""
    found = []
    for _ in range(count):
        plan = planner.next()
        assert plan is not None
        found.append([ref.item.index for row in plan.rows for ref in row])
    return found


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("batcher", BATCHERS)
def test_everything_drawn_is_accounted_for(batcher: str, processor: str) -> None:
    """Delivered, filtered, quarantined, dropped or held, at every offset, to the item."""
    for lanes in (1, 3):
        check_conservation(make_job(batcher, "full", processor, lanes), lanes - 1, 30)


@pytest.mark.parametrize("batcher", BATCHERS)
def test_a_lane_that_ends_leaves_nothing_behind(batcher: str) -> None:
    """What is held becomes batches or is counted: at the end each item has a place or a reason.

    The end of a lane that restarts anywhere is the same.
    """
    for processor in ("sized", "choosy"):
        job = make_job(batcher, "full", processor, 3, epochs=2)
        ledger = Ledger(job, 1)
        snapshots = [ledger.line.planner.snapshot()]
        with contextlib.suppress(PastEnd):
            while True:
                ledger.advance()
                ledger.check()
                snapshots.append(ledger.line.planner.snapshot())
        ledger.check()
        planner = ledger.line.planner

        assert list(planner.batching.batcher.pending) == []
        assert planner.drawn == planner.roles.draws(1)
        for taken in snapshots[:: max(1, len(snapshots) // 4)]:
            again = Line(job, 1, ledger.line.items, taken).planner
            while again.next() is not None:
                pass
            assert (again.offset, again.counts()) == (planner.offset, planner.counts())


def test_a_bad_item_ahead_stops_the_lane_only_when_it_is_drawn() -> None:
    """Batches before it are planned; then it is named, as often as it is asked for."""

    def call(raw: int, context: ProcessContext) -> Sample:
        if raw == 9:
            raise ValueError("nine")
        return {"x": raw}

    job = make(list(range(12)), Does(call), SimpleBatcher(2))
    planner = SamplePlanner(job, 0, Items(job))

    assert LOOK_AHEAD > 9
    assert plans(planner, 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for _ in range(3):
        with pytest.raises(BadItem, match=r"main\[9\]"):
            planner.next()


def test_a_size_that_cannot_be_known_is_about_that_item() -> None:
    """`size` may raise, or give nonsense: under `stop` named when drawn, else left out."""
    items = [5, 5, "damaged header", 5, -1, 5, 5]
    processor = Sizes(tokens, one_to_one=True)
    batcher = BestFitPackingBatcher(10, pool_size=2)
    stop = make(items, processor, batcher)
    assert stop.role_sets[0].plans_from_refs
    planner = SamplePlanner(stop, 0, Items(stop))
    assert plans(planner, 1) == [[0, 1]]
    with pytest.raises(BadItem, match=r"main\[2\].*damaged header"):
        planner.next()

    leave_out = make(items, processor, batcher, on_item_error="quarantine")
    book = VerdictBook()
    planner = SamplePlanner(leave_out, 0, Items(leave_out, book))
    first = plans(planner, 4)

    assert {2, 4} & {index for batch in first for index in batch} == set()
    assert planner.counters["quarantined:draw"] >= 2
    assert book.find("draw", ItemRef("main", 2, 0)) is not None
    again = SamplePlanner(leave_out, 0, Items(leave_out, book))
    assert plans(again, 4) == first
    assert again.snapshot() == planner.snapshot()


class Overlong(BestFitPackingBatcher):
    """A user's batcher that refuses what is too long."""

    version: ClassVar[int | str | None] = 1


def test_an_item_is_taken_whole_or_not_at_all() -> None:
    """Where the batcher refuses one part, a replay that knows the verdict plans the same."""

    def parts(raw: list[int], context: ProcessContext) -> list[Sample]:
        return [{"input_ids": [1] * size} for size in raw]

    items = [[3, 4], [2, 20, 1], [5], [1, 1, 1], [20]]
    batcher = Overlong(10, pool_size=3, overlong="error")
    job = make(items, Does(parts), batcher, on_item_error="quarantine")
    book = VerdictBook()
    first = SamplePlanner(job, 0, Items(job, book))
    truth = [(first.next(), first.snapshot()) for _ in range(12)]

    replay = SamplePlanner(job, 0, Items(job, book))
    assert [(replay.next(), replay.snapshot()) for _ in range(12)] == truth

    delivered = {ref.item.index for plan, _ in truth if plan for row in plan.rows for ref in row}
    assert delivered == {0, 2, 3}
    stopping = make(items, Does(parts), batcher)
    planner = SamplePlanner(stopping, 0, Items(stopping))
    with pytest.raises(BadItem, match="20 tokens do not fit"):
        plans(planner, 12)


def test_the_budget_of_verdicts_stops_whoever_needs_one_more() -> None:
    """More bad items than `max_quarantined` are no accident any more."""

    def call(raw: int, context: ProcessContext) -> Sample:
        if raw % 2:
            raise ValueError("odd")
        return {"x": raw}

    options = {"on_item_error": "quarantine", "max_quarantined": 3}
    job = make(list(range(20)), Does(call), SimpleBatcher(1), **options)
    planner = SamplePlanner(job, 0, Items(job))

    assert plans(planner, 4) == [[0], [2], [4], [6]]
    with pytest.raises(BadItem, match="max_quarantined = 3 items of the job") as caught:
        planner.next()
    # No store has them, so `penstock quarantine` would list nothing.
    assert "the first are main[1] in epoch 0 (ValueError: odd), main[3]" in caught.value.message


def test_reasons_made_of_each_item_anew_stay_few() -> None:
    """Every item is counted, under a bounded number of names, and a restart counts on alike."""

    def call(raw: int, context: ProcessContext) -> Sample | None:
        if raw % 2:
            return {"x": raw}
        context.skip(f"{raw} of them, " + "far too many " * 50)
        return None

    job = make(list(range(1000)), Does(call), SimpleBatcher(1))
    planner = SamplePlanner(job, 0, Items(job))
    plans(planner, 100)
    again = SamplePlanner(job, 0, Items(job))
    again.restore(planner.snapshot())
    plans(planner, 300)
    plans(again, 300)

    filtered = {name: n for name, n in planner.counters.items() if name.startswith("filtered:")}
    assert sum(filtered.values()) == 400
    assert len(filtered) <= MAX_REASONS + 1
    assert max(map(len, filtered)) <= len("filtered:") + MAX_REASON_CHARACTERS
    assert again.counters == planner.counters


@pytest.mark.parametrize("lanes", [1, 4])
def test_an_epoch_without_a_sample_is_a_starved_lane(lanes: int) -> None:
    """Whatever the reason, it is counted and told; one sample in an epoch is enough to go on."""

    def call(raw: int, context: ProcessContext) -> Sample | None:
        context.skip("even" if raw % 2 == 0 else "odd")
        return None

    job = make(list(range(20)), Does(call), SimpleBatcher(1), lanes=lanes)
    with pytest.raises(LaneStarved, match="without one sample") as caught:
        SamplePlanner(job, 0, Items(job)).next()
    assert set(caught.value.fields["reasons"]) >= {"drawn", "filtered:even"}

    rare = make(
        list(range(20)),
        Does(lambda raw, context: {"x": raw} if raw == 11 else None),
        SimpleBatcher(2),
    )
    assert plans(SamplePlanner(rare, 0, Items(rare)), 3) == [[11, 11]] * 3


class Forgetful(SampleBatcher):
    """A user's batcher that loses every second sample without a word."""

    needs_sizes: ClassVar[bool] = False
    version: ClassVar[int | str | None] = 1

    def __init__(self) -> None:
        self.seen = 0

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Return the sample, if it is its turn."""
        self.seen += 1
        return [[[ref]]] if self.seen % 2 else []


class Failing(SampleBatcher):
    """A user's batcher with a bug."""

    version: ClassVar[int | str | None] = 1

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Fail."""
        raise ZeroDivisionError("tokens per image")


class Unsaveable(Forgetful):
    """A user's batcher that holds what no snapshot can."""

    version: ClassVar[int | str | None] = 1

    def __init__(self) -> None:
        super().__init__()
        self.kinds = {"text"}


def test_no_sample_stays_that_nothing_needs() -> None:
    """What a batcher silently loses is let go of: memory does not grow with the run."""
    job = make(list(range(9)), Does(lambda raw, context: {"x": raw}), Forgetful())
    line = Line(job, 0)

    for _ in range(100):
        line.make(line.advance())

    assert line.planner.samples == {}


def test_a_batchers_own_bug_names_the_class_and_the_line() -> None:
    """It is the operator's code, not ours, and not the item's fault."""
    job = make([3], Does(tokens), Failing(), on_item_error="quarantine")
    with pytest.raises(BadBatch, match=r"Failing fails on sample 0 of item main\[0\]") as caught:
        SamplePlanner(job, 0, Items(job)).next()
    assert "ZeroDivisionError: tokens per image" in caught.value.message
    assert "tokens per image" in caught.value.fields["traceback"]

    no_size = make([3], Does(lambda raw, context: {"text": "a"}), Failing())
    with pytest.raises(BadBatch, match=r"finds no size .* the sample has text"):
        SamplePlanner(no_size, 0, Items(no_size)).next()


class Fails(MapDistributor):
    """A distributor of a user's, with a table that is too short, or away."""

    version: ClassVar[int | str | None] = 1
    error: ClassVar[Exception] = IndexError("table")

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Draw twice, and then fail."""
        if k >= 2:
            raise self.error
        return super().draw(lane, lanes, k)


class FailsAtTheEnd(SimpleBatcher):
    """A batcher of a user's that cannot finish."""

    version: ClassVar[int | str | None] = 1

    def flush(self) -> list[Rows]:
        """Fail."""
        raise KeyError("rest")


def test_every_role_that_fails_is_named_with_its_line() -> None:
    """It is no bug of the node: a distributor's draw, a batcher's last groups."""
    same = Does(lambda raw, context: raw)  # is processed ahead of the draw that fails
    rows = ItemsSource([{"x": n} for n in range(9)])
    drawing = Job(rows, Fails(), same, batch_size=1, lanes=1)
    planner = SamplePlanner(drawing, 0, Items(drawing))
    assert [planner.next() is not None for _ in range(2)] == [True, True]
    with pytest.raises(BadBatch, match=r"Fails fails on a draw, in lane 0, of job .* IndexError"):
        planner.next()
    flushing = Job(
        ItemsSource([{"x": 1}]),
        batcher=FailsAtTheEnd(2),
        collator=DefaultBatchCollator(),
        lanes=1,
        epochs=1,
    )
    with pytest.raises(BadBatch, match=r"FailsAtTheEnd fails on flush\(\), .*'rest'") as caught:
        SamplePlanner(flushing, 0, Items(flushing)).next()

    assert 'raise KeyError("rest")' in caught.value.fields["traceback"]


def test_a_distributor_whose_file_is_away_may_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader tries again; nothing is drawn twice or left out."""
    job = Job(ItemsSource([{"x": n} for n in range(9)]), Fails(), batch_size=1, lanes=1)
    monkeypatch.setattr(Fails, "error", FileNotFoundError(2, "gone", "table.npy"))
    planner = SamplePlanner(job, 0, Items(job))
    first = [planner.next() for _ in range(2)]
    with pytest.raises(SourceUnavailable, match=r"table\.npy"):
        planner.next()

    monkeypatch.setattr(Fails, "draw", MapDistributor.draw)

    whole = SamplePlanner(job, 0, Items(job))
    assert [*first, planner.next()] == [whole.next() for _ in range(3)]


def test_a_state_that_no_snapshot_holds_is_named() -> None:
    """The attribute and what to do."""
    job = make([3], Does(tokens), Unsaveable())
    with pytest.raises(InvalidJob, match=r"Unsaveable\.kinds is of type set"):
        SamplePlanner(job, 0, Items(job)).snapshot()


def test_plans_travel_as_json() -> None:
    """With spans, parts and epochs."""
    job = make_job("best_fit_split", "full", "choosy", 2)
    planner = SamplePlanner(job, 1, Items(job))
    for _ in range(20):
        plan = planner.next()
        assert plan is not None
        assert BatchPlan.from_json(plan.to_json()) == plan


# --- how much is processed at once ---------------------------------------------------------------


class Batches(Does):
    """Notes how many items it is given at once."""

    uses_global_rng: ClassVar[bool] = False

    def __init__(self, call: Call, given: list[int]) -> None:
        super().__init__(call)
        self.given = given

    def process_batch(self, raws: Any, contexts: Any) -> Any:
        """Process some items."""
        self.given.append(len(raws))
        return super().process_batch(raws, contexts)


class ReadTogether(ItemsSource):
    """Notes how many items are read at once."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items)
        self.read: list[int] = []

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Read some items."""
        self.read.append(len(indices))
        return super().fetch(indices)


def of_sizes(size: int, given: list[int]) -> Job:
    return Job(
        ItemsSource([size] * 5000),
        processor=Batches(tokens, given),
        batcher=BestFitPackingBatcher(100),
        collator=PackedCollator(),
        lanes=1,
    )


def test_the_first_batch_waits_for_little_that_it_does_not_need() -> None:
    """Of items half as long as a row: the pool's first four, and no more than half beyond."""
    items = Items(of_sizes(50, []))
    planner = SamplePlanner(items.job, 0, items)

    planner.next()

    assert planner.drawn == 4
    assert items.processed <= 6


class Held(Items):
    """Takes its items to cost so many seconds each."""

    def __init__(self, job: Job, process_s: float) -> None:
        super().__init__(job)
        self._process_s = process_s

    @property
    def process_s(self) -> float:  # type: ignore[override]
        """Return the time that was given."""
        return self._process_s

    @process_s.setter
    def process_s(self, value: float) -> None:
        pass


@pytest.mark.parametrize(("process_s", "most"), [(0.005, 1), (0.0005, 4), (0.00001, 16)])
def test_what_gains_nothing_from_company_is_not_processed_long_before_it_is_needed(
    process_s: float, most: int
) -> None:
    """Costly items one by one, cheap ones as many as make a call's own cost nothing."""
    job = Job(
        ItemsSource([2] * 5000), processor=Does(tokens), batcher=BestFitPackingBatcher(100), lanes=1
    )
    items = Held(job, process_s)
    planner = SamplePlanner(job, 0, items)
    ahead: list[int] = []

    for _ in range(20):
        planner.next()
        ahead.append(items.processed - planner.drawn)

    assert max(ahead) < most
    assert max(ahead) >= most // 2


def test_before_the_first_batch_items_are_read_together_and_processed_one_by_one() -> None:
    """What gains nothing from company: no item too many is processed, and none read twice."""
    source = ReadTogether([2] * 500)
    job = Job(source, processor=Does(tokens), batcher=BestFitPackingBatcher(100), lanes=1)
    items = Items(job)
    planner = SamplePlanner(job, 0, items)

    planner.next()

    assert planner.drawn == items.processed == 50
    assert max(source.read) == LOOK_AHEAD
    assert 50 <= sum(source.read) < 50 + LOOK_AHEAD
    planner.next()
    assert sum(source.read) < planner.drawn + 2 * LOOK_AHEAD
    assert items.processed > planner.drawn, "from the first batch on they go together"


@pytest.mark.parametrize(("size", "most"), [(AHEAD_BYTES // 4 - 1024, 4), (64, LOOK_AHEAD)])
def test_what_a_lane_holds_ahead_is_bounded_in_bytes(size: int, most: int) -> None:
    """Samples of a quarter of the bound go four at a time, where small ones go sixteen."""
    sample = {"x": np.zeros(size, np.uint8)}
    job = make(list(range(60)), Does(lambda raw, context: sample), SimpleBatcher(19))
    planner = SamplePlanner(job, 0, Items(job))
    held: list[int] = []

    for _ in range(12):
        planner.next()
        planner.forget()
        held.append(len(planner.ahead))

    assert max(held) < most, "the item that is drawn is not among them"
    assert max(held) >= most // 2


def test_a_lane_that_goes_on_processes_as_many_at_once_as_its_batches_take() -> None:
    """Many small items go 16 at a time from the first batch on; large ones once many were made."""
    for size, batches in ((1, 4), (50, 16 * LOOK_AHEAD + 1)):
        given: list[int] = []
        items = Items(of_sizes(size, given))
        planner = SamplePlanner(items.job, 0, items)
        for _ in range(batches):
            planner.next()
            planner.forget()

        given.clear()
        before = planner.drawn
        while planner.drawn < before + 200:
            planner.next()

        assert max(given) == LOOK_AHEAD
        assert sum(given) / len(given) > LOOK_AHEAD / 2
