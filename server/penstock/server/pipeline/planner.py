"""The sequential half of a line, as others call it: what each batch of a lane is made of.

Its state is refs with sizes and spans, and a few counters: never data. So it restarts at any offset
from a snapshot; a replay reads items only where sizes are needed, and processes them only where no
`size()` gives these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.joint_planner import JointPlanner
from penstock.server.pipeline.planned_planner import PlannedPlanner
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles.samples import Sample


class Planner(Protocol):
    """Plans the batches of one lane, one after another: a pure function of (log, lane).

    Used by one thread. After an error its state may be half changed: it is thrown away, and another
    one starts from a snapshot.

    Glossary:
        planner: Draws, sizes and batches: decides what is in a batch, by reference.
    """

    @property
    def offset(self) -> int:
        """Return the offset of the next plan."""
        ...

    @property
    def end(self) -> int | None:
        """Return how many batches the lane holds; None = that is not known yet."""
        ...

    @property
    def samples(self) -> Mapping[tuple[ItemRef, int], Sample]:
        """Return the samples that are in memory, by (item, part): a maker need not process them."""
        ...

    @property
    def last_verdict(self) -> int:
        """Return the highest number of a verdict that removed a draw of this lane; 0 = none."""
        ...

    def next(self) -> BatchPlan | None:
        """Return the plan of the batch at `offset` and step over it; None when the lane is over.

        Raises:
            BadItem: An item failed and the job's policy is to stop.
            SourceUnavailable: A read failed to the deadline.
            LaneStarved: As many draws as several epochs have gave no sample.
            LogDiverged: The lane ends elsewhere than where it was counted to end.
        """
        ...

    def coming(self, plan: BatchPlan) -> list[ItemRef]:
        """Return what the batch after this plan is likely to be made of, if that is of use."""
        ...

    def forget(self) -> None:
        """Release every sample that nothing pending needs: of past batches, and left out ones."""
        ...

    def can_seek(self) -> bool:
        """Tell whether any offset is reached by arithmetic."""
        ...

    def seek(self, offset: int) -> None:
        """Go to `offset` by arithmetic; only where `can_seek`."""
        ...

    def snapshot(self) -> bytes:
        """Return the canonical bytes from which a line restarts at `offset`."""
        ...

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot.

        Raises:
            BadSnapshot: It is damaged or belongs elsewhere.
        """
        ...

    @property
    def drawn(self) -> int:
        """Return how many items were drawn: the difference between two batches counts."""
        ...

    def counts(self) -> dict[str, int]:
        """Return all that was counted since the lane's beginning, each name with its kind.

        `drawn`; `filtered:REASON` and `quarantined:STAGE`, of items; `dropped:REASON`, of samples
        that the batcher has left out; `batcher:NAME`, what else it counts; `items:PART` and
        `tokens:PART`, what each part of a mixture has given.
        """
        ...

    def counts_before(self) -> dict[str, int]:
        """Return what `counts` gave where it began, or was last sent by `seek` or `restore`."""
        ...

    def count_mark(self) -> tuple[int, ...]:
        """Return what changes whenever `counts` does, draws aside; cheap enough for every batch."""
        ...


def open_planner(job: Job, lane: int, items: Items) -> Planner:
    """Return the planner of a lane, at its beginning.

    Args:
        job: The job.
        lane: The lane.
        items: Fetches and processes, where sizes or filters need it.
    """
    parts = job.lane_roles(lane)
    if len(parts) > 1:
        return JointPlanner(job, lane, items)
    if parts[0].roles.planned is not None:
        return PlannedPlanner(job, lane, items, parts[0])
    return SamplePlanner(job, lane, items)


def seekable_lanes(job: Job) -> Sequence[bool]:
    """Tell, for each lane of a job, whether arithmetic leads to any of its offsets.

    Its lines need no snapshots then. It is found out once for each job.
    """
    if job not in _SEEKABLE:
        sets: dict[int, bool] = {}
        lanes = []
        for lane in range(job.lanes):
            parts = job.lane_roles(lane)
            for part in parts:
                if part.roles.number not in sets:
                    sets[part.roles.number] = (
                        part.roles.planned is not None
                        or SamplePlanner(job, lane, Items(job), part).can_seek()
                    )
            lanes.append(all(sets[part.roles.number] for part in parts))
        _SEEKABLE[job] = lanes
    return _SEEKABLE[job]


_SEEKABLE: WeakKeyDictionary[Job, Sequence[bool]] = WeakKeyDictionary()
