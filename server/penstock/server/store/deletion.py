"""Deleting a group: the body of one transaction."""

from __future__ import annotations

import sqlite3

from penstock.server.store.base import GroupRecord
from penstock.server.store.groups import known_group, logs_of, note_deleted, record_of
from penstock.server.store.jobs import forget_plans
from penstock.server.store.lanes import Snapshots
from penstock.wire.errors import StaleGeneration

_OF_A_GROUP = ("timelines", "generations", "cursors", "checkpoints")


def delete_group(
    db: sqlite3.Connection, snapshots: Snapshots, job: str, name: str, generation: int | None
) -> GroupRecord:
    """Forget a group and what was kept for it alone, as `Store.delete_group` says."""
    group = known_group(db, job, name)
    record = record_of(db, group)
    if generation not in (None, record.generation):
        raise StaleGeneration(
            f"group {name!r} of job {job!r} is at generation {record.generation} now, begun by "
            f"{record.owner or 'an unnamed caller'}, and generation {generation} was to be "
            "deleted: look at it again",
            generation=generation,
            current=record.generation,
            owner=record.owner,
            job=job,
            group=name,
        )
    logs = logs_of(db, group)
    for table in _OF_A_GROUP:
        db.execute(f"DELETE FROM {table} WHERE group_id = ?", (group.id,))
    db.execute("DELETE FROM groups WHERE job = ? AND name = ?", (job, name))
    note_deleted(db, record.generation)
    for log_id in sorted(logs):
        snapshots.collect(db, log_id)
    forget_plans(db, job)
    return record


__all__ = ["delete_group"]
