"""The plan of a job, as the job is given it: its parameters, and how it is opened."""

from __future__ import annotations

from penstock.server.planned.log import PlannedLog
from penstock.server.planned.parameters import PlanParameters
from penstock.server.role_set import RoleSet


class Plan(PlanParameters):  # noqa: D101 - what it says is what its parameters mean
    def open(
        self, roles: RoleSet, seed: int, batches_per_step: int | None, may_fail: int
    ) -> PlannedLog:
        """Return what the batches of some roles are made of; see `JobPlan.open`."""
        return PlannedLog(roles, self, seed, batches_per_step, may_fail)


__all__ = ["Plan"]
