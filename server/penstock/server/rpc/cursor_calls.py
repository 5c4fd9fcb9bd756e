"""The `Cursors` service, over any store: messages in, one store transaction, messages out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from penstock.server.access.caller import ADMIN, CALLER
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job, find_job
from penstock.server.pipeline.line import far
from penstock.server.pipeline.planner import seekable_lanes
from penstock.server.rpc.listener import Listener
from penstock.server.rpc.opening import check_protocol
from penstock.server.rpc.present import Present
from penstock.server.rpc.quarantine_calls import QuarantineCalls, Release
from penstock.server.store.contract import Store
from penstock.server.store.records import (
    BeginRequest,
    CheckpointRecord,
    GroupRecord,
    JobRecord,
    Seen,
)
from penstock.server.store.rules.arguments import check_name, check_text, printable
from penstock.wire.errors import (
    CommitOutOfRange,
    GroupInUse,
    InvalidRequest,
    NoGroup,
    PastEnd,
    UnknownGroup,
)
from penstock.wire.numbering import Numbering
from penstock.wire.order import MAX_POSITION, Cut, check_divides
from penstock.wire.parse import parse
from penstock.wire.v1 import cursors_pb2 as pb

PAGE_BYTES = 4 << 20
"""About how many bytes a page of `List` has: well below the limit of a message."""

GROUPS_AT_ONCE = 16
"""How many groups are read from the store at a time: a group may have a row for each of many
ranks."""


class Cursors:
    """Answers the `Cursors` service.

    Args:
        jobs: The jobs of this node.
        store: Open.
        listener: Told what was done; it ends streams of older generations, and logs.
        release: Releases an item of a job, if this process plans.
        asked: Tells below which offset a job's lanes were planned here: a step that was read is
            within reach, also where no snapshot of it is stored yet.

    Attributes:
        present: Looks for a job's files before a run begins.
    """

    METHODS = (
        "Begin",
        "Commit",
        "Checkpoint",
        "Restore",
        "Seek",
        "List",
        "Delete",
        "ListVerdicts",
        "ReleaseItem",
    )

    def __init__(
        self,
        jobs: Mapping[str, Job],
        store: Store,
        listener: Listener | None = None,
        release: Release | None = None,
        *,
        asked: Callable[[Job], int] | None = None,
        numbered: Callable[[Job], Numbering] = Job.numbering,
    ) -> None:
        self._jobs, self._store = jobs, store
        self._asked = asked or (lambda job: 0)
        self._numbered = numbered
        self._listener = Listener() if listener is None else listener
        self.present = Present()
        quarantine = QuarantineCalls(jobs, store, release or self._release)
        self._methods: dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]] = {
            "Begin": (pb.BeginRequest, self._begin),
            "Commit": (pb.CommitRequest, self._commit),
            "Checkpoint": (pb.CheckpointRequest, self._checkpoint),
            "Restore": (pb.RestoreRequest, self._restore),
            "Seek": (pb.SeekRequest, self._seek),
            "List": (pb.ListRequest, self._list),
            "Delete": (pb.DeleteRequest, self._delete),
            "ListVerdicts": (pb.ListVerdictsRequest, quarantine.list),
            "ReleaseItem": (pb.ReleaseItemRequest, quarantine.release),
        }

    async def call(self, method: str, data: bytes) -> bytes:
        """Answer one call, serialized in and out.

        Raises:
            PenstockError: What the store says; `BadFrame` for bytes that are not such a message.
        """
        message, handle = self._methods[method]
        request = parse(message, data)
        CALLER.get().check(request.job, getattr(request, "group", ""))
        reply: bytes = (await handle(request)).SerializeToString()
        return reply

    async def _release(self, job: Job, source: str, index: int) -> list[Verdict]:
        return await self._store.release_verdicts(
            job.log_id, source, index, Seen(self._numbered(job).order)
        )

    async def _begin(self, request: pb.BeginRequest) -> pb.BeginReply:
        check_protocol(request.protocol)
        job = self._job(request.job, request.group)
        check_text("store", request.store)
        if not request.token:
            raise InvalidRequest("Begin needs the token of an attempt", field="token")
        await self.present.check(job)
        start = request.start_step if request.HasField("start_step") else None
        if request.batches_per_step:
            world_size = max(1, request.world_size)
            check_divides(request.batches_per_step, world_size, uneven=request.uneven)
            job.check_steps(request.batches_per_step)
        if start is not None:
            size = await self._step_size(job, request)
            await self._check_reach(job, start, size)
            await self._check_far(job, request.group, start, size)
        asked = BeginRequest(
            job=JobRecord(request.job, job.log_id, job.plan, job.stored_definition),
            group=request.group,
            token=request.token,
            rank=request.rank,
            world_size=request.world_size or 1,
            batches_per_step=request.batches_per_step or None,
            default_batches_per_step=job.batches_per_step,
            start_step=start,
            owner=printable(request.owner),
            store=request.store,
            uneven=request.uneven,
        )
        begun = await self._store.begin(asked)
        if not begun.joined:
            self._listener.began(asked, begun)
        return pb.BeginReply(
            generation=begun.generation,
            batches_per_step=begun.batches_per_step,
            start_step=begun.start_step,
            log_id=job.log_id,
            store=self._store.uuid,
            joined=begun.joined,
            committed_at=begun.committed_at,
            committed_by=begun.committed_by,
            batches_per_step_from=begun.batches_per_step_from,
            token=begun.token,
            timeline=[pb.LogFrom(from_step=step, log_id=log) for step, log in begun.timeline],
        )

    async def _commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        job = self._job(request.job, request.group)
        if request.step > MAX_POSITION:
            raise CommitOutOfRange(
                f"step {request.step} is larger than any step", step=request.step
            )
        if job.epochs is not None or request.all_rows:
            await self._check_commit(job, request)
        committed = await self._store.commit(
            request.job,
            request.group,
            request.token,
            request.generation,
            request.rank,
            request.step,
            all_rows=request.all_rows,
        )
        self._listener.committed(request.job, request.group, request.rank, committed)
        return pb.CommitReply(cursor=committed.cursor, row=committed.row)

    async def _check_commit(self, job: Job, request: pb.CommitRequest) -> None:
        """Refuse a commit of a step that does not exist or cannot be read.

        Raises:
            CommitOutOfRange, PastEnd: The log has no such step.
            PositionFar: It lies too far ahead.
        """
        try:
            size = await self._store.batches_per_step(request.job, request.group)
        except UnknownGroup:
            return  # the commit will say it better: this attempt has begun the group once
        self._check_step(job, request.step, size, CommitOutOfRange)
        if request.all_rows:  # an explicit step; a rank's own is one that it has read
            await self._check_reach(job, request.step, size, self._asked(job))
            await self._check_far(job, request.group, request.step, size)

    async def _checkpoint(self, request: pb.CheckpointRequest) -> pb.CheckpointReply:
        job = self._job(request.job, request.group)
        check_name("checkpoint", request.name)
        step = request.step if request.HasField("step") else None
        if step is not None:
            size = await self._store.batches_per_step(request.job, request.group)
            await self._check_reach(job, step, size, self._asked(job))
        made = await self._store.checkpoint(request.job, request.group, request.name, step)
        self._listener.checkpointed(request.job, request.group, made)
        return pb.CheckpointReply(name=made.name, step=made.step, log_id=made.log_id)

    async def _restore(self, request: pb.RestoreRequest) -> pb.MoveReply:
        owner = printable(request.owner)
        job = self._job(request.job, request.group)
        [group] = await self._store.groups(request.job, request.group)
        for checkpoint in group.checkpoints:
            if checkpoint.name == request.name:
                size = group.batches_per_step
                await self._check_reach(job, checkpoint.step, size)
                await self._check_far(job, group.name, checkpoint.step, size)
        moved = await self._store.restore(
            request.job, request.group, request.name, request.request_id, owner
        )
        how = f"restored checkpoint {request.name!r}, step {moved.step}"
        self._listener.moved(request.job, request.group, moved, how, owner)
        return pb.MoveReply(generation=moved.generation, step=moved.step)

    async def _seek(self, request: pb.SeekRequest) -> pb.MoveReply:
        job = self._job(request.job, request.group)
        owner = printable(request.owner)
        size = await self._store.batches_per_step(request.job, request.group)
        await self._check_reach(job, request.step, size)
        await self._check_far(job, request.group, request.step, size)
        moved = await self._store.seek(
            request.job, request.group, request.step, request.request_id, owner
        )
        how = f"moved the cursor to step {moved.step}"
        self._listener.moved(request.job, request.group, moved, how, owner)
        return pb.MoveReply(generation=moved.generation, step=moved.step)

    async def _delete(self, request: pb.DeleteRequest) -> pb.DeleteReply:
        self._job(request.job, request.group)
        place = request.job, request.group
        try:
            [record] = await self._store.groups(*place)
            readers = self._listener.readers(*place)
            if readers and not request.fence:
                raise _in_use(record, readers)
            record = await self._store.delete_group(*place, request.generation or None)
        except UnknownGroup:
            if not request.generation:
                raise
            return pb.DeleteReply()  # it existed: the answer to an earlier try was lost
        self._listener.deleted(record, printable(request.owner))
        return pb.DeleteReply(
            cursor=record.cursor,
            generation=record.generation,
            checkpoints=len(record.checkpoints),
            fenced=readers,
        )

    async def _list(self, request: pb.ListRequest) -> pb.ListReply:
        find_job(self._jobs, request.job)
        place, sees = _read_token(request.page_token), CALLER.get().sees_group
        page, after = _Page(self._store.uuid, self._listener), place.group
        if request.group or place.within is not None:
            name = request.group or place.group
            [record] = await self._store.groups(request.job, name)
            if not page.add(record, place.within) or request.group:
                return page.reply
        while True:
            records = await self._store.groups(request.job, after=after, limit=GROUPS_AT_ONCE)
            for record in records:
                if sees(record.name) and not page.add(record):
                    return page.reply
                after = record.name
            if len(records) < GROUPS_AT_ONCE:
                return page.reply

    async def _check_far(self, job: Job, group: str, step: int, size: int) -> None:
        """Refuse a move that only an operator makes: it loses a run's place, or much is planned.

        Raises:
            Forbidden: It goes more than `max_replay` batches of a lane from the cursor, and the
                caller is no `admin`.
        """
        caller = CALLER.get()
        if ADMIN in caller.scopes:
            return
        try:
            [record] = await self._store.groups(job.name, group)
            cursor = record.cursor
        except UnknownGroup:
            cursor = 0
        if abs(step - cursor) * size > job.max_replay * job.lanes:
            caller.need(
                ADMIN,
                f"move group {group!r} from step {cursor} to step {step}, more than max_replay = "
                f"{job.max_replay} batches of a lane",
            )

    def _job(self, name: str, group: str) -> Job:
        job = find_job(self._jobs, name)
        if not group:
            raise NoGroup(
                "an ephemeral reader has no cursor: give a group name to begin, commit, seek or "
                "make checkpoints"
            )
        check_name("group", group)
        return job

    async def _step_size(self, job: Job, request: pb.BeginRequest) -> int:
        """Return what a step of the group holds, or will hold if this call begins it."""
        try:
            return await self._store.batches_per_step(request.job, request.group)
        except UnknownGroup:
            asked = request.batches_per_step or job.batches_per_step
            return int(asked or max(1, request.world_size))

    async def _check_reach(self, job: Job, step: int, size: int, asked: int = 0) -> None:
        """Refuse a step that cannot be read: the group's cursor would stay there.

        Args:
            job: The job.
            step: The step.
            size: Batches of a step.
            asked: Offsets of any lane below this are within reach.

        Raises:
            PastEnd: The log has no such step.
            PositionFar: Too many batches would have to be planned from the nearest snapshot.
        """
        self._check_step(job, step, size, PastEnd)
        order, first = self._numbered(job).order, step * size
        last = first + order.lanes if order.batches is None else min(first + size, order.batches)
        if first >= last or order.lane_offset(last - 1).offset <= asked + job.max_replay:
            return
        seekable = seekable_lanes(job)
        if all(seekable):
            return
        # The first batch of each lane: those after it are planned on the way.
        lanes: set[int] = set()
        for position in range(first, last):
            lane, offset = order.lane_offset(position)
            if lane in lanes or seekable[lane]:
                continue
            lanes.add(lane)
            snapshot = await self._store.nearest_snapshot(job.log_id, lane, offset)
            nearest = max(asked, 0 if snapshot is None else snapshot.offset)
            if offset - nearest > job.max_replay:
                raise far(job, lane, offset, nearest)

    def _check_step(
        self, job: Job, step: int, size: int, error: type[PastEnd] | type[CommitOutOfRange]
    ) -> None:
        steps = MAX_POSITION // size
        tail = self._numbered(job).tail(Cut(size))
        if tail is not None:
            steps = tail.steps
        if step > steps:
            raise error(
                f"step {step} lies past the end: job {job.name!r} holds {steps} steps of {size} "
                "batches",
                step=step,
                steps=steps,
            )


class _PageStart(NamedTuple):
    """Where a page of `List` begins.

    Attributes:
        group: The groups after this one; empty = all.
        within: (step, name) of a checkpoint of `group`: it comes first, with those that follow.
    """

    group: str = ""
    within: tuple[int, str] | None = None


def _read_token(token: str) -> _PageStart:
    """Return where a page begins, from a token that `_Page` wrote.

    Raises:
        InvalidRequest: It did not write this token.
    """
    if not token:
        return _PageStart()
    try:
        group, within = json.loads(token)
        if within is not None:
            step, name = within
            within = (int(step), str(name))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(
            f"the page token {token[:40]!a} was not given by a server: leave it out to get the "
            "first page",
            field="page_token",
        ) from error
    return _PageStart(str(group), within)


class _Page:
    """A page of `List` as it fills up."""

    def __init__(self, store: str, listener: Listener) -> None:
        self.reply = pb.ListReply(store=store)
        self._listener = listener
        self._bytes = 0

    def add(self, record: GroupRecord, within: tuple[int, str] | None = None) -> bool:
        """Add a group, its checkpoints from `within` on; False = the page is full, with a token.

        The first group, and a checkpoint of it, fit into every page: each is further than the last.
        """
        group = _group(record, self._listener.readers(record.job, record.name))
        size = group.ByteSize()
        if self.reply.groups and self._bytes + size > PAGE_BYTES:
            return self._end(self.reply.groups[-1].name, None)
        added = self.reply.groups.add()
        added.CopyFrom(group)
        self._bytes += size
        for checkpoint in record.checkpoints:
            place = (checkpoint.step, checkpoint.name)
            if within is not None and place < within:
                continue
            packed = _checkpoint(checkpoint)
            self._bytes += packed.ByteSize() + 8  # its tag and its length
            if self._bytes > PAGE_BYTES and added.checkpoints:
                return self._end(record.name, place)
            added.checkpoints.append(packed)
        return True

    def _end(self, group: str, within: tuple[int, str] | None) -> bool:
        self.reply.next_page_token = json.dumps([group, within])
        return False


def _in_use(group: GroupRecord, readers: int) -> GroupInUse:
    many = "1 reader" if readers == 1 else f"{readers:,} readers"
    return GroupInUse(
        f"group {group.name!r} of job {group.job!r} has {many} now (generation "
        f"{group.generation}, begun by {group.owner or 'an unnamed caller'}): stop them first, or "
        "say that they are to be fenced, and they end with an error",
        job=group.job,
        group=group.name,
        readers=readers,
        generation=group.generation,
        owner=group.owner,
    )


def _group(group: GroupRecord, readers: int) -> pb.Group:
    """Return the message of a group, without its checkpoints."""
    return pb.Group(
        job=group.job,
        name=group.name,
        log_id=group.log_id,
        batches_per_step=group.batches_per_step,
        generation=group.generation,
        owner=group.owner,
        world_size=group.world_size,
        start_step=group.start_step,
        cursor=group.cursor,
        rows=group.rows,
        committed_at=group.committed_at,
        committed_by=group.committed_by,
        committed_owner=group.committed_owner,
        readers=readers,
    )


def _checkpoint(record: CheckpointRecord) -> pb.NamedStep:
    return pb.NamedStep(
        name=record.name, step=record.step, log_id=record.log_id, made_at=record.made_at
    )
