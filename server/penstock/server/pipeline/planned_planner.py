"""Plans a lane of a planned job: each batch by arithmetic, from an index of sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.job import Job, LaneRoles
from penstock.server.job.planned_batches import in_words
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.plans_before import PlansBefore
from penstock.server.roles.samples import Sample
from penstock.wire.errors import LaneStarved, PenstockError


class PlannedPlanner:
    """The planner of a lane whose set of roles has a plan; see `Planner` for what it promises.

    Nothing that it gives depends on what it gave before, so its state is the offset alone.

    Args:
        job: The job.
        lane: The lane.
        items: Tells whether it reads ahead.
        part: The set of roles that this plans for.

    Attributes:
        before: How many batches of the lane other sets have made before the next one of this.
    """

    samples: Mapping[tuple[ItemRef, int], Sample] = {}
    last_verdict = 0  # no verdict removes what is planned: it leaves its own batch alone

    def __init__(self, job: Job, lane: int, items: Items, part: LaneRoles) -> None:
        assert part.roles.planned is not None
        self.job, self.lane, self.items = job, lane, items
        self.offset = self.before = 0
        self._log, self._part = part.roles.planned, part
        self._from = 0  # the offset that it was last sent to
        self._before: Counter[str] | None = None  # what was counted up to there; None = not asked
        self._counted = Counter[str]()  # since then
        self._plans_before = PlansBefore(job.later_within)
        self._coming: BatchPlan | None = None  # the next plan, where somebody has asked for it
        self._borne = self._drawn = 0  # batches that bear counts, and items, since the last seek

    @property
    def end(self) -> int | None:
        """Return how many batches the lane holds; None = endless."""
        return self._log.known_end(self._part.lane)

    @property
    def drawn(self) -> int:
        """Return how many items were drawn since it was last sent elsewhere: whole windows."""
        return self._drawn

    def next(self) -> BatchPlan | None:
        """Return the plan of the batch at `offset` and step over it; None when the lane is over.

        Raises:
            LaneStarved: It is endless, and none of its items comes to a batch.
            SourceUnavailable: The index cannot be read.
            InvalidJob: The index is damaged.
        """
        end = self.end
        if end is not None and self.offset >= end:
            return None
        plan = self._coming or self._log.plan(self._part.lane, self.offset)
        if plan is None:
            raise self._starved()
        self._coming = None
        plan = plan._replace(lane=self.lane, offset=self.offset + self.before)
        if plan.accounting:
            borne = Counter(dict(plan.accounting))
            self._counted.update(borne)
            self._drawn += borne["drawn"]
            self._borne += 1
        self.offset += 1
        return self._plans_before.complete(plan, lambda: self.offset == end, self._plan_at)

    def _plan_at(self, offset: int) -> BatchPlan | None:
        found = self._log.plan(self._part.lane, offset)
        return found and found._replace(lane=self.lane, offset=offset + self.before)

    def coming(self, plan: BatchPlan) -> list[ItemRef]:
        """Return what the batch after this plan is made of, where it can be read meanwhile."""
        end = self.end
        if not self.items.reads_ahead or (end is not None and self.offset >= end):
            return []
        if self._coming is None:
            try:
                self._coming = self._log.plan(self._part.lane, self.offset)
            except PenstockError:
                return []  # it fails by name when it is asked for itself
        rows = () if self._coming is None else self._coming.rows
        items = dict.fromkeys(ref.item for row in rows for ref in row)
        return [item for item in items if item not in plan.again]  # those are kept

    def _starved(self) -> LaneStarved:
        counts = self._log.counts_of_epoch(self._part.lane)
        fewer = ", or give the distributor fewer reading_groups"
        return LaneStarved(
            f"lane {self.lane} of job {self.job.name!r} has no batch: none of the "
            f"{counts['drawn']} items that it draws from in an epoch comes to one "
            f"({in_words(counts)}); loosen the filter, or look at the data"
            f"{fewer if self._log.groups > 1 else ''}",
            lane=self.lane,
            offset=self.offset,
            drawn=counts["drawn"],
            reasons=dict(counts),
        )

    def forget(self) -> None:
        """Forget nothing: it holds no sample."""

    def counts(self) -> dict[str, int]:
        """Return what was counted since the lane's beginning: see `PlannedLog.counts`."""
        return dict(self._counts_before() + self._counted)

    def counts_before(self) -> dict[str, int]:
        """Return what was counted up to where it was last sent, added up when it is asked for."""
        return dict(self._counts_before())

    def count_mark(self) -> tuple[int, ...]:
        """Return what changes whenever `counts` does."""
        return (self._borne,)

    def _counts_before(self) -> Counter[str]:
        if self._before is None:
            self._before = self._log.counts(self._part.lane, self._from)
        return self._before

    # --- going elsewhere ---

    def can_seek(self) -> bool:
        """Return True: any offset is found by arithmetic."""
        return True

    def seek(self, offset: int) -> None:
        """Go to `offset`."""
        self.offset, self._drawn, self._coming = offset, 0, None
        self._from, self._before = offset, None
        self._counted.clear()

    def snapshot(self) -> bytes:
        """Return the canonical bytes from which a line restarts at `offset`."""
        return snapshot.encode(self.job.log_id, self.lane, self.offset, self.state())

    def state(self) -> dict[str, Any]:
        """Return what a snapshot holds beside the offset: nothing."""
        return {}

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot.

        Raises:
            BadSnapshot: It is damaged or belongs elsewhere.
        """
        snapshot.restore(data, self.job.log_id, self.lane, self.take_state)

    def take_state(self, offset: int, state: dict[str, Any]) -> None:
        """Go on at an offset from what `state` gave there.

        Raises:
            ValueError: It has another form.
        """
        if state:
            raise ValueError("it is of a job that is not planned")
        self.seek(offset)
