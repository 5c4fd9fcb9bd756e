"""The plan of a job, as the job is given it: its parameters, and how it is opened."""

from __future__ import annotations

from penstock.server.job.role_set import RoleSet
from penstock.server.planning.log.plan_parameters import PlanParameters
from penstock.server.planning.log.planned_log import PlannedLog


class Plan(PlanParameters):  # noqa: D101 - what it says is what its parameters mean
    def open(
        self, roles: RoleSet, seed: int, batches_per_step: int | None, may_fail: int
    ) -> PlannedLog:
        """Return what the batches of some roles are made of; see `JobPlan.open`."""
        return PlannedLog(roles, self, seed, batches_per_step, may_fail)
