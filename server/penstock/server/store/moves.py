"""Checkpoints, and going to one or to any step: each function is the body of one transaction."""

from __future__ import annotations

import sqlite3

from penstock.server.store.base import CheckpointRecord, Moved
from penstock.server.store.checks import MOVED, check_name, check_step, check_text
from penstock.server.store.groups import (
    Group,
    add_generation,
    checkpoints_of,
    cursor_of,
    find_checkpoint,
    known_group,
    latest_generation,
    listed,
    log_id_of,
)
from penstock.server.store.schema import insert, now
from penstock.wire import MAX_TOKEN
from penstock.wire.errors import CheckpointExists, UnknownCheckpoint


def checkpoint(
    db: sqlite3.Connection, job: str, group: str, name: str, step: int | None
) -> CheckpointRecord:
    """Name a step for good, as `Store.checkpoint` says."""
    check_name("checkpoint", name)
    if step is not None:
        check_step("a checkpoint", step)
    found = known_group(db, job, group)
    if step is None:
        step = cursor_of(db, found, latest_generation(db, found))
    stands = find_checkpoint(db, found, name)
    if stands is not None and stands.step == step:
        return stands
    if stands is not None:
        raise CheckpointExists(
            f"checkpoint {name!r} of group {group!r} stands at step {stands.step}, and checkpoints "
            f"never change: give step {step} another name",
            name=name,
            step=stands.step,
        )
    made = CheckpointRecord(name, step, log_id_of(db, found), now(db))
    insert(
        db,
        "checkpoints",
        group_id=found.id,
        name=name,
        step=step,
        log_id=made.log_id,
        made_at=made.made_at,
    )
    return made


def restore(
    db: sqlite3.Connection, job: str, group: str, name: str, request_id: str, owner: str
) -> Moved:
    """Go to a checkpoint, as `Store.restore` says."""
    check_name("checkpoint", name)
    found = known_group(db, job, group)
    stands = find_checkpoint(db, found, name)
    if stands is not None:
        return _move(db, found, stands.step, request_id, owner, checkpoint_name=name)
    names = [stands.name for stands in checkpoints_of(db, found)]
    raise UnknownCheckpoint(
        f"group {group!r} of job {job!r} has no checkpoint {name!r}; it has {listed(names)}",
        group=group,
        name=name,
        names=names[:50],
    )


def seek(
    db: sqlite3.Connection, job: str, group: str, step: int, request_id: str, owner: str
) -> Moved:
    """Go to a step, as `Store.seek` says."""
    check_step("a seek", step)
    return _move(db, known_group(db, job, group), step, request_id, owner)


def _move(
    db: sqlite3.Connection,
    group: Group,
    step: int,
    request_id: str,
    owner: str,
    checkpoint_name: str = "",
) -> Moved:
    check_text("request id", request_id, MAX_TOKEN)
    check_text("owner", owner)
    if request_id:
        done = db.execute(
            "SELECT generation, start_step FROM generations WHERE group_id = ? AND request_id = ?",
            (group.id, request_id),
        ).fetchone()
        if done is not None:
            return Moved(*done)
    number = latest_generation(db, group).number + 1
    add_generation(
        db,
        group.id,
        number=number,
        token=MOVED + (request_id or f"#{number}"),
        world_size=0,
        start_step=step,
        owner=owner,
        made_by="restore" if checkpoint_name else "seek",
        checkpoint=checkpoint_name,
        request_id=request_id,
    )
    return Moved(number, step)


__all__ = [
    "checkpoint",
    "restore",
    "seek",
]
