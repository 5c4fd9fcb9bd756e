"""The jobs that a store has seen: their plans tell what changed, and how many lanes a log has."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from penstock.server.store.records import JobRecord
from penstock.server.store.rows import (
    Add,
    BodyRow,
    Change,
    DefinitionRow,
    Drop,
    EnvironmentRow,
    JobRow,
    LibraryRow,
    Put,
    SnapshotRow,
    WitnessRow,
)
from penstock.server.store.rules.arguments import check_name
from penstock.wire.errors import InvalidRequest

KEPT_PLANS = 16
"""This many latest plans of a name are kept, beside those that a group or a checkpoint refers
to."""


def check_job(job: JobRecord) -> None:
    """Refuse a job that cannot be stored.

    Raises:
        InvalidRequest: Its name or its log id is invalid.
    """
    check_name("job", job.name)
    if len(job.log_id) != 32:
        raise InvalidRequest(f"a log id has 32 bytes, not {len(job.log_id)}")


def register(job: JobRecord, plans: Sequence[JobRow], now: str) -> list[Change]:
    """Remember a plan that is not known yet.

    Args:
        job: Checked by `check_job`.
        plans: The plans of its name.
        now: The store's time.
    """
    number = max((row.number for row in plans), default=0) + 1
    plan = json.dumps(job.plan, sort_keys=True)
    return [Add(JobRow(job.name, job.log_id, number, plan, now))]


def define(job: JobRecord, known: DefinitionRow | None) -> list[Change]:
    """Keep what a job is built from now.

    Args:
        job: Checked by `check_job`.
        known: What its log was built from last.
    """
    row = DefinitionRow(job.log_id, job.definition)
    return [] if not job.definition or row == known else [Put(row)]


def forgotten(name: str, plans: Sequence[JobRow], referred: Collection[bytes]) -> list[JobRow]:
    """Return the old plans of a name that no group reads.

    Args:
        name: The job's.
        plans: The plans of all names.
        referred: The logs of all groups and checkpoints.
    """
    last = max((row.number for row in plans if row.name == name), default=0)
    return [
        row
        for row in plans
        if row.name == name and row.number <= last - KEPT_PLANS and row.log_id not in referred
    ]


def forget(old: JobRow, plans: Sequence[JobRow], snapshots: Iterable[SnapshotRow]) -> list[Change]:
    """Drop an old plan, with its log's snapshots and definition if that has no other plan.

    Verdicts, ends and leads stay: they are facts, small, and a log that comes back must meet them.

    Args:
        old: One of `forgotten`.
        plans: The plans of all names.
        snapshots: Of its log.
    """
    changes: list[Change] = [Drop(JobRow, (old.name, old.log_id))]
    if all(row.log_id != old.log_id or row.name == old.name for row in plans):
        changes += [Drop(BodyRow, (row.body,)) for row in snapshots]
        of_log = (SnapshotRow, LibraryRow, DefinitionRow, WitnessRow, EnvironmentRow)
        changes += [Drop(kind, (old.log_id,)) for kind in of_log]
    return changes


def lanes_of(plan: JobRow | None) -> int | None:
    """Return how many lanes a log has, if its plan says so."""
    found = None if plan is None else json.loads(plan.plan)
    lanes = found.get("lanes") if isinstance(found, dict) else None
    return lanes if isinstance(lanes, int) and lanes > 0 else None
