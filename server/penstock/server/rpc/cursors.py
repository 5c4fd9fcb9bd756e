"""The `Cursors` service, over any store: messages in, one store transaction, messages out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from penstock.server.core.refs import Verdict
from penstock.server.job import Job
from penstock.server.rpc.opening import check_protocol, find_job
from penstock.server.rpc.quarantine import Quarantine, Release
from penstock.server.store.base import (
    BeginRequest,
    CheckpointRecord,
    GroupRecord,
    JobRecord,
    Seen,
    Store,
)
from penstock.wire.errors import (
    BadFrame,
    CommitOutOfRange,
    InvalidRequest,
    NoGroup,
    PastEnd,
)
from penstock.wire.order import MAX_POSITION, Tail, check_divides
from penstock.wire.v1 import cursors_pb2 as pb

MAX_NAME = 200


class Cursors:
    """Answers the `Cursors` service.

    Args:
        jobs: The jobs of this node.
        store: Open.
        on_move: Told (job, group, generation, reason) when a group has a new generation: streams of
            older ones are ended.
        release: Releases an item of a job, where somebody plans here.
    """

    METHODS = (
        "Begin",
        "Commit",
        "Checkpoint",
        "Restore",
        "Seek",
        "List",
        "ListVerdicts",
        "ReleaseItem",
    )

    def __init__(
        self,
        jobs: Mapping[str, Job],
        store: Store,
        on_move: Callable[[str, str, int, str], None] | None = None,
        release: Release | None = None,
    ) -> None:
        self._jobs, self._store = jobs, store
        self._on_move = on_move or (lambda job, group, generation, reason: None)
        quarantine = Quarantine(jobs, store, release or self._release)
        self._methods: dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]] = {
            "Begin": (pb.BeginRequest, self._begin),
            "Commit": (pb.CommitRequest, self._commit),
            "Checkpoint": (pb.CheckpointRequest, self._checkpoint),
            "Restore": (pb.RestoreRequest, self._restore),
            "Seek": (pb.SeekRequest, self._seek),
            "List": (pb.ListRequest, self._list),
            "ListVerdicts": (pb.ListVerdictsRequest, quarantine.list),
            "ReleaseItem": (pb.ReleaseItemRequest, quarantine.release),
        }

    async def call(self, method: str, data: bytes) -> bytes:
        """Answer one call, serialized in and out.

        Raises:
            PenstockError: What the store says; `BadFrame` for bytes that are no such message.
        """
        message, handle = self._methods[method]
        try:
            request = message.FromString(data)
        except DecodeError as error:
            raise BadFrame(
                f"{len(data)} bytes are no {message.DESCRIPTOR.name}: {error}"
            ) from error
        reply: bytes = (await handle(request)).SerializeToString()
        return reply

    async def _release(self, job: Job, source: str, index: int) -> list[Verdict]:
        return await self._store.release_verdicts(job.log_id, source, index, Seen(job.order))

    async def _begin(self, request: pb.BeginRequest) -> pb.BeginReply:
        check_protocol(request.protocol)
        job = self._job(request.job, request.group)
        if not request.token:
            raise InvalidRequest("Begin needs the token of an attempt", field="token")
        start = request.start_step if request.HasField("start_step") else None
        size = request.batches_per_step or job.batches_per_step
        if request.batches_per_step:
            check_divides(request.batches_per_step, max(1, request.world_size))
        if start is not None:
            self._check_step(job, start, size or max(1, request.world_size), PastEnd)
        begun = await self._store.begin(
            BeginRequest(
                job=JobRecord(request.job, job.log_id, job.plan),
                group=request.group,
                token=request.token,
                rank=request.rank,
                world_size=request.world_size or 1,
                batches_per_step=request.batches_per_step or None,
                default_batches_per_step=job.batches_per_step,
                start_step=start,
                owner=request.owner[:MAX_NAME],
                store=request.store,
            )
        )
        if not begun.joined:
            reason = f"{request.owner or 'another attempt'} began generation {begun.generation}"
            self._on_move(request.job, request.group, begun.generation, reason)
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
        )

    async def _commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        job = self._job(request.job, request.group)
        if job.order.batches is not None:
            [group] = await self._store.groups(request.job, request.group)
            self._check_step(job, request.step, group.batches_per_step, CommitOutOfRange)
        elif request.step > MAX_POSITION:
            raise CommitOutOfRange(f"step {request.step} is no step", step=request.step)
        committed = await self._store.commit(
            request.job,
            request.group,
            request.token,
            request.generation,
            request.rank,
            request.step,
            all_rows=request.all_rows,
        )
        return pb.CommitReply(cursor=committed.cursor, row=committed.row)

    async def _checkpoint(self, request: pb.CheckpointRequest) -> pb.CheckpointReply:
        job = self._job(request.job, request.group)
        if not 0 < len(request.name) <= MAX_NAME:
            raise InvalidRequest(
                f"a checkpoint's name has 1 to {MAX_NAME} characters, not {len(request.name)}",
                field="name",
            )
        step = request.step if request.HasField("step") else None
        if step is not None:
            [group] = await self._store.groups(request.job, request.group)
            self._check_step(job, step, group.batches_per_step, PastEnd)
        made = await self._store.checkpoint(request.job, request.group, request.name, step)
        return pb.CheckpointReply(name=made.name, step=made.step, log_id=made.log_id)

    async def _restore(self, request: pb.RestoreRequest) -> pb.MoveReply:
        self._job(request.job, request.group)
        moved = await self._store.restore(
            request.job, request.group, request.name, request.request_id, request.owner[:MAX_NAME]
        )
        reason = (
            f"{request.owner or 'somebody'} restored checkpoint {request.name!r}, step {moved.step}"
        )
        self._on_move(request.job, request.group, moved.generation, reason)
        return pb.MoveReply(generation=moved.generation, step=moved.step)

    async def _seek(self, request: pb.SeekRequest) -> pb.MoveReply:
        job = self._job(request.job, request.group)
        [group] = await self._store.groups(request.job, request.group)
        self._check_step(job, request.step, group.batches_per_step, PastEnd)
        moved = await self._store.seek(
            request.job, request.group, request.step, request.request_id, request.owner[:MAX_NAME]
        )
        reason = f"{request.owner or 'somebody'} moved the cursor to step {moved.step}"
        self._on_move(request.job, request.group, moved.generation, reason)
        return pb.MoveReply(generation=moved.generation, step=moved.step)

    async def _list(self, request: pb.ListRequest) -> pb.ListReply:
        find_job(self._jobs, request.job)
        groups = await self._store.groups(request.job, request.group or None)
        return pb.ListReply(groups=[_group(group) for group in groups], store=self._store.uuid)

    def _job(self, name: str, group: str) -> Job:
        job = find_job(self._jobs, name)
        if not group:
            raise NoGroup(
                "an ephemeral reader has no cursor: give a group name to begin, commit, seek or "
                "make checkpoints"
            )
        if len(group) > MAX_NAME:
            raise InvalidRequest(
                f"a group's name has at most {MAX_NAME} characters, not {len(group)}", field="group"
            )
        return job

    @staticmethod
    def _check_step(
        job: Job, step: int, size: int, error: type[PastEnd] | type[CommitOutOfRange]
    ) -> None:
        steps = MAX_POSITION // size
        if job.order.batches is not None:
            steps = Tail(job.order.batches, size).steps
        if step > steps:
            raise error(
                f"step {step} lies past the end: job {job.name!r} holds {steps} steps of {size} "
                "batches",
                step=step,
                steps=steps,
            )


def _group(group: GroupRecord) -> pb.Group:
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
        checkpoints=[_checkpoint(one) for one in group.checkpoints],
    )


def _checkpoint(record: CheckpointRecord) -> pb.NamedStep:
    return pb.NamedStep(
        name=record.name, step=record.step, log_id=record.log_id, made_at=record.made_at
    )


__all__ = ["Cursors"]
