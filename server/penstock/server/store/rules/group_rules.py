"""A group as it is, its generations, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.server.store.records import CheckpointRecord, GroupRecord
from penstock.server.store.rows import (
    DELETED,
    Add,
    Change,
    CheckpointRow,
    CursorRow,
    Drop,
    GenerationRow,
    GroupRow,
    MetaRow,
    Put,
    TimelineRow,
)
from penstock.wire import MAX_WORLD_SIZE
from penstock.wire.errors import StaleGeneration

KEPT_ROWS = 64
"""The rows of this many latest generations are kept, for people: only the latest ones are the
cursor. Fewer if they are large: together about as many rows as the largest generation may have."""

KEPT_TOKENS = 1024
"""This many latest generations of a group are remembered: their tokens stay fenced."""


class GroupStanding(NamedTuple):
    """A group as it is now.

    Attributes:
        group: Its row.
        current: Its latest generation.
        cursor: The lowest row of that generation, or its start if it has none.
        log_id: The log that it reads.
    """

    group: GroupRow
    current: GenerationRow
    cursor: int
    log_id: bytes


def record(
    standing: GroupStanding,
    rows: Sequence[CursorRow],
    checkpoints: Sequence[CheckpointRow],
    committer: GenerationRow | None,
) -> GroupRecord:
    """Return everything about a group, for people.

    Args:
        standing: The group.
        rows: All of its latest generation, by rank.
        checkpoints: All of it.
        committer: The generation that committed last, if it is remembered.
    """
    group, current, cursor, log_id = standing
    return GroupRecord(
        job=group.job,
        name=group.name,
        log_id=log_id,
        batches_per_step=group.batches_per_step,
        generation=current.generation,
        token=current.token,
        owner=current.owner,
        world_size=current.world_size,
        start_step=current.start_step,
        rows=tuple(row.step for row in rows),
        cursor=cursor,
        committed_at=group.committed_at,
        committed_by=group.committed_by,
        committed_owner="" if committer is None else committer.owner,
        checkpoints=tuple(map(named, by_step(checkpoints))),
    )


def named(row: CheckpointRow) -> CheckpointRecord:
    """Return a checkpoint, for people."""
    return CheckpointRecord(row.name, row.step, row.log_id, row.made_at)


def by_step(checkpoints: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """Return checkpoints in the order in which they are listed."""
    return sorted(checkpoints, key=lambda row: (row.step, row.name))


def new_generation(row: GenerationRow) -> list[Change]:
    """Return the changes that add a generation with its rows, and forget what is too old.

    History is bounded: a run that restarts every hour must not grow the store forever.
    """
    group, number, ranks = row.group_id, row.generation, row.world_size
    rows = max(1, min(KEPT_ROWS, MAX_WORLD_SIZE // max(1, ranks)))
    return [
        Add(row),
        *(Add(CursorRow(group, number, rank, row.start_step)) for rank in range(ranks)),
        Drop(CursorRow, (group,), number - rows),
        Drop(GenerationRow, (group,), number - KEPT_TOKENS),
    ]


def delete(standing: GroupStanding, generation: int | None, deleted: int) -> list[Change]:
    """Delete a group, and let no later group have one of its generations.

    Args:
        standing: The group.
        generation: The latest one that the caller knows of; None = whatever it is.
        deleted: The highest generation of all groups that were deleted before; 0 = none was.

    Raises:
        StaleGeneration: The group has a newer generation.
    """
    group, current = standing.group, standing.current
    if generation not in (None, current.generation):
        raise StaleGeneration(
            f"group {group.name!r} of job {group.job!r} is at generation {current.generation} now, "
            f"begun by {current.owner or 'an unnamed caller'}, and generation {generation} was to "
            "be deleted: look at it again",
            generation=generation,
            current=current.generation,
            owner=current.owner,
            job=group.job,
            group=group.name,
        )
    return [
        *(Drop(kind, (group.id,)) for kind in OF_A_GROUP),
        Drop(GroupRow, (group.job, group.name)),
        Put(MetaRow(DELETED, str(max(deleted, current.generation)))),
    ]


OF_A_GROUP = (TimelineRow, GenerationRow, CursorRow, CheckpointRow)
"""What is kept under the id of a group."""
