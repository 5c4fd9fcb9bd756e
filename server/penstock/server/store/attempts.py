"""Attempts of a group and their commits: each function is the body of one transaction."""

from __future__ import annotations

import json
import sqlite3

from penstock.server.store.base import BeginRequest, Begun, Committed
from penstock.server.store.checks import MAX_STEP, check_begin
from penstock.server.store.diff import differences
from penstock.server.store.groups import (
    Generation,
    Group,
    add_generation,
    cursor_of,
    deleted_generation,
    find_group,
    known_group,
    latest_generation,
    log_id_of,
    row_of,
)
from penstock.server.store.jobs import register_job
from penstock.server.store.schema import insert, now, update
from penstock.wire.attempts import moves_between
from penstock.wire.errors import (
    CommitOutOfRange,
    InvalidRequest,
    JobChanged,
    RankOutOfRange,
    StaleGeneration,
    StepSizeMismatch,
    UnknownGroup,
    WorldSizeMismatch,
)
from penstock.wire.order import check_divides

# --- begin ---------------------------------------------------------------------------------------


def begin(db: sqlite3.Connection, request: BeginRequest) -> Begun:
    """Start or join an attempt, as `Store.begin` says."""
    check_begin(request)
    group = find_group(db, request.job.name, request.group)
    if group is None:
        return _begin_first(db, request)
    current = latest_generation(db, group)
    # A rank that was started again alone does not know that its attempt has moved.
    joins = moves_between(request.token, current.token) is not None
    if not joins:
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
    if not joins:
        start = request.start_step
        if start is None:
            start = cursor_of(db, group, current)
        number = add_generation(
            db,
            group.id,
            number=current.number + 1,
            token=request.token,
            world_size=request.world_size,
            start_step=start,
            owner=request.owner,
            made_by=_made_by(request),
        )
        return _begun(group, number, request.token, start, "group", joined=False)
    if request.start_step not in (None, current.start_step):
        raise InvalidRequest(
            f"the attempt {request.token!r} of group {group.name!r} started at step "
            f"{current.start_step}, and this rank asks for {request.start_step}: give every rank "
            "the same start, or all of them a new attempt token",
            start_step=request.start_step,
            expected=current.start_step,
        )
    row = row_of(db, group, current, request.rank)
    return _begun(group, current.number, current.token, row, "group", joined=True)


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
    group = Group(request.job.name, request.group, last + 1, steps, "", 0)
    insert(db, "groups", **group._asdict())
    insert(db, "timelines", group_id=group.id, from_step=0, log_id=request.job.log_id)
    start = request.start_step or 0
    number = add_generation(
        db,
        group.id,
        number=deleted_generation(db) + 1,
        token=request.token,
        world_size=request.world_size,
        start_step=start,
        owner=request.owner,
        made_by=_made_by(request),
    )
    return _begun(group, number, request.token, start, decided_by, joined=False)


def _made_by(request: BeginRequest) -> str:
    """Return `state` where a rank goes on from a state of its own: it was given all below."""
    return "state" if request.store and request.start_step is not None else "begin"


def _begun(
    group: Group, number: int, token: str, start: int, decided_by: str, *, joined: bool
) -> Begun:
    return Begun(
        generation=number,
        batches_per_step=group.batches_per_step,
        batches_per_step_from=decided_by,
        start_step=start,
        joined=joined,
        committed_at=group.committed_at,
        committed_by=group.committed_by,
        token=token,
    )


def _refuse_old_token(
    db: sqlite3.Connection, group: Group, current: Generation, token: str
) -> None:
    # A scan, not an index: begins are rare, and an index is one more thing that can be damaged.
    found = db.execute(
        "SELECT generation FROM generations WHERE group_id = ? AND token = ?", (group.id, token)
    ).fetchone()
    if found is not None:
        raise _stale(group, current, found[0])


def _refuse_other_log(
    db: sqlite3.Connection, request: BeginRequest, group: Group, current: Generation
) -> None:
    log_id = log_id_of(db, group)
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
        f"group {group.name!r} stands at step {cursor_of(db, group, current)} of another job "
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
    return Committed(cursor_of(db, found, current), row_of(db, found, current, rank))


# --- the fence -----------------------------------------------------------------------------------


def _fenced(
    db: sqlite3.Connection, job: str, name: str, token: str, generation: int
) -> tuple[Group, Generation]:
    group = _begun_group(db, job, name, generation)
    current = latest_generation(db, group)
    if token != current.token or generation != current.number:
        raise _stale(group, current, generation)
    return group, current


def _begun_group(db: sqlite3.Connection, job: str, name: str, generation: int) -> Group:
    """Return the group of somebody who says that it has begun there.

    Raises:
        UnknownGroup: It is not here any more.
    """
    try:
        return known_group(db, job, name)
    except UnknownGroup as error:
        raise UnknownGroup(
            f"group {name!r} of job {job!r}, of which this attempt is generation {generation}, is "
            "not in the store any more: it was deleted, or the store is another one; start the "
            "run again, with its state or start=, to begin the group anew",
            **{**error.fields, "generation": generation},
        ) from None


def _stale(group: Group, current: Generation, generation: int) -> StaleGeneration:
    who = current.owner or "an unnamed caller"
    if current.made_by in ("begin", "state"):
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
        job=group.job,
        group=group.name,
    )


__all__ = [
    "begin",
    "check_token",
    "commit",
]
