"""What is done with jobs and groups: attempts, cursors, checkpoints, moves.

Each operation is one transaction: it loads the rows that a rule needs, asks it, and writes its
changes. What may happen is decided by `rules`, and how rows are reached by `Tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.server.store.loads import (
    current_generation,
    forget_plans,
    group_names,
    highest_deleted,
    known_group,
    log_of,
    standing_of,
)
from penstock.server.store.records import (
    BeginAnswer,
    BeginRequest,
    CheckpointRecord,
    Committed,
    GroupRecord,
    JobRecord,
    Latest,
    Moved,
)
from penstock.server.store.rows import (
    CheckpointRow,
    CursorRow,
    DefinitionRow,
    GenerationRow,
    GroupRow,
    JobRow,
    TimelineRow,
)
from penstock.server.store.rules import (
    checkpoints as moves,
)
from penstock.server.store.rules import (
    fence,
    plans,
)
from penstock.server.store.rules import (
    follow_keys as followed,
)
from penstock.server.store.rules import (
    generations as attempts,
)
from penstock.server.store.rules import (
    group_rules as groups,
)
from penstock.server.store.rules.arguments import check_begin, check_name, check_step, check_text
from penstock.server.store.tables import Tables
from penstock.server.store.transacting import Transacting, transaction
from penstock.wire import MAX_TOKEN
from penstock.wire.errors import OtherStore


class GroupOperations(Transacting):
    """The operations of a store on jobs and on groups."""

    # --- jobs ---

    @transaction
    async def register_job(self, tables: Tables, job: JobRecord) -> None:
        """Remember a job's plan under (name, log id); a name may have had other logs before.

        Its definition, where there is one, is kept under the log id, in place of an older one: the
        same log may be read from another path.
        """
        await _register(tables, job)

    @transaction
    async def definition(self, tables: Tables, log_id: bytes) -> bytes | None:
        """Return what the job of a log is built from; None = it is not known."""
        row = await tables.get(DefinitionRow, log_id)
        return None if row is None else row.definition

    # --- attempts ---

    @transaction
    async def begin(self, tables: Tables, request: BeginRequest) -> BeginAnswer:
        """Start or join an attempt, in one transaction.

        A new token gets the group's highest generation + 1, with rows for all W ranks at
        `start_step`, or at the group's cursor. The latest token joins: the world size must be the
        same, and a `start_step` must be the generation's. An older token is fenced; the tokens of
        at least 1,024 generations are remembered. A new group begins at generation 1, or above the
        highest generation of all groups that were deleted.

        Raises:
            RankOutOfRange, UnevenStep: The rank or the world size is invalid.
            InvalidRequest: A name, a token or a step cannot be, or ranks of one attempt disagree on
                its start.
            StaleGeneration: The token belongs to an older attempt; names the current owner.
            WorldSizeMismatch: Another world size in the same attempt.
            StepSizeMismatch: `batches_per_step` is not the group's.
            JobChanged: The group's log is another: fields say what differs, readable.
            OtherStore: `store` is given and is not this store.
        """
        if request.store not in ("", self.uuid):
            raise OtherStore(
                f"the state of this run comes from store {request.store}, and this server has "
                f"store {self.uuid} ({self.where}): point the server at that store, or give start= "
                "to go on from the run's own step here",
                expected=request.store,
                store=self.uuid,
            )
        check_begin(request)
        group = await tables.get(GroupRow, request.job.name, request.group)
        if group is None:
            (group_id,) = await tables.numbers(GroupRow, "id", 1)
            deleted = await highest_deleted(tables)
            begun, changes = attempts.begin_first(request, group_id, deleted, tables.now())
            await _register(tables, request.job)
        else:
            group_id = group.id
            standing, own = await standing_of(tables, group, request.rank)
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
        if not begun.joined:
            await _followed(tables, request.job.name, request.group, begun.generation)
        logs = await tables.all(TimelineRow, group_id)
        return replace(begun, timeline=tuple((row.from_step, row.log_id) for row in logs))

    @transaction
    async def check_token(
        self, tables: Tables, job: str, group: str, token: str, generation: int
    ) -> None:
        """Refuse a reader of an older attempt.

        Raises:
            StaleGeneration: The token is not the latest.
            UnknownGroup: There is no such group: it was deleted, or it is in another store.
        """
        await _fenced(tables, job, group, token, generation)

    @transaction
    async def commit(
        self,
        tables: Tables,
        job: str,
        group: str,
        token: str,
        generation: int,
        rank: int,
        step: int,
        *,
        all_rows: bool = False,
    ) -> Committed:
        """Move this rank's row, or all rows, forward to `step`.

        A max-write: a lower step leaves a row as it is, so a retry is harmless.

        Raises:
            StaleGeneration: The token is not the latest: nothing was written.
            UnknownGroup, RankOutOfRange: No such group or row.
            CommitOutOfRange: The step is negative or does not fit 63 bits.
        """
        attempts.check_commit(step)
        found, current = await _fenced(tables, job, group, token, generation)
        attempts.check_rank(found, current, rank)
        if all_rows:
            rows = await tables.all(CursorRow, found.id, generation)
            answer, changes = attempts.commit_all(found, rows, rank, step, tables.now())
        else:
            own, others = await tables.steps(found.id, generation, rank)
            assert own is not None  # written with the generation
            row = CursorRow(found.id, generation, rank, own)
            answer, changes = attempts.commit(found, row, others, step, tables.now())
        await tables.write(changes)
        return answer

    # --- checkpoints and moves ---

    @transaction
    async def checkpoint(
        self, tables: Tables, job: str, group: str, name: str, step: int | None
    ) -> CheckpointRecord:
        """Give a step a permanent name; None = the cursor. Repeating it is a success.

        Raises:
            CheckpointExists: The name belongs to another step.
            UnknownGroup: There is no such group.
        """
        check_name("checkpoint", name)
        if step is not None:
            check_step("a checkpoint", step)
        found = await known_group(tables, job, group)
        if step is None:
            step = (await standing_of(tables, found))[0].cursor
        asked = CheckpointRow(found.id, name, step, await log_of(tables, found), tables.now())
        stands = await tables.get(CheckpointRow, found.id, name)
        row, changes = moves.checkpoint(found, asked, stands)
        await tables.write(changes)
        return groups.named(row)

    @transaction
    async def restore(
        self, tables: Tables, job: str, group: str, name: str, request_id: str, owner: str
    ) -> Moved:
        """Go to a checkpoint: a new generation, in the same transaction.

        It has no rows, and a token that no rank can present: all readers so far are fenced. A
        repeated `request_id` gets the first answer and moves nothing; an empty one always moves.

        Raises:
            UnknownGroup, UnknownCheckpoint: No such group or name; the latter lists the names.
        """
        check_name("checkpoint", name)
        found = await known_group(tables, job, group)
        stands = await tables.get(CheckpointRow, found.id, name)
        if stands is None:
            raise moves.unknown(found, name, await tables.all(CheckpointRow, found.id))
        return await _move(tables, found, stands.step, request_id, owner, name)

    @transaction
    async def seek(
        self, tables: Tables, job: str, group: str, step: int, request_id: str, owner: str
    ) -> Moved:
        """Go to a step: a new generation, in the same transaction, as `restore` does.

        Raises:
            UnknownGroup: There is no such group.
        """
        check_step("a seek", step)
        return await _move(tables, await known_group(tables, job, group), step, request_id, owner)

    # --- groups ---

    @transaction
    async def batches_per_step(self, tables: Tables, job: str, group: str) -> int:
        """Return G of a group: all that a commit needs to know about it.

        Raises:
            UnknownGroup: There is no such group; lists the existing ones.
        """
        return (await known_group(tables, job, group)).batches_per_step

    @transaction
    async def groups(
        self,
        tables: Tables,
        job: str,
        group: str | None = None,
        *,
        after: str = "",
        limit: int | None = None,
    ) -> list[GroupRecord]:
        """Return one group, or the groups of a job by name.

        Args:
            job: The job's name.
            group: This one alone; `after` and `limit` are then ignored.
            after: Only groups whose names come later than this one.
            limit: At most so many; None = all.

        Raises:
            UnknownGroup: `group` is given and there is none; lists the existing ones.
        """
        if group is not None:
            found = [await known_group(tables, job, group)]
        else:
            found = await tables.all(GroupRow, job, after=after, limit=limit)
        return [await _record(tables, (await standing_of(tables, row))[0]) for row in found]

    @transaction
    async def delete_group(
        self, tables: Tables, job: str, group: str, generation: int | None = None
    ) -> GroupRecord:
        """Delete a group: its cursor, its generations and its checkpoints; return what it was.

        Snapshots that were kept for it alone are collected. Everything about the log stays:
        verdicts, ends of lanes, the archive of snapshots. A reader that began before gets
        `UnknownGroup` from `commit` and `check_token`, and the name is free: a `begin` starts a new
        group under it, at a higher generation than any group had that was deleted, so such a reader
        stays fenced.

        Args:
            job: The job's name.
            group: The group's name.
            generation: The latest one that the caller knows of; None = whatever it is.

        Raises:
            UnknownGroup: There is no such group; lists the existing ones.
            StaleGeneration: The group has a newer generation; nothing was deleted.
        """
        found = await known_group(tables, job, group)
        standing, _ = await standing_of(tables, found)
        record = await _record(tables, standing)
        logs = {row.log_id for row in await tables.all(TimelineRow, found.id)}
        logs.update(checkpoint.log_id for checkpoint in record.checkpoints)
        await tables.write(groups.delete(standing, generation, await highest_deleted(tables)))
        await tables.write(followed.is_gone(followed.group_key(job, group)))
        for log_id in sorted(logs):
            await self._crowded.collect(tables, log_id)
        await forget_plans(tables, job)
        return record

    @transaction
    async def latest(
        self, tables: Tables, groups: Sequence[tuple[str, str]]
    ) -> list[Latest | None]:
        """Return the latest generation of groups, each named by job and name; None = it is gone."""
        found: list[Latest | None] = []
        for job, name in groups:
            group = await tables.get(GroupRow, job, name)
            if group is None:
                found.append(None)
                continue
            row = await current_generation(tables, group)
            found.append(
                Latest(row.generation, row.owner, row.made_by, row.start_step, row.checkpoint)
            )
        return found


async def _register(tables: Tables, job: JobRecord) -> None:
    """Remember a plan; forget plans that nothing refers to."""
    plans.check_job(job)
    if await tables.get(JobRow, job.name, job.log_id) is None:
        known = await tables.all(JobRow, job.name)
        await tables.write(plans.register(job, known, tables.now()))
        await forget_plans(tables, job.name)
    await tables.write(plans.define(job, await tables.get(DefinitionRow, job.log_id)))


async def _followed(tables: Tables, job: str, name: str, generation: int) -> None:
    """Let nodes that read a group find its new generation."""
    await tables.write(followed.now_at(followed.group_key(job, name), generation))


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
        raise fence.gone(job, name, await group_names(tables, job), generation)
    current = await current_generation(tables, group)
    fence.check(group, current, token, generation)
    return group, current


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
        await current_generation(tables, group),
        done,
        step,
        checkpoint=name,
        request_id=request_id,
        owner=owner,
        now=tables.now(),
    )
    await tables.write(changes)
    if changes:
        await _followed(tables, group.job, group.name, moved.generation)
    return moved


async def _record(tables: Tables, standing: groups.GroupStanding) -> GroupRecord:
    group = standing.group
    rows = await tables.all(CursorRow, group.id, standing.current.generation)
    checkpoints = await tables.all(CheckpointRow, group.id)
    committer = await tables.get(GenerationRow, group.id, group.committed_by)
    return groups.record(standing, rows, checkpoints, committer)
