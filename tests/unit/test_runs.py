"""Draws that are taken together give what draws one by one give: plans, snapshots, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.pipeline.batching import Batching
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    Blocks,
    DataDistributor,
    MapDistributor,
    MixtureDistributor,
    Sample,
    SampleBatcher,
)
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.distributors.mixture import MixtureDraws
from penstock.server.roles.draws import NumberedDraws
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadItem, LaneStarved, PenstockError, SourceUnavailable
from resume.plans import BATCHERS

RUNNING = sorted(name for name in BATCHERS if name not in ("simple", "pool", "sequential_count"))
"""Batchers that look at sizes and at nothing else."""


class Told(ItemsSource):
    """Documents whose lengths are told without reading them; some have none."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, lengths: Sequence[int], blocks: Sequence[int] | None = None) -> None:
        super().__init__([{"input_ids": [n] * max(0, size)} for n, size in enumerate(lengths)])
        self.lengths, self._blocks = lengths, blocks
        self.failures = 0

    def parameters(self) -> dict[str, Any]:
        """Return what decides the draws."""
        return {"lengths": list(self.lengths)}

    def sizes(self, indices: Sequence[int]) -> list[int]:
        """Return lengths; below 0 where nothing is known of an item."""
        if self.failures:
            self.failures -= 1
            raise SourceUnavailable("the index is away")
        return [self.lengths[index] for index in indices]

    def blocks(self) -> Blocks | None:
        """Return blocks of these lengths, if it has any."""
        return None if self._blocks is None else Blocks(self._blocks)


class Stop(NamedTuple):
    """All that can be seen of a planner after a batch."""

    plan: BatchPlan | None
    snapshot: bytes
    counts: dict[str, int]
    mark: tuple[int, ...]
    end: int | None
    verdicts: list[tuple[Any, ...]]


@contextmanager
def one_by_one() -> Iterator[None]:
    """Have every draw come alone."""
    with pytest.MonkeyPatch.context() as patch:
        for draws in (NumberedDraws, MixtureDraws):
            patch.setattr(draws, "run", lambda self, count: [])
        yield


@contextmanager
def watched() -> Iterator[list[int]]:
    """Yield how many draws are taken each time that some are taken together."""
    add_run, seen = Batching.add_run, list[int]()

    def watching(self: Batching, *given: Any) -> tuple[int, list[Rows]]:
        taken, batches = add_run(self, *given)
        seen.append(taken)
        return taken, batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batching, "add_run", watching)
        yield seen


def stop(planner: SamplePlanner, plan: BatchPlan | None) -> Stop:
    """Return what can be seen of a planner that has given this plan."""
    return Stop(
        plan,
        planner.snapshot(),
        planner.counts(),
        planner.count_mark(),
        planner.end,
        [tuple(verdict) for verdict in planner.items.verdicts],
    )


def walk(
    planner: SamplePlanner, batches: int, meanwhile: Callable[[SamplePlanner], None] | None = None
) -> list[Stop]:
    """Plan so many batches, or all there are; return what is seen after each.

    Args:
        planner: It goes on from where it is.
        batches: How many.
        meanwhile: Called before each.
    """
    seen: list[Stop] = []
    for _ in range(batches):
        if meanwhile is not None:
            meanwhile(planner)
        plan = planner.next()
        seen.append(stop(planner, plan))
        if plan is None:
            break
    return seen


LENGTHS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 75)), min_size=4, max_size=60)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Return a job whose batches are planned from told lengths alone."""
    sources: dict[str, Told] = {}
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        lengths = draw(LENGTHS)
        first = draw(st.integers(1, len(lengths) - 1))
        blocks = draw(st.sampled_from([None, (first, len(lengths) - first)]))
        sources[name] = Told(lengths, blocks)
    distributor: DataDistributor = MapDistributor(
        sample_ratio=draw(st.sampled_from([None, 0.5, 1.5]))
    )
    if draw(st.booleans()):
        distributor = MixtureDistributor(
            {name: draw(st.integers(1, 3)) for name in sources},
            weights_by=draw(st.sampled_from(["items", "tokens"])),
        )
    return Job(
        sources,
        distributor,
        batcher=BATCHERS[draw(st.sampled_from(RUNNING))].clone(),
        collator=PackedCollator(),
        seed=draw(st.integers(0, 99)),
        lanes=draw(st.sampled_from([1, 3])),
        epochs=draw(st.sampled_from([None, 1, 2])),
        on_item_error="quarantine",
    )


@settings(deadline=None, max_examples=150)
@given(job=jobs(), data=st.data())
def test_draws_together_are_draws_one_by_one(job: Job, data: st.DataObject) -> None:
    """Plans, accounting and canonical snapshots are the same, also from any snapshot on."""
    lane = data.draw(st.integers(0, job.lanes - 1))
    with one_by_one():
        try:
            expected = walk(SamplePlanner(job, lane, Items(job)), 30)
        except LaneStarved:
            return  # every document is empty

    found = walk(SamplePlanner(job, lane, Items(job)), 30)

    assert found == expected
    at = data.draw(st.integers(0, len(expected) - 1))
    restored = SamplePlanner(job, lane, Items(job))
    restored.restore(expected[at].snapshot)
    rest = [each.plan for each in expected[at + 1 :]]
    assert [each.plan for each in walk(restored, len(rest))] == rest


@pytest.mark.parametrize("batcher", RUNNING)
def test_most_draws_are_taken_together(batcher: str) -> None:
    """Where nothing is unusual they are: what the other tests compare is not one way twice."""
    lengths = [3 + n * 7 % 26 for n in range(97)]
    job = Job(Told(lengths), batcher=BATCHERS[batcher].clone(), collator=PackedCollator(), lanes=2)
    planner = SamplePlanner(job, 1, Items(job))

    with watched() as together:
        walk(planner, 40)

    # What `max_packs` leaves out is counted with the draw that it is left out by.
    assert sum(together) == (0 if batcher == "knapsack_max_packs" else planner.drawn)


@pytest.mark.parametrize(
    ("distributor", "together"),
    [
        (MixtureDistributor({"a": 1, "b": 3}), True),
        (MixtureDistributor({"a": 1, "b": 3}, weights_by="tokens"), False),
        (
            MixtureDistributor(
                {"a": 1, "rest": {"weight": 2, "distributor": MixtureDistributor({"b": 1})}}
            ),
            True,
        ),
    ],
    ids=["items", "tokens", "nested"],
)
def test_a_mixture_by_items_is_drawn_from_together(
    distributor: MixtureDistributor, together: bool
) -> None:
    """By tokens each draw depends on the size of the one before it."""
    sources = {
        "a": Told([5 + n % 9 for n in range(40)]),
        "b": Told([9 + n % 22 for n in range(70)]),
    }
    job = Job(
        sources,
        distributor,
        batcher=BestFitPackingBatcher(32),
        collator=PackedCollator(),
        lanes=2,
    )
    with one_by_one():
        expected = walk(SamplePlanner(job, 1, Items(job)), 30)
    planner = SamplePlanner(job, 1, Items(job))

    with watched() as taken:
        found = walk(planner, 30)

    assert found == expected
    assert sum(taken) == (planner.drawn if together else 0)


@settings(deadline=None, max_examples=60)
@given(
    lengths=LENGTHS.map(lambda sizes: [-1 if size % 13 == 5 else size for size in sizes]),
    seed=st.integers(0, 99),
)
def test_an_item_without_a_size_is_judged_at_its_draw(lengths: list[int], seed: int) -> None:
    """Its verdict has the same offset, and what follows is planned around it."""
    batcher = BestFitPackingBatcher(32, pool_size=6, rows=2)
    job = Job(
        Told([*lengths, -1, 5]),
        batcher=batcher,
        collator=PackedCollator(),
        lanes=1,
        epochs=3,
        seed=seed,
        on_item_error="quarantine",
        max_quarantined=100,
    )
    with one_by_one():
        expected = walk(SamplePlanner(job, 0, Items(job)), 100)

    found = walk(SamplePlanner(job, 0, Items(job)), 100)

    assert found == expected
    assert found[-1].verdicts


def test_a_job_that_stops_names_the_item_without_a_size() -> None:
    lengths = [9] * 30
    lengths[17] = -1
    job = Job(Told(lengths), batcher=BestFitPackingBatcher(32), collator=PackedCollator(), lanes=1)

    with pytest.raises(BadItem, match=r"main\[17\]"):
        walk(SamplePlanner(job, 0, Items(job)), 30)


@pytest.mark.parametrize("batches", [0, 1, 2, 5])
def test_a_verdict_that_is_learned_between_batches_removes_the_draw(batches: int) -> None:
    """Whatever was known of the item before: its size may have been asked for already."""
    job = Job(
        Told([5 + n % 9 for n in range(50)]),
        batcher=BestFitPackingBatcher(32, pool_size=6),
        collator=PackedCollator(),
        lanes=1,
        on_item_error="quarantine",
    )
    planned = walk(SamplePlanner(job, 0, Items(job)), 12)[9].plan
    assert planned is not None
    verdict = Verdict("draw", planned.rows[0][0].item, "d", "said elsewhere", False, 0, 0)

    def learn(planner: SamplePlanner) -> None:
        if planner.offset == batches:
            planner.items.verdicts.learn([verdict._replace(number=1)])

    with one_by_one():
        expected = walk(SamplePlanner(job, 0, Items(job)), 12, learn)

    found = walk(SamplePlanner(job, 0, Items(job)), 12, learn)

    assert found == expected
    assert found[-1].counts["quarantined:draw"] == 1


@pytest.mark.parametrize("offset", range(6))
def test_a_careful_worker_draws_one_by_one_and_goes_on(offset: int) -> None:
    """So that the item that ends a worker is named; afterwards draws come together again."""
    job = Job(
        Told([5 + n % 40 for n in range(50)]),
        batcher=BestFitPackingBatcher(32, pool_size=6),
        collator=PackedCollator(),
        lanes=1,
    )

    def care(planner: SamplePlanner) -> None:
        planner.items.careful = planner.offset == offset

    with one_by_one():
        expected = walk(SamplePlanner(job, 0, Items(job)), 12)

    assert walk(SamplePlanner(job, 0, Items(job)), 12, care) == expected


def test_a_source_that_was_away_changes_nothing() -> None:
    """Nothing is drawn in a call that fails: the next one gives the batch."""
    source = Told([5 + n % 40 for n in range(700)])
    job = Job(source, batcher=BestFitPackingBatcher(32), collator=PackedCollator(), lanes=1)
    expected = walk(SamplePlanner(job, 0, Items(job)), 400)
    planner = SamplePlanner(job, 0, Items(job, retry_deadline_s=0))
    found: list[Stop] = []

    for number in range(len(expected)):
        if number % 50 == 0:  # it is asked once for 256 draws
            source.failures = 1
        try:
            plan = planner.next()
        except SourceUnavailable:
            plan = planner.next()
        found.append(stop(planner, plan))

    assert found == expected
    assert source.failures == 0


class Mine(BestFitPackingBatcher):
    """A user's packer, which does something more with each sample."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, max_tokens: int) -> None:
        super().__init__(max_tokens)
        self.longest = 0

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample, and note it."""
        self.longest = max(self.longest, ref.size)
        return super().add(ref, sample)


class Both(Mine):
    """One that says which samples it keeps."""

    def facts(self) -> BatcherFacts:
        """Return what the base promises: it holds."""
        return super().facts()


class Odd(MapDistributor):
    """A user's distributor, which draws every item twice in a row."""

    version: ClassVar[int | str | None] = 1

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw."""
        return super().draw(lane, lanes, k // 2)


class Failing(NumberedDraws):
    """A user's draws that come together, one of which fails once."""

    fails_at: ClassVar[int | None] = None
    error: ClassVar[Exception] = SourceUnavailable("away")

    def next(self) -> ItemRef | None:
        """Fail where it is told to."""
        if self.k == Failing.fails_at:
            Failing.fails_at = None
            raise self.error
        return super().next()

    def run(self, count: int) -> list[ItemRef]:
        """Return what comes."""
        return self.peek(count)

    def step(self, items: Sequence[ItemRef], sizes: Sequence[int]) -> None:
        """Take draws one after another."""
        for item, size in zip(items, sizes, strict=True):
            self.next()
            self.took(item, size)


class OfAUser(MapDistributor):
    """Draws by these."""

    version: ClassVar[int | str | None] = 1

    def open(self, lane: int, lanes: int) -> Failing:
        """Return them."""
        return Failing(self, lane, lanes)


@pytest.mark.parametrize("fails_at", range(0, 60, 7))
def test_a_draw_that_fails_takes_nothing(fails_at: int) -> None:
    """Whatever the batcher was given with it: the plans are those of draws that do not fail."""
    lengths = [5 + n % 40 for n in range(700)]

    def stops(at: int | None) -> list[tuple[BatchPlan | None, int, bytes]]:
        job = Job(
            Told(lengths),
            OfAUser(),
            None,
            BestFitPackingBatcher(max_tokens=32),
            PackedCollator(),
            lanes=1,
        )
        Failing.fails_at = at
        planner = SamplePlanner(job, 0, Items(job))
        found = [(planner.next(), planner.drawn, planner.snapshot()) for _ in range(50)]
        assert Failing.fails_at is None
        return found

    assert stops(fails_at) == stops(None)


def test_a_draw_that_fails_names_the_distributor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where draws are taken together."""
    monkeypatch.setattr(Failing, "error", ValueError("of a user"))
    monkeypatch.setattr(Failing, "fails_at", 9)
    job = Job(
        Told([5] * 90),
        OfAUser(),
        None,
        BestFitPackingBatcher(max_tokens=32),
        PackedCollator(),
        lanes=1,
    )
    planner = SamplePlanner(job, 0, Items(job))

    with pytest.raises(PenstockError, match=r"OfAUser.* fails on a draw, in lane 0.*of a user"):
        list(iter(planner.next, None))


@pytest.mark.parametrize(
    ("batcher", "distributor", "together"),
    [
        (Mine(32), None, False),
        (Both(32), None, True),
        (BestFitPackingBatcher(32), Odd(), False),
    ],
    ids=["batcher", "batcher-with-facts", "distributor"],
)
def test_roles_of_users_get_draws_one_by_one(
    batcher: SampleBatcher, distributor: MapDistributor | None, together: bool
) -> None:
    """Only a class that says which samples it keeps is given several at a time."""
    source = Told([1 + n % 31 for n in range(50)])
    job = Job(source, distributor, batcher=batcher, collator=PackedCollator(), lanes=1)
    with one_by_one():
        expected = walk(SamplePlanner(job, 0, Items(job)), 20)

    with watched() as seen:
        found = walk(SamplePlanner(job, 0, Items(job)), 20)

    assert found == expected
    assert bool(seen) is together
    if isinstance(batcher, Mine):
        assert b'"longest":31' in found[-1].snapshot
