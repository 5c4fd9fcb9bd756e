"""Attempts of a group and their commits."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.server.store.records import BeginAnswer, BeginRequest, Committed
from penstock.server.store.rows import (
    Add,
    Change,
    CursorRow,
    GenerationRow,
    GroupRow,
    Put,
    TimelineRow,
)
from penstock.server.store.rules import fence
from penstock.server.store.rules.arguments import MAX_STEP
from penstock.server.store.rules.diff import differences
from penstock.server.store.rules.group_rules import GroupStanding, new_generation
from penstock.wire.attempt_names import moves_between
from penstock.wire.errors import (
    CommitOutOfRange,
    InvalidRequest,
    JobChanged,
    RankOutOfRange,
    StepSizeMismatch,
    WorldSizeMismatch,
)
from penstock.wire.order import check_divides

# --- begin ---------------------------------------------------------------------------------------


def joins(token: str, current: GenerationRow) -> bool:
    """Tell whether a token is the latest attempt's.

    A rank that was restarted alone does not know that its attempt has moved.
    """
    return moves_between(token, current.token) is not None


def begin(
    request: BeginRequest,
    standing: GroupStanding,
    *,
    own: int | None,
    older: int | None,
    plan: str | None,
    now: str,
) -> tuple[BeginAnswer, list[Change]]:
    """Start or join an attempt of an existing group, as `Store.begin` says.

    Args:
        request: Checked by `check_begin`.
        standing: The group.
        own: The step of the rank's row of the latest generation; None = it has none.
        older: The generation of an older attempt with this token; None = there is none.
        plan: The stored plan of the group's log, JSON; None = it is not known, or not needed.
        now: The store's time.

    Raises:
        StaleGeneration, WorldSizeMismatch, JobChanged, StepSizeMismatch, UnevenStep,
            InvalidRequest: As `Store.begin` says.
    """
    group, current = standing.group, standing.current
    joined = joins(request.token, current)
    if not joined and older is not None:
        raise fence.stale(group, current, older)
    if joined and request.world_size != current.world_size:
        raise WorldSizeMismatch(
            f"the attempt {request.token!r} of group {group.name!r} runs with world size "
            f"{current.world_size}, and this rank came with {request.world_size}: start every rank "
            "with the same world size, or all of them with a new attempt token",
            world_size=request.world_size,
            expected=current.world_size,
        )
    if standing.log_id != request.job.log_id:
        raise _changed(request, standing, plan)
    if request.batches_per_step not in (None, group.batches_per_step):
        raise StepSizeMismatch(
            f"group {group.name!r} of job {group.job!r} reads steps of {group.batches_per_step} "
            f"batches, not {request.batches_per_step}: leave batches_per_step out, or read with "
            "another group name",
            batches_per_step=request.batches_per_step,
            expected=group.batches_per_step,
        )
    check_divides(group.batches_per_step, request.world_size, uneven=request.uneven)
    if not joined:
        start = standing.cursor if request.start_step is None else request.start_step
        number = current.generation + 1
        changes = new_generation(_attempt(request, group.id, number, start, now))
        return _begun(group, number, request.token, start, "group", joined=False), changes
    if request.start_step not in (None, current.start_step):
        raise InvalidRequest(
            f"the attempt {request.token!r} of group {group.name!r} started at step "
            f"{current.start_step}, and this rank asks for {request.start_step}: give every rank "
            "the same start, or all of them a new attempt token",
            field="start_step",
            value=request.start_step,
        )
    assert own is not None  # written with the generation
    return _begun(group, current.generation, current.token, own, "group", joined=True), []


def begin_first(
    request: BeginRequest, group_id: int, deleted: int, now: str
) -> tuple[BeginAnswer, list[Change]]:
    """Start a group with its first attempt.

    Args:
        request: Checked by `check_begin`.
        group_id: One that no group has.
        deleted: The highest generation of all groups that were deleted; 0 = none was. The new group
            begins above it: so a name never has the same generation twice, and processes of a
                deleted group stay fenced, even if the next run has the same token.
        now: The store's time.

    Raises:
        UnevenStep: The world size does not divide the step.
    """
    asked, default = request.batches_per_step, request.default_batches_per_step
    if asked is not None:
        steps, decided_by = asked, "request"
    elif default is not None:
        steps, decided_by = default, "job"
    else:
        steps, decided_by = request.world_size, "world_size"
    check_divides(steps, request.world_size, uneven=request.uneven)
    group = GroupRow(request.job.name, request.group, group_id, steps, "", 0)
    start, number = request.start_step or 0, deleted + 1
    changes: list[Change] = [
        Add(group),
        Add(TimelineRow(group_id, 0, request.job.log_id)),
        *new_generation(_attempt(request, group_id, number, start, now)),
    ]
    return _begun(group, number, request.token, start, decided_by, joined=False), changes


def _attempt(
    request: BeginRequest, group_id: int, number: int, start: int, now: str
) -> GenerationRow:
    # A run that goes on from a state of this store was given everything below it.
    made_by = "state" if request.store and request.start_step is not None else "begin"
    token, ranks, owner = request.token, request.world_size, request.owner
    return GenerationRow(group_id, number, token, ranks, start, owner, made_by, "", "", now)


def _begun(
    group: GroupRow, number: int, token: str, start: int, decided_by: str, *, joined: bool
) -> BeginAnswer:
    return BeginAnswer(
        generation=number,
        batches_per_step=group.batches_per_step,
        batches_per_step_from=decided_by,
        start_step=start,
        joined=joined,
        committed_at=group.committed_at,
        committed_by=group.committed_by,
        token=token,
    )


def _changed(request: BeginRequest, standing: GroupStanding, plan: str | None) -> JobChanged:
    group, log_id = standing.group, standing.log_id
    lines: list[str] = []
    if plan is not None:
        # Through JSON, as the stored plan went: tuples and lists are no difference.
        lines = differences(json.loads(plan), json.loads(json.dumps(request.job.plan)))
    lines = lines or [f"log id: {log_id.hex()[:12]}... → {request.job.log_id.hex()[:12]}..."]
    shown = "; ".join(lines[:5])
    if len(lines) > 5:
        shown += f"; and {len(lines) - 5} more"
    return JobChanged(
        f"group {group.name!r} stands at step {standing.cursor} of another job {group.job!r}: "
        f"{shown}. Read the job as it is now with another group name, or put it back as it was",
        job=group.job,
        group=group.name,
        differences=lines[:50],
    )


# --- commits -------------------------------------------------------------------------------------


def check_commit(step: int) -> None:
    """Refuse an invalid step of a commit.

    Raises:
        CommitOutOfRange: It is negative or too large.
    """
    if not 0 <= step <= MAX_STEP:
        raise CommitOutOfRange(
            f"a commit names a step between 0 and {MAX_STEP}, not {step}", step=step, steps=MAX_STEP
        )


def check_rank(group: GroupRow, current: GenerationRow, rank: int) -> None:
    """Refuse a rank that a generation does not have.

    Raises:
        RankOutOfRange: With the world size.
    """
    if not 0 <= rank < current.world_size:
        raise RankOutOfRange(
            f"rank {rank} is not one of the {current.world_size} ranks of generation "
            f"{current.generation} of group {group.name!r}: ranks go from 0 to world_size - 1",
            rank=rank,
            world_size=current.world_size,
        )


def commit(
    group: GroupRow, own: CursorRow, others: int | None, step: int, now: str
) -> tuple[Committed, list[Change]]:
    """Move a row forward; never backwards.

    Args:
        group: The group.
        own: The rank's row of the latest generation.
        others: The lowest of its other rows; None = it has no others.
        step: The first step that the rank has not finished.
        now: The store's time.
    """
    moved = own._replace(step=max(own.step, step))
    cursor = moved.step if others is None else min(moved.step, others)
    if moved == own:
        return Committed(cursor, own.step), []
    return Committed(cursor, moved.step), [Put(moved), Put(_committed(group, own, now))]


def commit_all(
    group: GroupRow, rows: Sequence[CursorRow], rank: int, step: int, now: str
) -> tuple[Committed, list[Change]]:
    """Move all rows forward that are below a step, on behalf of a rank.

    Args:
        group: The group.
        rows: All rows of its latest generation, by rank.
        rank: The rank whose row is in the answer.
        step: As of `commit`.
        now: The store's time.
    """
    moved = [CursorRow(*row[:3], step) for row in rows if row.step < step]
    answer = Committed(max(step, min(row.step for row in rows)), max(step, rows[rank].step))
    if not moved:
        return answer, []
    return answer, [*map(Put, moved), Put(_committed(group, rows[rank], now))]


def _committed(group: GroupRow, row: CursorRow, now: str) -> GroupRow:
    return group._replace(committed_at=now, committed_by=row.generation)
