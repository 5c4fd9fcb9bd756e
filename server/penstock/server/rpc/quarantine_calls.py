"""What is left out of a job's log, for people: two methods of the `Cursors` service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job, find_job
from penstock.server.store.contract import Store
from penstock.wire.errors import InvalidRequest, UnknownVerdict
from penstock.wire.item_numbers import number_text
from penstock.wire.v1 import cursors_pb2 as pb

PAGE = 500
"""Verdicts in one answer: far below the limit of a message, whatever their reasons."""

Release = Callable[[Job, str, int], Awaitable[list[Verdict]]]
"""Releases an item of a source of a job; returns the verdicts about it."""


class QuarantineCalls:
    """Lists and releases verdicts.

    Args:
        jobs: The jobs of this node.
        store: Open.
        release: Releases, and tells this process's planners.
    """

    def __init__(self, jobs: Mapping[str, Job], store: Store, release: Release) -> None:
        self._jobs, self._store, self._release = jobs, store, release

    async def list(self, request: pb.ListVerdictsRequest) -> pb.ListVerdictsReply:
        """Return verdicts by number, some at once."""
        job = find_job(self._jobs, request.job)
        found = await self._store.verdicts(job.log_id, request.after, PAGE + 1)
        return pb.ListVerdictsReply(
            verdicts=[_message(verdict) for verdict in found[:PAGE]],
            more=len(found) > PAGE,
            log_id=job.log_id,
            max_quarantined=job.max_quarantined,
        )

    async def release(self, request: pb.ReleaseItemRequest) -> pb.ReleaseItemReply:
        """Let an item be drawn again; a repeated call gets the same answer.

        Raises:
            InvalidRequest: The source is not one of the job's.
            UnknownVerdict: There is no verdict about this item.
            LogDiverged: Every batch of the log was given or planned without it.
        """
        job = find_job(self._jobs, request.job)
        source = request.source or next(iter(job.sources))
        if source not in job.sources or (not request.source and len(job.sources) > 1):
            raise InvalidRequest(
                f"source {request.source!r} is not one of job {job.name!r}; it has "
                f"{', '.join(map(repr, job.sources))}: write SOURCE[INDEX]",
                field="source",
            )
        verdicts = await self._release(job, source, request.index)
        if not verdicts:
            item = f"{source}[{number_text(request.index)}]"
            raise UnknownVerdict(
                f"item {item} of job {job.name!r} is not in quarantine; "
                "`penstock quarantine TARGET JOB list` shows what is",
                job=job.name,
                item=[source, request.index],
            )
        return pb.ReleaseItemReply(verdicts=[_message(verdict) for verdict in verdicts])


def _message(verdict: Verdict) -> pb.Verdict:
    return pb.Verdict(
        number=verdict.number,
        stage=verdict.stage,
        source=verdict.item.source,
        index=verdict.item.index,
        epoch=verdict.item.epoch,
        every_epoch=verdict.every_epoch,
        lane=verdict.lane,
        offset=verdict.offset,
        above=verdict.above,
        released=verdict.released,
        content_hash=verdict.content_hash,
        reason=verdict.reason,
    )
