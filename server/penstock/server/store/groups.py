"""The rows of groups, read and added; the rules for them stand in `attempts` and `moves`."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from penstock.server.store.base import CheckpointRecord, GroupRecord
from penstock.server.store.checks import check_text
from penstock.server.store.schema import DELETED, insert, insert_many, now, update
from penstock.wire import MAX_WORLD_SIZE
from penstock.wire.errors import UnknownGroup

KEPT_ROWS = 64
"""The rows of so many latest generations stay, for people: only the latest are the cursor.

Fewer where they are large: together about as many rows as the largest generation may have."""

KEPT_TOKENS = 1024
"""So many latest generations of a group are remembered: a token among them stays fenced."""


class Group(NamedTuple):
    """A row of `groups`."""

    job: str
    name: str
    id: int
    batches_per_step: int
    committed_at: str
    committed_by: int


class Generation(NamedTuple):
    """A row of `generations`."""

    number: int
    token: str
    world_size: int
    start_step: int
    owner: str
    made_by: str
    checkpoint: str
    request_id: str


_GENERATION = "generation, token, world_size, start_step, owner, made_by, checkpoint, request_id"


# --- rows ----------------------------------------------------------------------------------------


def find_group(db: sqlite3.Connection, job: str, name: str) -> Group | None:
    """Return a group, or None."""
    row = db.execute(
        f"SELECT {', '.join(Group._fields)} FROM groups WHERE job = ? AND name = ?", (job, name)
    ).fetchone()
    return None if row is None else Group(*row)


def known_group(db: sqlite3.Connection, job: str, name: str) -> Group:
    """Return a group.

    Raises:
        InvalidRequest: The name is no text.
        UnknownGroup: There is none; lists those there are.
    """
    check_text("job", job)
    check_text("group", name)
    group = find_group(db, job, name)
    if group is None:
        rows = db.execute("SELECT name FROM groups WHERE job = ? ORDER BY name", (job,)).fetchall()
        names = [other for (other,) in rows]
        raise UnknownGroup(
            f"job {job!r} has no group {name!r}; it has {listed(names)}: a group begins when its "
            "first reader opens it",
            job=job,
            group=name,
            groups=names[:50],
        )
    return group


def latest_generation(db: sqlite3.Connection, group: Group) -> Generation:
    """Return the generation that holds the group now."""
    row = db.execute(
        f"SELECT {_GENERATION} FROM generations WHERE group_id = ? "
        "ORDER BY generation DESC LIMIT 1",
        (group.id,),
    ).fetchone()
    return Generation(*row)


def add_generation(
    db: sqlite3.Connection,
    group_id: int,
    *,
    number: int,
    token: str,
    world_size: int,
    start_step: int,
    owner: str,
    made_by: str = "begin",
    checkpoint: str = "",
    request_id: str = "",
) -> int:
    """Add a generation with its rows, forget what is too old, and return its number."""
    insert(
        db,
        "generations",
        group_id=group_id,
        generation=number,
        token=token,
        world_size=world_size,
        start_step=start_step,
        owner=owner,
        made_by=made_by,
        checkpoint=checkpoint,
        request_id=request_id,
        made_at=now(db),
    )
    insert_many(db, "cursors", ((group_id, number, rank, start_step) for rank in range(world_size)))
    # History is bounded: a run that restarts every hour must not grow the store for ever.
    rows = max(1, min(KEPT_ROWS, MAX_WORLD_SIZE // max(1, world_size)))
    for table, kept in (("cursors", rows), ("generations", KEPT_TOKENS)):
        db.execute(
            f"DELETE FROM {table} WHERE group_id = ? AND generation <= ?", (group_id, number - kept)
        )
    return number


def deleted_generation(db: sqlite3.Connection) -> int:
    """Return the highest generation of all groups that were deleted; 0 = none was.

    A new group begins above it, so no name of a group ever has the same generation twice, and a
    process that outlived its group stays fenced, also where the next run has the same token.
    """
    (value,) = db.execute("SELECT value FROM meta WHERE key = ?", (DELETED,)).fetchone()
    return int(value)


def note_deleted(db: sqlite3.Connection, generation: int) -> None:
    """Remember that a group of this generation is deleted: one number for the whole store."""
    highest = max(generation, deleted_generation(db))
    update(db, "meta", {"value": str(highest)}, "key = :key", {"key": DELETED})


def row_of(db: sqlite3.Connection, group: Group, current: Generation, rank: int) -> int:
    """Return the first step that a rank of a generation has not finished."""
    row = db.execute(
        "SELECT step FROM cursors WHERE group_id = ? AND generation = ? AND rank = ?",
        (group.id, current.number, rank),
    ).fetchone()
    return int(row[0])


def cursor_of(db: sqlite3.Connection, group: Group, current: Generation) -> int:
    """Return the least row of the current generation, or its start where it has none."""
    (least,) = db.execute(
        "SELECT min(step) FROM cursors WHERE group_id = ? AND generation = ?",
        (group.id, current.number),
    ).fetchone()
    return current.start_step if least is None else int(least)


def log_id_of(db: sqlite3.Connection, group: Group) -> bytes:
    """Return the log that the group reads."""
    (log_id,) = db.execute(
        "SELECT log_id FROM timelines WHERE group_id = ? ORDER BY from_step DESC LIMIT 1",
        (group.id,),
    ).fetchone()
    return bytes(log_id)


def checkpoints_of(db: sqlite3.Connection, group: Group) -> list[CheckpointRecord]:
    """Return the checkpoints of a group, by step."""
    rows = db.execute(
        "SELECT name, step, log_id, made_at FROM checkpoints WHERE group_id = ? "
        "ORDER BY step, name",
        (group.id,),
    ).fetchall()
    return [CheckpointRecord(*row) for row in rows]


def find_checkpoint(db: sqlite3.Connection, group: Group, name: str) -> CheckpointRecord | None:
    """Return a checkpoint of a group by its name, or None."""
    row = db.execute(
        "SELECT name, step, log_id, made_at FROM checkpoints WHERE group_id = ? AND name = ?",
        (group.id, name),
    ).fetchone()
    return None if row is None else CheckpointRecord(*row)


def listed(names: list[str]) -> str:
    """Return names for a sentence: at most ten."""
    if not names:
        return "none"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + more


# --- looking -------------------------------------------------------------------------------------


def groups(
    db: sqlite3.Connection, job: str, group: str | None, after: str = "", limit: int | None = None
) -> list[GroupRecord]:
    """Return one group or those of a job, as `Store.groups` says."""
    if group is not None:
        return [record_of(db, known_group(db, job, group))]
    rows = db.execute(
        f"SELECT {', '.join(Group._fields)} FROM groups WHERE job = ? AND name > ? "
        "ORDER BY name LIMIT ?",
        (job, after, -1 if limit is None else limit),
    ).fetchall()
    return [record_of(db, Group(*row)) for row in rows]


def readers(db: sqlite3.Connection, log_id: bytes) -> tuple[list[int], list[int]]:
    """Return where groups stand in a log, in positions: their cursors, and their checkpoints."""
    cursors: list[int] = []
    checkpoints: list[int] = []
    for row in db.execute(f"SELECT {', '.join(Group._fields)} FROM groups").fetchall():
        group = Group(*row)
        if log_id_of(db, group) == log_id:
            cursors.append(
                cursor_of(db, group, latest_generation(db, group)) * group.batches_per_step
            )
        checkpoints += [
            stands.step * group.batches_per_step
            for stands in checkpoints_of(db, group)
            if stands.log_id == log_id
        ]
    return cursors, checkpoints


def logs_of(db: sqlite3.Connection, group: Group) -> set[bytes]:
    """Return every log that the group or one of its checkpoints refers to."""
    rows = db.execute(
        "SELECT log_id FROM timelines WHERE group_id = :id "
        "UNION SELECT log_id FROM checkpoints WHERE group_id = :id",
        {"id": group.id},
    ).fetchall()
    return {bytes(log_id) for (log_id,) in rows}


def record_of(db: sqlite3.Connection, group: Group) -> GroupRecord:
    """Return everything about a group."""
    current = latest_generation(db, group)
    rows = db.execute(
        "SELECT step FROM cursors WHERE group_id = ? AND generation = ? ORDER BY rank",
        (group.id, current.number),
    ).fetchall()
    return GroupRecord(
        job=group.job,
        name=group.name,
        log_id=log_id_of(db, group),
        batches_per_step=group.batches_per_step,
        generation=current.number,
        token=current.token,
        owner=current.owner,
        world_size=current.world_size,
        start_step=current.start_step,
        rows=tuple(step for (step,) in rows),
        cursor=cursor_of(db, group, current),
        committed_at=group.committed_at,
        committed_by=group.committed_by,
        committed_owner=_owner_of(db, group, group.committed_by),
        checkpoints=tuple(checkpoints_of(db, group)),
    )


def _owner_of(db: sqlite3.Connection, group: Group, generation: int) -> str:
    row = db.execute(
        "SELECT owner FROM generations WHERE group_id = ? AND generation = ?",
        (group.id, generation),
    ).fetchone()
    return "" if row is None else str(row[0])


__all__ = [
    "KEPT_ROWS",
    "KEPT_TOKENS",
    "Generation",
    "Group",
    "add_generation",
    "checkpoints_of",
    "cursor_of",
    "deleted_generation",
    "find_checkpoint",
    "find_group",
    "groups",
    "known_group",
    "latest_generation",
    "listed",
    "log_id_of",
    "logs_of",
    "note_deleted",
    "readers",
    "record_of",
    "row_of",
]
