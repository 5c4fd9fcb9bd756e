"""The same job with another number of lanes: what its packing would be."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.report.figures import Figures
from penstock.server.planning.report.known_sizes import IndexedOutcomes
from penstock.server.planning.report.plan_report import LanesRow, Packing
from penstock.server.planning.report.simulated import simulate
from penstock.server.roles.role import Role
from penstock.wire.errors import PenstockError

BUDGET_S = 20.0
"""Where nobody names numbers of lanes: what the table may take beyond the plan itself. Each row
takes as long as that."""


def nearby(lanes: int) -> list[int]:
    """Return the numbers of lanes that are looked at where nobody names any."""
    return sorted({max(1, lanes // 4), max(1, lanes // 2), lanes, 2 * lanes, 4 * lanes})


def lanes_table(
    job: Job,
    found: Figures,
    took_s: float,
    asked: Sequence[int],
    indexes: Mapping[int, IndexedOutcomes] | None = None,
    say: Callable[[str], None] = lambda doing: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[LanesRow]:
    """Return what the job makes with other numbers of lanes: all of the same epochs.

    Args:
        job: The job.
        found: What its planners made.
        took_s: How long that took: another number of lanes takes as long.
        asked: Which numbers; without any those nearby, as far as `BUDGET_S` allows.
        indexes: As for `simulate`.
        say: KnownSizes now and then what is being done.
        clock: Seconds.
    """
    rows = []
    end = clock() + BUDGET_S
    numbers = sorted({*asked}) or nearby(job.lanes)
    # The nearest first: a table that is cut short says what changes next to the job as it is.
    for lanes in sorted(numbers, key=lambda number: abs(number - job.lanes)):
        if lanes == job.lanes:
            rows.append(_row(lanes, found))
        elif not asked and clock() + took_s > end:
            why = f"takes about {took_s:,.0f} s, ask with --lanes {lanes}"
            rows.append(LanesRow(lanes, why_not=why))
        else:
            rows.append(_planned(job, lanes, found.epochs, indexes, say))
    return sorted(rows, key=lambda row: row.lanes)


def _planned(
    job: Job,
    lanes: int,
    epochs: int,
    indexes: Mapping[int, IndexedOutcomes] | None,
    say: Callable[[str], None],
) -> LanesRow:
    def of_lanes(doing: str) -> None:
        say(f"{lanes} lanes: {doing}")

    try:
        return _row(lanes, simulate(with_lanes(job, lanes), indexes, epochs, of_lanes))
    except PenstockError as error:
        return LanesRow(lanes, why_not=error.message)


def _row(lanes: int, found: Figures) -> LanesRow:
    return LanesRow(lanes, found.tally.batches, Packing.of(found.tally))


def with_lanes(job: Job, lanes: int) -> Job:
    """Return a job of the same roles with another number of lanes: another log.

    It shares the sources with the first, whose files are opened already, and no other role.

    Raises:
        InvalidJob: A role does not go with so many lanes.
    """
    numbers: dict[str, Any] = {
        "seed": job.seed,
        "lanes": lanes,
        "epochs": job.epochs,
        "batches_per_step": job.batches_per_step,
        "on_item_error": job.on_item_error,
        "max_quarantined": job.max_quarantined,
        "name": job.name,
    }
    if isinstance(job, JointJob):
        sets = {
            roles.name: RoleSet(**_roles(roles), ratio=roles.ratio, exhausted=roles.exhausted)
            for roles in job.role_sets
        }
        return JointJob(sets, choice=job.chosen_by, **numbers)
    return Job(**_roles(job.role_sets[0]), **numbers)


def _roles(roles: RoleSet) -> dict[str, Any]:
    return {
        "source": dict(roles.sources),
        "distributor": fresh(roles.distributor),
        "processor": roles.processor,
        "batcher": fresh(roles.batcher),
        "collator": roles.collator,
        "plan": roles.plan,
    }


def fresh(value: Any) -> Any:
    """Return a role as it was before a job was built of it, and so the roles that it was given."""
    if isinstance(value, Role):
        unbound = copy.copy(value)
        unbound.arguments = {name: fresh(given) for name, given in value.arguments.items()}
        return unbound.clone()
    if isinstance(value, Mapping):
        return {name: fresh(given) for name, given in value.items()}
    return [fresh(given) for given in value] if isinstance(value, list) else value
