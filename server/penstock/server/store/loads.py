"""The rows that several operations begin with."""

from __future__ import annotations

import hashlib

from penstock.server.store.rows import (
    DELETED,
    BodyRow,
    CheckpointRow,
    FollowedRow,
    GenerationRow,
    GroupRow,
    JobRow,
    MetaRow,
    SnapshotRow,
    TimelineRow,
)
from penstock.server.store.rules import fence, plans
from penstock.server.store.rules import follow_keys as followed
from penstock.server.store.rules import group_rules as groups
from penstock.server.store.rules.arguments import check_text
from penstock.server.store.tables import Tables


async def group_names(tables: Tables, job: str) -> list[str]:
    """Return the names of a job's groups, without their rows: there may be many."""
    return sorted(await tables.counts(GroupRow, job))


async def known_group(tables: Tables, job: str, name: str) -> GroupRow:
    """Return a group.

    Raises:
        InvalidRequest: The name is not text.
        UnknownGroup: There is none; lists those there are.
    """
    check_text("job", job)
    check_text("group", name)
    group = await tables.get(GroupRow, job, name)
    if group is None:
        raise fence.unknown(job, name, await group_names(tables, job))
    return group


async def current_generation(tables: Tables, group: GroupRow) -> GenerationRow:
    """Return the generation that holds a group now."""
    current = await tables.last(GenerationRow, group.id)
    assert current is not None  # a group begins with one, and the latest is never forgotten
    return current


async def log_of(tables: Tables, group: GroupRow) -> bytes:
    """Return the log that a group reads."""
    timeline = await tables.last(TimelineRow, group.id)
    assert timeline is not None  # written with the group
    return timeline.log_id


async def standing_of(
    tables: Tables, group: GroupRow, rank: int = -1
) -> tuple[groups.GroupStanding, int | None]:
    """Return a group as it is now, and the step of a rank's row, where there is one."""
    current = await current_generation(tables, group)
    own, others = await tables.steps(group.id, current.generation, rank)
    steps = [step for step in (own, others) if step is not None]
    cursor = min(steps, default=current.start_step)
    return groups.GroupStanding(group, current, cursor, await log_of(tables, group)), own


async def highest_deleted(tables: Tables) -> int:
    """Return the highest generation of all groups that were deleted; 0 = none was."""
    row = await tables.get(MetaRow, DELETED)
    return 0 if row is None else int(row.value)


async def last_change(tables: Tables, log_id: bytes) -> int:
    """Return the number of a log's last change; 0 = there was none."""
    row = await tables.get(FollowedRow, *followed.log_key(log_id))
    return 0 if row is None else row.number


async def reader_offsets(tables: Tables, log_id: bytes) -> tuple[list[int], list[int]]:
    """Return the lane offsets of cursors and checkpoints: exact in endless logs, else low."""
    found = await tables.all(JobRow, where={"log_id": log_id}, limit=1)
    count = plans.lanes_of(found[0] if found else None)
    cursors: list[int] = []
    checkpoints: list[int] = []
    if count is not None:
        for group in await tables.all(GroupRow):
            size = group.batches_per_step
            standing, _ = await standing_of(tables, group)
            if standing.log_id == log_id:
                cursors.append(standing.cursor * size // count)
            named = await tables.all(CheckpointRow, group.id, where={"log_id": log_id})
            checkpoints += [row.step * size // count for row in named]
    return cursors, checkpoints


async def intact(tables: Tables, row: SnapshotRow) -> bytes | None:
    """Return the bytes of a snapshot; None = they are not those that were put."""
    body = await tables.get(BodyRow, row.body)
    data = None if body is None else body.data
    whole = isinstance(data, bytes) and hashlib.sha256(data).digest() == row.checksum
    return data if whole else None


async def forget_plans(tables: Tables, job: str) -> None:
    """Drop the old plans of a job that no group reads, with what was kept for them."""
    known = await tables.all(JobRow)
    referred = {row.log_id for row in await tables.all(TimelineRow)}
    referred.update(row.log_id for row in await tables.all(CheckpointRow))
    for old in plans.forgotten(job, known, referred):
        snapshots = await tables.all(SnapshotRow, old.log_id)
        await tables.write(plans.forget(old, known, snapshots))
