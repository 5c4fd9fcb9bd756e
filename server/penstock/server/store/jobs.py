"""The jobs that a store has seen: their plans tell what changed, and how many lanes a log has."""

from __future__ import annotations

import json
import sqlite3

from penstock.server.store.base import JobRecord
from penstock.server.store.checks import check_name
from penstock.server.store.schema import insert, now
from penstock.wire.errors import InvalidRequest

KEPT_PLANS = 16
"""So many latest plans of a name stay, beside those that a group or a checkpoint refers to."""


def register_job(db: sqlite3.Connection, job: JobRecord) -> None:
    """Remember a plan, as `Store.register_job` says; forget plans that nobody refers to."""
    check_name("job", job.name)
    if len(job.log_id) != 32:
        raise InvalidRequest(f"a log id has 32 bytes, not {len(job.log_id)}")
    known = db.execute(
        "SELECT 1 FROM jobs WHERE name = ? AND log_id = ?", (job.name, job.log_id)
    ).fetchone()
    if known is not None:
        return
    number = _last_number(db, job.name) + 1
    insert(
        db,
        "jobs",
        name=job.name,
        log_id=job.log_id,
        number=number,
        plan=json.dumps(job.plan, sort_keys=True),
        first_seen=now(db),
    )
    forget_plans(db, job.name)


def lanes_of(db: sqlite3.Connection, log_id: bytes) -> int | None:
    """Return how many lanes a log has, where its plan says so."""
    row = db.execute("SELECT plan FROM jobs WHERE log_id = ? LIMIT 1", (log_id,)).fetchone()
    plan = None if row is None else json.loads(row[0])
    lanes = plan.get("lanes") if isinstance(plan, dict) else None
    return lanes if isinstance(lanes, int) and lanes > 0 else None


def forget_plans(db: sqlite3.Connection, name: str) -> None:
    """Drop old plans that no group reads, with the snapshots of logs that then have no plan.

    Verdicts and ends stay: they are facts, small, and a log that comes back must meet them.
    """
    old = db.execute(
        "SELECT log_id FROM jobs WHERE name = ? AND number <= ? "
        "AND log_id NOT IN (SELECT log_id FROM timelines) "
        "AND log_id NOT IN (SELECT log_id FROM checkpoints)",
        (name, _last_number(db, name) - KEPT_PLANS),
    ).fetchall()
    for (log_id,) in old:
        db.execute("DELETE FROM jobs WHERE name = ? AND log_id = ?", (name, log_id))
        if db.execute("SELECT 1 FROM jobs WHERE log_id = ?", (log_id,)).fetchone() is None:
            db.execute(
                "DELETE FROM bodies WHERE id IN (SELECT body FROM snapshots WHERE log_id = ?)",
                (log_id,),
            )
            db.execute("DELETE FROM snapshots WHERE log_id = ?", (log_id,))
            db.execute("DELETE FROM libraries WHERE log_id = ?", (log_id,))


def _last_number(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT coalesce(max(number), 0) FROM jobs WHERE name = ?", (name,)).fetchone()
    return int(row[0])


__all__ = ["KEPT_PLANS", "forget_plans", "lanes_of", "register_job"]
