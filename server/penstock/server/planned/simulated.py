"""What the planners of a job make of it, without an item: run with its sizes alone.

A job that is not planned has no other truth than its planners: which samples meet in a batch
depends on all that its lane drew before. So they are run, as a node runs them, over one epoch or
over all of a finite job; only its items are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.job import Job
from penstock.server.pipeline.batching import Batching
from penstock.server.pipeline.joint_planner import JointPlanner
from penstock.server.pipeline.planner import Planner, open_planner
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.planned.collected import Collected
from penstock.server.planned.epoch_draws import DrawsOfEpochs, EpochDrawn
from penstock.server.planned.report import BatchColumns, Tally
from penstock.server.planned.told import IndexedOutcomes, Told, ToldItems, ToldSample, told_by
from penstock.server.roles.base import Sample
from penstock.wire.errors import InvalidJob

TELL_EVERY = 256
"""Batches between two calls of `say`."""


@dataclass
class Simulated:
    """What the planners of all lanes made.

    Attributes:
        told: How sizes are known, for each set of roles.
        tally: Of all batches.
        columns: Of each batch, by (offset, lane).
        whole: How many of these are a beginning of the log without a gap: below it a batch's place
            is its position.
        is_all: It is all of a finite job.
        epochs: How many epochs were drawn.
        counts: As `Planner.counts`, over all lanes.
        held: Samples that batchers hold at the end: they come in batches of the next epoch.
        sources: By source, samples and tokens in batches.
    """

    told: Sequence[Told]
    tally: Tally
    columns: BatchColumns
    whole: int
    is_all: bool
    epochs: int
    counts: Mapping[str, int]
    held: int
    sources: Mapping[str, tuple[int, int]]


def simulate(
    job: Job,
    index: IndexedOutcomes | None = None,
    epochs: int | None = None,
    say: Callable[[str], None] = lambda doing: None,
) -> Simulated:
    """Run the planners of all lanes of a job that is not planned.

    Args:
        job: The job.
        index: The sizes of its items, where nothing else tells them.
        epochs: How many to draw; None = all of a finite job, 1 of an endless one.
        say: Told now and then what is being done.

    Raises:
        InvalidJob: Sizes are not known before items are decoded; says what to do.
        BadItem, BadBatch, LaneStarved, SourceUnavailable: As a node stops with them.
    """
    told = [told_by(roles, job.name, index) for roles in job.role_sets]
    is_all = job.epochs is not None and (epochs is None or epochs >= job.epochs)
    drawn = (job.epochs or 1) if epochs is None else epochs
    if is_all:
        drawn = job.epochs or 1
    items = ToldItems(job, dict(enumerate(told)), index)
    collected = Collected(job, told)
    planners = {
        lane: _opened(job, lane, items, told, None if is_all else drawn)
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
    held = sum(
        len(inner.batching.batcher.pending) + sum(len(row) for rows in inner.ready for row in rows)
        for planner in planners.values()
        for inner in _inner(planner)
    )
    return Simulated(
        told,
        collected.tally,
        columns,
        made if is_all else whole or 0,
        is_all,
        drawn,
        counts,
        held,
        {name: (found[0], found[1]) for name, found in collected.sources.items()},
    )


class _ToldBatching(Batching):
    """A batcher that gets samples of which only the sizes are known."""

    def size_of(self, item: ItemRef, sample: Sample, offset: int) -> int:
        """Return the size that the index tells, even where the batcher does not look at it."""
        assert isinstance(sample, ToldSample)
        return sample.size

    def add(
        self, refs: Sequence[SampleRef], samples: Sequence[Sample | None], offset: int
    ) -> tuple[list[Rows], bool]:
        """Give the samples of an item to the batcher; none of them is kept."""
        return super().add(refs, [None] * len(refs), offset)


def _opened(
    job: Job, lane: int, items: ToldItems, told: Sequence[Told], epochs: int | None
) -> Planner:
    """Return a lane's planner, which gets no samples, and stops after so many epochs, if any."""
    planner = open_planner(job, lane, items)
    for inner, part in zip(_inner(planner), job.lane_roles(lane), strict=True):
        roles = part.roles
        if not roles.plans_from_refs:
            inner.batching = _ToldBatching(job, lane, roles, items)
        if epochs is not None:
            per_epoch = roles.distributor.epoch_draws(1)
            if per_epoch is None:
                raise InvalidJob(
                    f"the distributor {roles.distributor.code_of()} of job {job.name!r} does not "
                    "say how many draws make an epoch (`epoch_draws`): give the job epochs",
                    key="distributor",
                )
            most = max(0, -(-(epochs * per_epoch - part.lane) // roles.lanes))
            inner.draws = DrawsOfEpochs(inner.draws, most)
    return planner


def _inner(planner: Planner) -> Sequence[SamplePlanner]:
    if isinstance(planner, JointPlanner):
        return planner.inner
    assert isinstance(planner, SamplePlanner)
    return [planner]


def _next(planner: Planner) -> BatchPlan | None:
    try:
        return planner.next()
    except EpochDrawn:
        return None


def _drawn(planners: Iterable[Planner]) -> int:
    return sum(planner.drawn for planner in planners)


__all__ = ["Simulated", "simulate"]
