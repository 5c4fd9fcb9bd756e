"""The plans of a lane's latest batches, of which samples may come in the next ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.server.core.refs import BatchPlan

PlanAt = Callable[[int], BatchPlan | None]
"""An offset -> the plan there; None = there is none."""


class PlansBefore:
    """Gives each plan of a lane those before it that decide what else comes in its batch.

    Args:
        within: How many batches later a sample may come; 0 = none comes later, and plans stay as
            they are.
    """

    def __init__(self, within: int) -> None:
        self._plans: deque[BatchPlan] = deque(maxlen=within)
        self._within = within

    def complete(
        self, plan: BatchPlan, is_last: Callable[[], bool], plan_at: PlanAt | None = None
    ) -> BatchPlan:
        """Return the next plan with those before it.

        Args:
            plan: The plan.
            is_last: Tells whether it is known to be the last of its lane.
            plan_at: Finds plans by arithmetic, where that can be done.
        """
        if not self._within:
            return plan
        plans = self._plans
        if plan_at is not None and (not plans or plans[-1].offset != plan.offset - 1):
            offsets = range(max(0, plan.offset - self._within), plan.offset)
            found = [before for at in offsets if (before := plan_at(at)) is not None]
            plans.clear()
            plans.extend(before._replace(accounting=()) for before in found)
        complete = plan._replace(before=tuple(plans), is_last=is_last())
        plans.append(plan._replace(accounting=()))
        return complete

    def state(self) -> list[Any]:
        """Return the state, JSON-able."""
        return [plan.to_json() for plan in self._plans]

    def restore(self, state: list[Any]) -> None:
        """Take back what `state` gave."""
        self._plans.clear()
        self._plans.extend(map(BatchPlan.from_json, state))
