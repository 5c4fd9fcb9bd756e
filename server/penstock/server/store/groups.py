"""Groups, generations, cursors and checkpoints: each function is the body of one transaction."""

from __future__ import annotations

import json
import sqlite3
from typing import NamedTuple

from penstock.server.store.base import (
    BeginRequest,
    Begun,
    CheckpointRecord,
    Committed,
    GroupRecord,
    Moved,
)
from penstock.server.store.checks import MAX_STEP, check_begin, check_name, check_step
from penstock.server.store.diff import differences
from penstock.server.store.jobs import register_job
from penstock.server.store.schema import insert, now, update
from penstock.wire.errors import (
    CheckpointExists,
    CommitOutOfRange,
    InvalidRequest,
    JobChanged,
    RankOutOfRange,
    StaleGeneration,
    StepSizeMismatch,
    UnknownCheckpoint,
    UnknownGroup,
    WorldSizeMismatch,
)
from penstock.wire.order import check_divides

KEPT_ROWS = 64
"""The rows of so many latest generations stay, for people: only the latest are the cursor."""

KEPT_TOKENS = 1024
"""So many latest generations of a group are remembered: a token among them stays fenced."""

MOVED = "moved:"
"""How the token of a seek's or restore's generation begins: no rank can present it."""


class _Group(NamedTuple):
    job: str
    name: str
    id: int
    batches_per_step: int
    committed_at: str
    committed_by: int


class _Generation(NamedTuple):
    number: int
    token: str
    world_size: int
    start_step: int
    owner: str
    made_by: str
    checkpoint: str
    request_id: str


_GENERATION = "generation, token, world_size, start_step, owner, made_by, checkpoint, request_id"


# --- begin ---------------------------------------------------------------------------------------


def begin(db: sqlite3.Connection, request: BeginRequest) -> Begun:
    """Start or join an attempt, as `Store.begin` says."""
    check_begin(request)
    group = _find(db, request.job.name, request.group)
    if group is None:
        return _begin_first(db, request)
    current = _latest(db, group)
    if request.token != current.token:
        _refuse_old_token(db, group, current, request.token)
    elif request.world_size != current.world_size:
        raise WorldSizeMismatch(
            f"the attempt {request.token!r} of group {group.name!r} runs with world size "
            f"{current.world_size}, and this rank came with {request.world_size}: start every rank "
            "with the same world size, or all of them with a new attempt token",
            world_size=request.world_size,
            expected=current.world_size,
        )
    _refuse_other_log(db, request, group, current)
    if request.batches_per_step not in (None, group.batches_per_step):
        raise StepSizeMismatch(
            f"group {group.name!r} of job {group.job!r} reads steps of {group.batches_per_step} "
            f"batches, not {request.batches_per_step}: leave batches_per_step out, or read with "
            "another group name",
            batches_per_step=request.batches_per_step,
            expected=group.batches_per_step,
        )
    check_divides(group.batches_per_step, request.world_size)
    if request.token != current.token:
        start = request.start_step
        if start is None:
            start = _cursor(db, group, current)
        number = _add(
            db,
            group.id,
            number=current.number + 1,
            token=request.token,
            world_size=request.world_size,
            start_step=start,
            owner=request.owner,
        )
        return _begun(group, number, start, "group", joined=False)
    if request.start_step not in (None, current.start_step):
        raise InvalidRequest(
            f"the attempt {request.token!r} of group {group.name!r} started at step "
            f"{current.start_step}, and this rank asks for {request.start_step}: give every rank "
            "the same start, or all of them a new attempt token",
            start_step=request.start_step,
            expected=current.start_step,
        )
    row = _row(db, group, current, request.rank)
    return _begun(group, current.number, row, "group", joined=True)


def _begin_first(db: sqlite3.Connection, request: BeginRequest) -> Begun:
    asked, default = request.batches_per_step, request.default_batches_per_step
    if asked is not None:
        steps, decided_by = asked, "request"
    elif default is not None:
        steps, decided_by = default, "job"
    else:
        steps, decided_by = request.world_size, "world_size"
    check_divides(steps, request.world_size)
    register_job(db, request.job)
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM groups").fetchone()
    group = _Group(request.job.name, request.group, last + 1, steps, "", 0)
    insert(db, "groups", **group._asdict())
    insert(db, "timelines", group_id=group.id, from_step=0, log_id=request.job.log_id)
    start = request.start_step or 0
    _add(
        db,
        group.id,
        number=1,
        token=request.token,
        world_size=request.world_size,
        start_step=start,
        owner=request.owner,
    )
    return _begun(group, 1, start, decided_by, joined=False)


def _begun(group: _Group, number: int, start: int, decided_by: str, *, joined: bool) -> Begun:
    return Begun(
        generation=number,
        batches_per_step=group.batches_per_step,
        batches_per_step_from=decided_by,
        start_step=start,
        joined=joined,
        committed_at=group.committed_at,
        committed_by=group.committed_by,
    )


def _refuse_old_token(
    db: sqlite3.Connection, group: _Group, current: _Generation, token: str
) -> None:
    # A scan, not an index: begins are rare, and an index is one more thing that can be damaged.
    found = db.execute(
        "SELECT generation FROM generations WHERE group_id = ? AND token = ?", (group.id, token)
    ).fetchone()
    if found is not None:
        raise _stale(group, current, found[0])


def _refuse_other_log(
    db: sqlite3.Connection, request: BeginRequest, group: _Group, current: _Generation
) -> None:
    log_id = _log_id(db, group)
    if log_id == request.job.log_id:
        return
    stored = db.execute(
        "SELECT plan FROM jobs WHERE name = ? AND log_id = ?", (group.job, log_id)
    ).fetchone()
    lines: list[str] = []
    if stored is not None:
        # Through JSON, as the stored plan went: tuples and lists are no difference.
        lines = differences(json.loads(stored[0]), json.loads(json.dumps(request.job.plan)))
    lines = lines or [f"log id: {log_id.hex()[:12]}... → {request.job.log_id.hex()[:12]}..."]
    shown = "; ".join(lines[:5])
    if len(lines) > 5:
        shown += f"; and {len(lines) - 5} more"
    raise JobChanged(
        f"group {group.name!r} stands at step {_cursor(db, group, current)} of another job "
        f"{group.job!r}: {shown}. Read the job as it is now with another group name, or put it "
        "back as it was",
        job=group.job,
        group=group.name,
        differences=lines[:50],
    )


# --- commits -------------------------------------------------------------------------------------


def check_token(db: sqlite3.Connection, job: str, group: str, token: str, generation: int) -> None:
    """Refuse a reader of an older attempt, as `Store.check_token` says."""
    _fenced(db, job, group, token, generation)


def commit(
    db: sqlite3.Connection,
    job: str,
    group: str,
    token: str,
    generation: int,
    rank: int,
    step: int,
    *,
    all_rows: bool,
) -> Committed:
    """Move rows forward, as `Store.commit` says."""
    if not 0 <= step <= MAX_STEP:
        raise CommitOutOfRange(
            f"a commit names a step between 0 and {MAX_STEP}, not {step}", step=step, steps=MAX_STEP
        )
    found, current = _fenced(db, job, group, token, generation)
    if not 0 <= rank < current.world_size:
        raise RankOutOfRange(
            f"rank {rank} is not one of the {current.world_size} ranks of generation "
            f"{current.number} of group {group!r}: ranks go from 0 to world_size - 1",
            rank=rank,
            world_size=current.world_size,
        )
    where = "group_id = :group_id AND generation = :generation AND step < :below"
    moved = update(
        db,
        "cursors",
        {"step": step},
        where if all_rows else where + " AND rank = :rank",
        {"group_id": found.id, "generation": current.number, "below": step, "rank": rank},
    )
    if moved:
        update(
            db,
            "groups",
            {"committed_at": now(db), "committed_by": current.number},
            "job = :job AND name = :name",
            {"job": job, "name": group},
        )
    return Committed(_cursor(db, found, current), _row(db, found, current, rank))


# --- checkpoints and moves -----------------------------------------------------------------------


def checkpoint(
    db: sqlite3.Connection, job: str, group: str, name: str, step: int | None
) -> CheckpointRecord:
    """Name a step for good, as `Store.checkpoint` says."""
    check_name("checkpoint", name)
    if step is not None:
        check_step("a checkpoint", step)
    found = _known(db, job, group)
    if step is None:
        step = _cursor(db, found, _latest(db, found))
    for stands in _checkpoints(db, found):
        if stands.name != name:
            continue
        if stands.step == step:
            return stands
        raise CheckpointExists(
            f"checkpoint {name!r} of group {group!r} stands at step {stands.step}, and checkpoints "
            f"never change: give step {step} another name",
            name=name,
            step=stands.step,
        )
    made = CheckpointRecord(name, step, _log_id(db, found), now(db))
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
    found = _known(db, job, group)
    checkpoints = _checkpoints(db, found)
    for stands in checkpoints:
        if stands.name == name:
            return _move(db, found, stands.step, request_id, owner, checkpoint_name=name)
    names = [stands.name for stands in checkpoints]
    raise UnknownCheckpoint(
        f"group {group!r} of job {job!r} has no checkpoint {name!r}; it has {_listed(names)}",
        group=group,
        name=name,
        names=names,
    )


def seek(
    db: sqlite3.Connection, job: str, group: str, step: int, request_id: str, owner: str
) -> Moved:
    """Go to a step, as `Store.seek` says."""
    check_step("a seek", step)
    return _move(db, _known(db, job, group), step, request_id, owner)


def _move(
    db: sqlite3.Connection,
    group: _Group,
    step: int,
    request_id: str,
    owner: str,
    checkpoint_name: str = "",
) -> Moved:
    if request_id:
        done = db.execute(
            "SELECT generation, start_step FROM generations WHERE group_id = ? AND request_id = ?",
            (group.id, request_id),
        ).fetchone()
        if done is not None:
            return Moved(*done)
    number = _latest(db, group).number + 1
    _add(
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


# --- looking -------------------------------------------------------------------------------------


def groups(db: sqlite3.Connection, job: str, group: str | None) -> list[GroupRecord]:
    """Return one group or all of a job, as `Store.groups` says."""
    if group is not None:
        return [_record(db, _known(db, job, group))]
    rows = db.execute(
        f"SELECT {', '.join(_Group._fields)} FROM groups WHERE job = ? ORDER BY name", (job,)
    ).fetchall()
    return [_record(db, _Group(*row)) for row in rows]


def readers(db: sqlite3.Connection, log_id: bytes) -> tuple[list[int], list[int]]:
    """Return where groups stand in a log, in positions: their cursors, and their checkpoints."""
    cursors: list[int] = []
    checkpoints: list[int] = []
    for row in db.execute(f"SELECT {', '.join(_Group._fields)} FROM groups").fetchall():
        group = _Group(*row)
        if _log_id(db, group) == log_id:
            cursors.append(_cursor(db, group, _latest(db, group)) * group.batches_per_step)
        checkpoints += [
            stands.step * group.batches_per_step
            for stands in _checkpoints(db, group)
            if stands.log_id == log_id
        ]
    return cursors, checkpoints


def _record(db: sqlite3.Connection, group: _Group) -> GroupRecord:
    current = _latest(db, group)
    rows = db.execute(
        "SELECT step FROM cursors WHERE group_id = ? AND generation = ? ORDER BY rank",
        (group.id, current.number),
    ).fetchall()
    return GroupRecord(
        job=group.job,
        name=group.name,
        log_id=_log_id(db, group),
        batches_per_step=group.batches_per_step,
        generation=current.number,
        token=current.token,
        owner=current.owner,
        world_size=current.world_size,
        start_step=current.start_step,
        rows=tuple(step for (step,) in rows),
        cursor=_cursor(db, group, current),
        committed_at=group.committed_at,
        checkpoints=tuple(_checkpoints(db, group)),
    )


# --- rows ----------------------------------------------------------------------------------------


def _find(db: sqlite3.Connection, job: str, name: str) -> _Group | None:
    row = db.execute(
        f"SELECT {', '.join(_Group._fields)} FROM groups WHERE job = ? AND name = ?", (job, name)
    ).fetchone()
    return None if row is None else _Group(*row)


def _known(db: sqlite3.Connection, job: str, name: str) -> _Group:
    group = _find(db, job, name)
    if group is None:
        rows = db.execute("SELECT name FROM groups WHERE job = ? ORDER BY name", (job,)).fetchall()
        names = [other for (other,) in rows]
        raise UnknownGroup(
            f"job {job!r} has no group {name!r}; it has {_listed(names)}: a group begins when its "
            "first reader opens it",
            job=job,
            group=name,
            groups=names[:50],
        )
    return group


def _latest(db: sqlite3.Connection, group: _Group) -> _Generation:
    row = db.execute(
        f"SELECT {_GENERATION} FROM generations WHERE group_id = ? "
        "ORDER BY generation DESC LIMIT 1",
        (group.id,),
    ).fetchone()
    return _Generation(*row)


def _fenced(
    db: sqlite3.Connection, job: str, name: str, token: str, generation: int
) -> tuple[_Group, _Generation]:
    group = _known(db, job, name)
    current = _latest(db, group)
    if token != current.token or generation != current.number:
        raise _stale(group, current, generation)
    return group, current


def _stale(group: _Group, current: _Generation, generation: int) -> StaleGeneration:
    who = current.owner or "an unnamed caller"
    if current.made_by == "begin":
        what = (
            f"is read by generation {current.number} (world size {current.world_size}, started by "
            f"{who}), and this attempt is generation {generation}: stop this process, or begin "
            "again with a new attempt token to take over"
        )
    else:
        target = f"step {current.start_step}"
        if current.made_by == "restore":
            verb, target = "restored", f"checkpoint {current.checkpoint!r}, {target},"
        else:
            verb = "moved"
        what = (
            f"was {verb} to {target} by {who} (generation {current.number}), and this attempt is "
            f"generation {generation}: restart or reopen to read on from there"
        )
    return StaleGeneration(
        f"group {group.name!r} of job {group.job!r} {what}",
        generation=generation,
        current=current.number,
        owner=current.owner,
    )


def _add(
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
    for rank in range(world_size):
        insert(db, "cursors", group_id=group_id, generation=number, rank=rank, step=start_step)
    # History is bounded: a run that restarts every hour must not grow the store for ever.
    for table, kept in (("cursors", KEPT_ROWS), ("generations", KEPT_TOKENS)):
        db.execute(
            f"DELETE FROM {table} WHERE group_id = ? AND generation <= ?", (group_id, number - kept)
        )
    return number


def _row(db: sqlite3.Connection, group: _Group, current: _Generation, rank: int) -> int:
    row = db.execute(
        "SELECT step FROM cursors WHERE group_id = ? AND generation = ? AND rank = ?",
        (group.id, current.number, rank),
    ).fetchone()
    return int(row[0])


def _cursor(db: sqlite3.Connection, group: _Group, current: _Generation) -> int:
    (least,) = db.execute(
        "SELECT min(step) FROM cursors WHERE group_id = ? AND generation = ?",
        (group.id, current.number),
    ).fetchone()
    return current.start_step if least is None else int(least)


def _log_id(db: sqlite3.Connection, group: _Group) -> bytes:
    (log_id,) = db.execute(
        "SELECT log_id FROM timelines WHERE group_id = ? ORDER BY from_step DESC LIMIT 1",
        (group.id,),
    ).fetchone()
    return bytes(log_id)


def _checkpoints(db: sqlite3.Connection, group: _Group) -> list[CheckpointRecord]:
    rows = db.execute(
        "SELECT name, step, log_id, made_at FROM checkpoints WHERE group_id = ? "
        "ORDER BY step, name",
        (group.id,),
    ).fetchall()
    return [CheckpointRecord(*row) for row in rows]


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + more


__all__ = [
    "KEPT_ROWS",
    "KEPT_TOKENS",
    "MOVED",
    "begin",
    "check_token",
    "checkpoint",
    "commit",
    "groups",
    "readers",
    "restore",
    "seek",
]
