"""Plans a lane of which several sets of roles make the batches: a line of each, and a choice.

An inner line goes on when its set is chosen, and knows nothing of the others: its batches are those
of a job of this set alone, whatever the ratios are. How far each has come follows from the offset
by arithmetic, so a snapshot holds the states of the inner lines and nothing else.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.job import Job, LaneRoles
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.end_check import miscounted
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planned_planner import PlannedPlanner
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles.samples import Sample


class JointPlanner:
    """The planner of a lane with several sets of roles; see `Planner` for what it promises.

    Args:
        job: The job.
        lane: The lane.
        items: Fetches and processes for all sets.

    Attributes:
        inner: The planner of each set.
    """

    def __init__(self, job: Job, lane: int, items: Items) -> None:
        self.job, self.lane = job, lane
        self.inner = [_inner(job, lane, items, part) for part in job.lane_roles(lane)]
        self.offset = 0
        self._is_over = False
        self.samples: Mapping[tuple[ItemRef, int], Sample] = ChainMap(
            *(
                dict(planner.samples)
                if isinstance(planner, PlannedPlanner)
                else planner.batching.samples
                for planner in self.inner
            )
        )

    @property
    def end(self) -> int | None:
        """Return how many batches the lane holds; None until its end is found.

        It is over where the set that is chosen is: what the others hold then is in no batch.
        """
        return self.offset if self._is_over else None

    @property
    def last_verdict(self) -> int:
        """Return the highest number of a verdict that removed a draw of this lane; 0 = none."""
        return max(planner.last_verdict for planner in self.inner)

    @property
    def drawn(self) -> int:
        """Return how many items were drawn since the lane's beginning."""
        return sum(planner.drawn for planner in self.inner)

    def next(self) -> BatchPlan | None:
        """Return the plan of the batch at `offset` and step over it; None when the lane is over.

        Raises:
            BadItem, SourceUnavailable, LaneStarved, LogDiverged: As `Planner.next`.
        """
        if self._is_over:
            return None
        chosen = self.inner[self.job.choice(self.lane, self.offset)]
        chosen.before = self.offset - chosen.offset
        plan = chosen.next()
        counted = self.job.lane_end(self.lane)
        if counted is not None and (plan is None) != (self.offset == counted):
            now = str(self.offset) if plan is None else "more"
            raise miscounted(self.job, self.lane, counted, now)
        if plan is None:
            self._is_over = True
        else:
            self.offset += 1
        return plan

    def coming(self, plan: BatchPlan) -> list[ItemRef]:
        """Return what the next batch is likely to be made of, by the set that makes it."""
        return self.inner[self.job.choice(self.lane, self.offset)].coming(plan)

    def forget(self) -> None:
        """Forget every sample that nothing pending needs."""
        for planner in self.inner:
            planner.forget()

    def counts(self) -> dict[str, int]:
        """Return what all sets have counted, added up."""
        return _added_up(planner.counts() for planner in self.inner)

    def counts_before(self) -> dict[str, int]:
        """Return what they had counted where they began."""
        return _added_up(planner.counts_before() for planner in self.inner)

    def count_mark(self) -> tuple[int, ...]:
        """Return what changes whenever `counts` does, draws aside."""
        return tuple(number for planner in self.inner for number in planner.count_mark())

    # --- going elsewhere ---

    def can_seek(self) -> bool:
        """Tell whether arithmetic leads every set to any offset."""
        return all(planner.can_seek() for planner in self.inner)

    def seek(self, offset: int) -> None:
        """Go to `offset` by arithmetic; only where `can_seek`."""
        uses = self.job.uses(self.lane, offset)
        for planner, batches in zip(self.inner, uses, strict=True):
            planner.seek(batches)
        self.offset, self._is_over = offset, False

    def snapshot(self) -> bytes:
        """Return the canonical bytes from which a line restarts at `offset`."""
        state = {"sets": [planner.state() for planner in self.inner]}
        return snapshot.encode(self.job.log_id, self.lane, self.offset, state)

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot.

        Raises:
            BadSnapshot: It is damaged or belongs elsewhere.
        """
        snapshot.restore(data, self.job.log_id, self.lane, self._take)

    def _take(self, offset: int, state: dict[str, Any]) -> None:
        uses = self.job.uses(self.lane, offset)
        for planner, batches, inner in zip(self.inner, uses, state["sets"], strict=True):
            planner.take_state(batches, inner)
        self.offset, self._is_over = offset, False


def _added_up(every: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for counts in every:
        found.update(counts)
    return dict(found)


def _inner(job: Job, lane: int, items: Items, part: LaneRoles) -> SamplePlanner | PlannedPlanner:
    """Return the planner of one of the sets of a lane."""
    if part.roles.planned is not None:
        return PlannedPlanner(job, lane, items, part)
    return SamplePlanner(job, lane, items, part)
