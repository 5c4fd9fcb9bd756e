"""The body of each transaction: load the rows that a rule needs, ask it, write its changes.

Written once, for every kind of store. Decisions are in `rules`; access to rows is in `Tables`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.server.core.verdict import Verdict
from penstock.server.store.base import (
    BeginRequest,
    Begun,
    CheckpointRecord,
    Committed,
    GroupRecord,
    Halt,
    JobRecord,
    Latest,
    LogNews,
    Moved,
    Seen,
    SnapshotRecord,
)
from penstock.server.store.rows import (
    DELETED,
    BodyRow,
    Change,
    CheckpointRow,
    CursorRow,
    DefinitionRow,
    GenerationRow,
    GroupRow,
    HaltRow,
    JobRow,
    LaneEndRow,
    LibraryRow,
    MetaRow,
    SnapshotRow,
    TimelineRow,
    VerdictRow,
)
from penstock.server.store.rules import attempts, fence, groups, lanes, moves, plans, verdicts
from penstock.server.store.rules.checks import check_begin, check_name, check_step, check_text
from penstock.server.store.rules.retention import ARCHIVE
from penstock.server.store.tables import Tables
from penstock.wire import MAX_TOKEN

CROWDED = 512
"""A lane with more snapshots is thinned: rarely enough that it costs a few microseconds per put."""

# --- jobs ----------------------------------------------------------------------------------------


async def register_job(tables: Tables, job: JobRecord) -> None:
    """Remember a plan, as `Store.register_job` says; forget plans that nothing refers to."""
    plans.check_job(job)
    if await tables.get(JobRow, job.name, job.log_id) is None:
        known = await tables.all(JobRow, job.name)
        await tables.write(plans.register(job, known, tables.now()))
        await _forget_plans(tables, job.name)
    await tables.write(plans.define(job, await tables.get(DefinitionRow, job.log_id)))


async def definition(tables: Tables, log_id: bytes) -> bytes | None:
    """Return what the job of a log is built from, as `Store.definition` says."""
    row = await tables.get(DefinitionRow, log_id)
    return None if row is None else row.definition


async def _forget_plans(tables: Tables, name: str) -> None:
    known = await tables.all(JobRow)
    referred = {row.log_id for row in await tables.all(TimelineRow)}
    referred.update(row.log_id for row in await tables.all(CheckpointRow))
    for old in plans.forgotten(name, known, referred):
        snapshots = await tables.all(SnapshotRow, old.log_id)
        await tables.write(plans.forget(old, known, snapshots))


async def _lanes_of(tables: Tables, log_id: bytes) -> int | None:
    found = await tables.all(JobRow, where={"log_id": log_id}, limit=1)
    return plans.lanes_of(found[0] if found else None)


# --- groups --------------------------------------------------------------------------------------


async def _names(tables: Tables, job: str) -> list[str]:
    return sorted(await tables.counts(GroupRow, job))  # without the rows: there may be many


async def _known(tables: Tables, job: str, name: str) -> GroupRow:
    """Return a group.

    Raises:
        InvalidRequest: The name is not text.
        UnknownGroup: There is none; lists those there are.
    """
    check_text("job", job)
    check_text("group", name)
    group = await tables.get(GroupRow, job, name)
    if group is None:
        raise fence.unknown(job, name, await _names(tables, job))
    return group


async def _current(tables: Tables, group: GroupRow) -> GenerationRow:
    """Return the generation that holds a group now."""
    current = await tables.last(GenerationRow, group.id)
    assert current is not None  # a group begins with one, and the latest is never forgotten
    return current


async def _log_id(tables: Tables, group: GroupRow) -> bytes:
    """Return the log that a group reads."""
    timeline = await tables.last(TimelineRow, group.id)
    assert timeline is not None  # written with the group
    return timeline.log_id


async def _standing(
    tables: Tables, group: GroupRow, rank: int = -1
) -> tuple[groups.Standing, int | None]:
    """Return a group as it is now, and the step of a rank's row, where there is one."""
    current = await _current(tables, group)
    own, others = await tables.steps(group.id, current.generation, rank)
    steps = [step for step in (own, others) if step is not None]
    cursor = min(steps, default=current.start_step)
    return groups.Standing(group, current, cursor, await _log_id(tables, group)), own


async def _record(tables: Tables, standing: groups.Standing) -> GroupRecord:
    group = standing.group
    rows = await tables.all(CursorRow, group.id, standing.current.generation)
    checkpoints = await tables.all(CheckpointRow, group.id)
    committer = await tables.get(GenerationRow, group.id, group.committed_by)
    return groups.record(standing, rows, checkpoints, committer)


async def batches_per_step(tables: Tables, job: str, name: str) -> int:
    """Return G of a group, as `Store.batches_per_step` says."""
    return (await _known(tables, job, name)).batches_per_step


async def list_groups(
    tables: Tables, job: str, name: str | None, after: str = "", limit: int | None = None
) -> list[GroupRecord]:
    """Return one group or those of a job, as `Store.groups` says."""
    if name is not None:
        found = [await _known(tables, job, name)]
    else:
        found = await tables.all(GroupRow, job, after=after, limit=limit)
    return [await _record(tables, (await _standing(tables, group))[0]) for group in found]


async def delete_group(
    tables: Tables, crowded: Crowded, job: str, name: str, generation: int | None
) -> GroupRecord:
    """Forget a group and what was kept for it alone, as `Store.delete_group` says."""
    group = await _known(tables, job, name)
    standing, _ = await _standing(tables, group)
    record = await _record(tables, standing)
    logs = {row.log_id for row in await tables.all(TimelineRow, group.id)}
    logs.update(checkpoint.log_id for checkpoint in record.checkpoints)
    await tables.write(groups.delete(standing, generation, await _deleted(tables)))
    for log_id in sorted(logs):
        await crowded.collect(tables, log_id)
    await _forget_plans(tables, job)
    return record


async def _deleted(tables: Tables) -> int:
    """Return the highest generation of all groups that were deleted; 0 = none was."""
    row = await tables.get(MetaRow, DELETED)
    return 0 if row is None else int(row.value)


# --- attempts ------------------------------------------------------------------------------------


async def begin(tables: Tables, request: BeginRequest) -> Begun:
    """Start or join an attempt, as `Store.begin` says."""
    check_begin(request)
    group = await tables.get(GroupRow, request.job.name, request.group)
    if group is None:
        group_id = await tables.highest(GroupRow, "id") + 1
        begun, changes = attempts.begin_first(
            request, group_id, await _deleted(tables), tables.now()
        )
        await register_job(tables, request.job)
    else:
        group_id = group.id
        standing, own = await _standing(tables, group, request.rank)
        older, plan = None, None
        if not attempts.joins(request.token, standing.current):
            # A scan, not an index: begins are rare, and an index can be damaged, too.
            known = await tables.all(GenerationRow, group.id, where={"token": request.token})
            older = known[0].generation if known else None
        if standing.log_id != request.job.log_id:
            stored = await tables.get(JobRow, group.job, standing.log_id)
            plan = None if stored is None else stored.plan
        begun, changes = attempts.begin(
            request, standing, own=own, older=older, plan=plan, now=tables.now()
        )
    await tables.write(changes)
    logs = await tables.all(TimelineRow, group_id)
    return replace(begun, timeline=tuple((row.from_step, row.log_id) for row in logs))


async def check_token(tables: Tables, job: str, name: str, token: str, generation: int) -> None:
    """Refuse a reader of an older attempt, as `Store.check_token` says."""
    await _fenced(tables, job, name, token, generation)


async def commit(
    tables: Tables,
    job: str,
    name: str,
    token: str,
    generation: int,
    rank: int,
    step: int,
    *,
    all_rows: bool,
) -> Committed:
    """Move rows forward, as `Store.commit` says."""
    attempts.check_commit(step)
    group, current = await _fenced(tables, job, name, token, generation)
    attempts.check_rank(group, current, rank)
    if all_rows:
        rows = await tables.all(CursorRow, group.id, generation)
        answer, changes = attempts.commit_all(group, rows, rank, step, tables.now())
    else:
        own, others = await tables.steps(group.id, generation, rank)
        assert own is not None  # written with the generation
        row = CursorRow(group.id, generation, rank, own)
        answer, changes = attempts.commit(group, row, others, step, tables.now())
    await tables.write(changes)
    return answer


async def _fenced(
    tables: Tables, job: str, name: str, token: str, generation: int
) -> tuple[GroupRow, GenerationRow]:
    """Return a group to its latest attempt, and refuse all others.

    Raises:
        UnknownGroup: It is not there any more.
        StaleGeneration: The attempt is over.
    """
    check_text("job", job)
    check_text("group", name)
    group = await tables.get(GroupRow, job, name)
    if group is None:
        raise fence.gone(job, name, await _names(tables, job), generation)
    current = await _current(tables, group)
    fence.check(group, current, token, generation)
    return group, current


# --- checkpoints and moves -----------------------------------------------------------------------


async def checkpoint(
    tables: Tables, job: str, group_name: str, name: str, step: int | None
) -> CheckpointRecord:
    """Give a step a permanent name, as `Store.checkpoint` says."""
    check_name("checkpoint", name)
    if step is not None:
        check_step("a checkpoint", step)
    group = await _known(tables, job, group_name)
    if step is None:
        step = (await _standing(tables, group))[0].cursor
    asked = CheckpointRow(group.id, name, step, await _log_id(tables, group), tables.now())
    stands = await tables.get(CheckpointRow, group.id, name)
    row, changes = moves.checkpoint(group, asked, stands)
    await tables.write(changes)
    return groups.named(row)


async def restore(
    tables: Tables, job: str, group_name: str, name: str, request_id: str, owner: str
) -> Moved:
    """Go to a checkpoint, as `Store.restore` says."""
    check_name("checkpoint", name)
    group = await _known(tables, job, group_name)
    stands = await tables.get(CheckpointRow, group.id, name)
    if stands is None:
        raise moves.unknown(group, name, await tables.all(CheckpointRow, group.id))
    return await _move(tables, group, stands.step, request_id, owner, name)


async def seek(
    tables: Tables, job: str, group_name: str, step: int, request_id: str, owner: str
) -> Moved:
    """Go to a step, as `Store.seek` says."""
    check_step("a seek", step)
    return await _move(tables, await _known(tables, job, group_name), step, request_id, owner)


async def _move(
    tables: Tables, group: GroupRow, step: int, request_id: str, owner: str, name: str = ""
) -> Moved:
    check_text("request id", request_id, MAX_TOKEN)
    check_text("owner", owner)
    done = None
    if request_id:
        known = await tables.all(GenerationRow, group.id, where={"request_id": request_id})
        done = known[0] if known else None
    moved, changes = moves.move(
        await _current(tables, group),
        done,
        step,
        checkpoint=name,
        request_id=request_id,
        owner=owner,
        now=tables.now(),
    )
    await tables.write(changes)
    return moved


# --- snapshots -----------------------------------------------------------------------------------


class Crowded:
    """Puts snapshots and thins them; holds only how crowded each lane was, and may forget it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[bytes, int], int] = {}

    async def put(self, tables: Tables, snapshots: Sequence[SnapshotRecord]) -> None:
        """Insert if absent, then thin out, as `Store.put_snapshots` says."""
        last = await tables.highest(BodyRow, "id")
        for body, snapshot in enumerate(snapshots, last + 1):
            stands = await tables.get(SnapshotRow, *snapshot[:3])
            checksum = hashlib.sha256(snapshot.data).digest()
            await tables.write(lanes.put(snapshot, checksum, stands, body))
        touched = {(snapshot.log_id, snapshot.lane) for snapshot in snapshots}
        crowded: dict[bytes, list[int]] = {}
        for log_id, lane in sorted(touched):
            count = await tables.count(SnapshotRow, log_id, lane)
            if count > self._counts.get((log_id, lane), CROWDED):
                crowded.setdefault(log_id, []).append(lane)
        for log_id, found in crowded.items():
            await self._thin(tables, log_id, found)

    async def collect(self, tables: Tables, log_id: bytes) -> None:
        """Remove at once what is not worth keeping, after a reader that it was kept for is gone."""
        counts = await tables.counts(SnapshotRow, log_id)
        await self._thin(tables, log_id, [lane for lane, n in counts.items() if n > ARCHIVE])

    async def _thin(self, tables: Tables, log_id: bytes, crowded: Sequence[int]) -> None:
        cursors, checkpoints = await _reader_offsets(tables, log_id) if crowded else ([], [])
        for lane in crowded:
            rows = await tables.all(SnapshotRow, log_id, lane)
            kept, changes = lanes.thin(rows, cursors, checkpoints)
            await tables.write(changes)
            # With very many checkpoints much stays: wait until it has doubled.
            self._counts[log_id, lane] = max(CROWDED, 2 * kept)


async def _reader_offsets(tables: Tables, log_id: bytes) -> tuple[list[int], list[int]]:
    """Return the lane offsets of cursors and checkpoints: exact in endless logs, else low."""
    count = await _lanes_of(tables, log_id)
    cursors: list[int] = []
    checkpoints: list[int] = []
    if count is not None:
        for group in await tables.all(GroupRow):
            size = group.batches_per_step
            standing, _ = await _standing(tables, group)
            if standing.log_id == log_id:
                cursors.append(standing.cursor * size // count)
            named = await tables.all(CheckpointRow, group.id, where={"log_id": log_id})
            checkpoints += [row.step * size // count for row in named]
    return cursors, checkpoints


async def nearest_snapshot(
    tables: Tables, log_id: bytes, lane: int, offset: int
) -> SnapshotRecord | None:
    """Return the nearest intact snapshot, as `Store.nearest_snapshot` says."""
    while True:
        row = await tables.last(SnapshotRow, log_id, lane, at_most=offset)
        if row is None:
            return None
        body = await tables.get(BodyRow, row.body)
        data = None if body is None else body.data
        if isinstance(data, bytes) and hashlib.sha256(data).digest() == row.checksum:
            return SnapshotRecord(log_id, lane, row.offset, data)
        # A snapshot only saves time: an older one gives the same batches, later.
        _warn_of_damage(log_id, lane, row.offset)
        await tables.write(lanes.drop(row))


def _warn_of_damage(log_id: bytes, lane: int, offset: int) -> None:
    # Here and not above: commands that only look into a store start faster without.
    import structlog

    structlog.get_logger("penstock.store").warning(
        "a damaged snapshot was dropped", log=log_id.hex(), lane=lane, offset=offset
    )


async def drop_snapshot(tables: Tables, log_id: bytes, lane: int, offset: int) -> None:
    """Remove a snapshot, as `Store.drop_snapshot` says."""
    row = await tables.get(SnapshotRow, log_id, lane, offset)
    if row is not None:
        await tables.write(lanes.drop(row))


# --- verdicts ------------------------------------------------------------------------------------


async def add_verdict(
    tables: Tables, log_id: bytes, verdict: Verdict, seen: Seen, limit: int | None
) -> Verdict:
    """Insert a verdict above what was given, as `Store.add_verdict` says."""
    about = await _about(tables, log_id, verdict.item.source, verdict.item.index)
    known = verdicts.standing(verdict, about)
    if known is not None:
        return known
    out: list[VerdictRow] = []
    if limit is not None:
        out = await tables.all(VerdictRow, log_id, where={"released": -1})
    made, changes = verdicts.add(
        log_id,
        verdict,
        seen,
        await _given(tables, log_id, verdict.lane),
        out=out,
        limit=limit,
        last_number=await tables.highest(VerdictRow, "number", log_id),
        last_change=await _last_change(tables, log_id),
    )
    await tables.write(changes)
    return made


async def release_verdicts(
    tables: Tables, log_id: bytes, source: str, index: int, seen: Seen
) -> list[Verdict]:
    """Let an item be drawn again, as `Store.release_verdicts` says."""
    about = await _about(tables, log_id, source, index)
    given = await _given(tables, log_id)
    last = await _last_change(tables, log_id)
    found, changes = verdicts.release(log_id, about, seen, given, last)
    await tables.write(changes)
    return found


async def list_verdicts(
    tables: Tables, log_id: bytes, after: int = 0, limit: int | None = None
) -> list[Verdict]:
    """Return the verdicts of a log by number, as `Store.verdicts` says."""
    rows = await tables.all(VerdictRow, log_id, after=after, limit=limit)
    return [verdicts.verdict_of(row) for row in rows]


async def _about(tables: Tables, log_id: bytes, source: str, index: int) -> list[VerdictRow]:
    return await tables.all(VerdictRow, log_id, where={"source": source, "item": index})


async def _given(tables: Tables, log_id: bytes, lane: int | None = None) -> verdicts.Given:
    """Return what readers were given of a log."""
    runs: list[verdicts.Run] = []
    named: list[int] = []
    for group in await tables.all(GroupRow):
        if group.committed_at:
            checkpoints = await tables.all(CheckpointRow, group.id, where={"log_id": log_id})
            named += [row.step * group.batches_per_step for row in checkpoints]
        if await _log_id(tables, group) == log_id:
            rows = await tables.all(CursorRow, group.id)
            # Only those that have rows: of many more the tokens are remembered.
            first = rows[0].generation if rows else 0
            generations = await tables.all(GenerationRow, group.id, after=first - 1)
            runs += verdicts.runs(group, generations, rows)
    stored = await tables.highest(SnapshotRow, "offset", log_id)
    of_lane = 0 if lane is None else await tables.highest(SnapshotRow, "offset", log_id, lane)
    return verdicts.Given(runs, named, stored, of_lane)


# --- ends, halts and news ------------------------------------------------------------------------


async def add_lane_ends(tables: Tables, log_id: bytes, ends: Mapping[int, int]) -> None:
    """Record where lanes end, as `Store.add_lane_ends` says."""
    changes: list[Change] = []
    for lane, batches in ends.items():
        stands = await tables.get(LaneEndRow, log_id, lane)
        changes += lanes.add_end(LaneEndRow(log_id, lane, batches), stands)
    await tables.write(changes)


async def lane_ends(tables: Tables, log_id: bytes) -> dict[int, int]:
    """Return the recorded ends by lane, as `Store.lane_ends` says."""
    return {row.lane: row.batches for row in await tables.all(LaneEndRow, log_id)}


async def add_halt(tables: Tables, log_id: bytes, halt: Halt) -> Halt:
    """Record that a lane has stopped, as `Store.add_halt` says."""
    last = await _last_change(tables, log_id)
    made, changes = lanes.add_halt(log_id, halt, last, tables.now())
    await tables.write(changes)
    return made


async def news(tables: Tables, log_id: bytes, after: int | None) -> LogNews:
    """Return what has changed in a log, as `Store.news` says."""
    last = await _last_change(tables, log_id)
    if after is None or last <= after:
        return LogNews(last, [], [])
    changed = [row for row in await tables.all(VerdictRow, log_id) if row.change > after]
    halts = await tables.all(HaltRow, log_id, after=after)
    return LogNews(
        last, [verdicts.verdict_of(row) for row in changed], list(map(lanes.halt_of, halts))
    )


async def latest(tables: Tables, named: Sequence[tuple[str, str]]) -> list[Latest | None]:
    """Return the latest generation of groups, as `Store.latest` says."""
    found: list[Latest | None] = []
    for job, name in named:
        group = await tables.get(GroupRow, job, name)
        if group is None:
            found.append(None)
            continue
        row = await _current(tables, group)
        found.append(Latest(row.generation, row.owner, row.made_by, row.start_step))
    return found


async def _last_change(tables: Tables, log_id: bytes) -> int:
    return max(
        await tables.highest(VerdictRow, "change", log_id),
        await tables.highest(HaltRow, "change", log_id),
    )


async def note_libraries(
    tables: Tables, log_id: bytes, versions: Mapping[str, str]
) -> dict[str, str]:
    """Record what computes a log, as `Store.note_libraries` says."""
    recorded = await tables.all(LibraryRow, log_id)
    found, changes = lanes.note_libraries(log_id, versions, recorded, tables.now())
    await tables.write(changes)
    return found


__all__ = [
    "CROWDED",
    "Crowded",
    "add_halt",
    "add_lane_ends",
    "add_verdict",
    "batches_per_step",
    "begin",
    "check_token",
    "checkpoint",
    "commit",
    "definition",
    "delete_group",
    "drop_snapshot",
    "lane_ends",
    "latest",
    "list_groups",
    "list_verdicts",
    "nearest_snapshot",
    "news",
    "note_libraries",
    "register_job",
    "release_verdicts",
    "restore",
    "seek",
]
