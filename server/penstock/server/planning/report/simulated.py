"""What the planners of a job make of it, without an item: run with its sizes alone.

A job that is not planned has no other truth than its planners: which samples meet in a batch
depends on all that its lane drew before. So they are run, as a node runs them, over one epoch or
over all of a finite job; only its items are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.job.job import Job, LaneRoles
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.batching import Batching
from penstock.server.pipeline.joint_planner import JointPlanner
from penstock.server.pipeline.planned_planner import PlannedPlanner
from penstock.server.pipeline.planner import Planner, open_planner
from penstock.server.pipeline.retry import Calls
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.planning.report.counted_batches import Collected
from penstock.server.planning.report.epoch_draws import DrawsOfEpochs, EpochDrawn, PlannedOfEpochs
from penstock.server.planning.report.figures import Figures
from penstock.server.planning.report.known_sizes import (
    INDEX,
    NONE,
    SIZE,
    SOURCE,
    IndexedOutcomes,
    KnownSizes,
    SizedItems,
    SizedSample,
    known_sizes,
)
from penstock.server.roles.distributors import WITH_EPOCHS
from penstock.server.roles.samples import Sample, SampleSizes
from penstock.wire.errors import InvalidJob

TELL_EVERY = 256
"""Batches between two calls of `say`."""


def simulate(
    job: Job,
    indexes: Mapping[int, IndexedOutcomes] | None = None,
    epochs: int | None = None,
    say: Callable[[str], None] = lambda doing: None,
) -> Figures:
    """Run the planners of all lanes of a job that is not planned.

    Args:
        job: The job.
        indexes: The sizes of items, where nothing else tells them: by the number of the set of
            roles that they are of.
        epochs: How many to draw; None = all of a finite job, 1 of an endless one.
        say: KnownSizes now and then what is being done.

    Raises:
        InvalidJob: Sizes are not known before items are decoded; says what to do.
        BadItem, BadBatch, LaneStarved, SourceUnavailable: As a node stops with them.
    """
    indexes = indexes or {}
    known = [known_sizes(roles, job.name, indexes.get(roles.number)) for roles in job.role_sets]
    is_all = job.epochs is not None and (epochs is None or epochs >= job.epochs)
    drawn = (job.epochs or 1) if epochs is None else epochs
    if is_all:
        drawn = job.epochs or 1
    items = SizedItems(job, known, indexes)
    collected = Collected(job, known)
    planners = {
        lane: _opened(job, lane, items, known, None if is_all else drawn)
        for lane in range(job.lanes)
    }
    live, whole, made = list(planners), None, 0
    while live:
        going = []
        for lane in live:
            plan = _next(planners[lane])
            if plan is None:
                if whole is None:
                    whole = made
                continue
            collected.add(plan)
            going.append(lane)
            made += 1
            if made % TELL_EVERY == 0:
                say(f"{made:,} batches planned of {_drawn(planners.values()):,} items")
        live = going
    columns = collected.finish()
    counts: Counter[str] = Counter()
    for planner in planners.values():
        counts.update({name: int(count) for name, count in planner.counts().items()})
    tally, positions = collected.tally, made if is_all else whole or 0
    costs = {"samples": columns.samples}
    if tally.tokens:
        costs = {"tokens": columns.tokens, "squares": columns.squares}
    by = {each.by for each in known}
    held = sum(map(_held, planners.values()))
    return Figures(
        next((each for each in (INDEX, SIZE, SOURCE) if each in by), NONE),
        tally,
        {name: column[:positions] for name, column in costs.items()},
        positions,
        is_all,
        drawn,
        counts,
        held,
        {name: (found[0], found[1]) for name, found in collected.sources.items()},
        notes=tuple(_notes(job, indexes.values(), is_all, drawn, held, by, made - positions)),
    )


def _held(planner: Planner) -> int:
    """Return how many samples the batchers of a lane hold."""
    return sum(
        len(inner.batching.batcher.pending) + sum(len(row) for rows in inner.ready for row in rows)
        for inner in _inner(planner)
        if isinstance(inner, SamplePlanner)
    )


def _notes(
    job: Job,
    indexes: Iterable[IndexedOutcomes],
    is_all: bool,
    epochs: int,
    held: int,
    by: Container[str],
    beyond: int,
) -> Iterator[str]:
    """Yield what the figures are not."""
    if not is_all:
        these = "this epoch" if epochs == 1 else f"these {epochs:,} epochs"
        held_too = f", and the {held:,} samples that batchers hold come in the next" if held else ""
        yield (
            f"the log goes on after {these}: batches that its draws did not finish are not "
            f"counted{held_too}"
        )
        if beyond:
            yield (
                "lanes end an epoch after different numbers of batches: steps and costs leave out "
                f"the last {beyond:,}, between which there are gaps"
            )
        if any(not isinstance(roles.distributor, WITH_EPOCHS) for roles in job.role_sets):
            yield "an epoch is taken to be as many draws as there are items"
    if SIZE in by:
        yield (
            "sizes are those that the processor's size() tells: samples that turn out smaller "
            "leave more padding"
        )
    if epochs > 1 and any(index.drew for index in indexes):
        yield (
            "processing draws random numbers, and the index has the sizes of the first epoch: "
            "those of later ones may differ"
        )


class _SizedBatching(Batching):
    """A batcher that gets samples of which only the sizes are known."""

    def __init__(self, job: Job, lane: int, roles: RoleSet, calls: Calls) -> None:
        super().__init__(job, lane, roles, calls)
        self.tells_sizes = True

    def _sizes_of(self, item: ItemRef, sample: Sample, offset: int) -> int | SampleSizes:
        assert isinstance(sample, SizedSample)
        return sample.sizes

    def add(
        self, refs: Sequence[SampleRef], samples: Sequence[Sample | None], offset: int
    ) -> tuple[list[Rows], bool]:
        """Give the samples of an item to the batcher; none of them is kept."""
        return super().add(refs, [None] * len(refs), offset)


def _opened(
    job: Job, lane: int, items: SizedItems, known: Sequence[KnownSizes], epochs: int | None
) -> Planner:
    """Return a lane's planner, which gets no samples, and stops after so many epochs, if any."""
    planner = open_planner(job, lane, items)
    inners = _inner(planner)
    for number, part in enumerate(job.lane_roles(lane)):
        inner = inners[number]
        if isinstance(inner, PlannedPlanner):
            if epochs is not None and isinstance(planner, JointPlanner):
                planner.inner[number] = PlannedOfEpochs(job, lane, items, part, epochs)
            continue
        assert isinstance(inner, SamplePlanner)
        roles = part.roles
        if not roles.plans_from_refs:
            inner.batching = _SizedBatching(job, lane, roles, items)
        if epochs is not None:
            inner.draw_from(DrawsOfEpochs(inner.draws, _most_draws(job, part, epochs)))
    return planner


def _most_draws(job: Job, part: LaneRoles, epochs: int) -> int:
    """Return how many draws a lane has of the first epochs.

    Raises:
        InvalidJob: The distributor does not say how many make an epoch.
    """
    roles = part.roles
    per_epoch = roles.distributor.epoch_draws(1)
    if per_epoch is None:
        raise InvalidJob(
            f"the distributor {roles.distributor.code_of()} of job {job.name!r} does not say how "
            "many draws make an epoch (`epoch_draws`): give the job epochs",
            key="distributor",
        )
    return max(0, -(-(epochs * per_epoch - part.lane) // roles.lanes))


def _inner(planner: Planner) -> Sequence[Planner]:
    return planner.inner if isinstance(planner, JointPlanner) else [planner]


def _next(planner: Planner) -> BatchPlan | None:
    try:
        return planner.next()
    except EpochDrawn:
        return None


def _drawn(planners: Iterable[Planner]) -> int:
    return sum(planner.drawn for planner in planners)
