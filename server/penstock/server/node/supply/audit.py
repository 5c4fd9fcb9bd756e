"""Some batches are made twice and compared, and so are the versions of libraries.

Everything depends on purity: any worker of any node makes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import structlog

from penstock.server.job.job import Job
from penstock.server.node.protocol.messages import Verify
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.worker_pool import WorkerPool
from penstock.server.node.supply.worker_process import Ticket, WorkerProcess
from penstock.server.store.contract import Store
from penstock.server.usercode import libraries
from penstock.wire.errors import LogDiverged, PenstockError

logger = structlog.get_logger("penstock.node")

VERIFY_EVERY = 1000
"""One batch in this many is made twice, by another worker if there is one, and compared."""

MAX_CHECKS = 16


class Audit:
    """Compares batches, and the versions that they are made with.

    Args:
        dispatch: Stops a lane whose batches differ.
        pool: The workers.
        store: Where versions of libraries are recorded.
        life: The node's.
        observer: Told of every comparison.
    """

    def __init__(
        self, dispatch: Dispatch, pool: WorkerPool, store: Store, life: Life, observer: Observer
    ) -> None:
        self._dispatch, self._pool, self._store = dispatch, pool, store
        self._life, self._observer = life, observer
        self._checks: dict[int, tuple[Ticket, bytes]] = {}
        self._libraries: dict[bytes, dict[str, str]] = {}  # by log, what was compared already

    def made(self, maker: WorkerProcess, ticket: Ticket, header: bytes, plan: bytes) -> None:
        """Have a batch made again, if its turn has come.

        Args:
            maker: The worker that made it.
            ticket: Its ticket.
            header: The batch's header, which holds the checksum of its body.
            plan: Its plan; empty where there is none.
        """
        log, key = ticket.log, ticket.entry.key
        is_due = log.produced % VERIFY_EVERY == 0
        if not is_due or not (plan or self._dispatch.lines.seekable(log.job, key.lane)):
            return
        others = [worker for worker in self._pool.sharing() if worker is not maker]
        if not log.assignment.may_read_elsewhere():
            others = []
        worker = others[ticket.number % len(others)] if others else maker
        while len(self._checks) >= MAX_CHECKS:  # their workers died
            del self._checks[next(iter(self._checks))]
        number = next(self._dispatch.numbers)
        self._checks[number] = (ticket, header)
        self._dispatch.introduce(worker, log.job)
        address = log.job.log_id, key.lane, key.offset
        worker.send(Verify(number, *address, key.blank, plan or None))

    def made_twice(self, check: int, header: bytes) -> None:
        """Compare a batch that was made again.

        Args:
            check: The number that the check was given.
            header: The header of the second one.
        """
        ticket, before = self._checks.pop(check, (None, b""))
        if ticket is None:
            return
        pure = header == before
        name = ticket.log.job.name
        self._observer.verified(name, pure)
        if pure:
            return
        key = ticket.entry.key
        error = LogDiverged(
            f"the batch at lane {key.lane}, offset {key.offset} of job {name!r} was made twice "
            "and differs: a role of this job is not pure, or another machine state gave other "
            "bytes; run `penstockd check`, which names the first impure key, then restart the "
            "server",
            what=f"batch at lane {key.lane}, offset {key.offset}",
            lane=key.lane,
            offset=key.offset,
            position=key.position,
            ours=hashlib.sha256(header).hexdigest(),
            theirs=hashlib.sha256(before).hexdigest(),
        )
        self._dispatch.diverged(ticket.log.job.log_id, key.lane, error)

    def note_libraries(self, job: Job, versions: Mapping[str, str]) -> None:
        """Compare what a worker computes a job with, unless another worker said the same."""
        seen = self._libraries.setdefault(job.log_id, {})
        new = {key: version for key, version in versions.items() if seen.get(key) != version}
        if new:
            seen.update(new)
            self._life.spawn(self._compare_libraries(job, new))

    async def _compare_libraries(self, job: Job, versions: dict[str, str]) -> None:
        """Record what a job is computed with, or say what differs from what is recorded."""
        try:
            recorded = await self._store.note_libraries(job.log_id, versions)
        except PenstockError as error:
            logger.warning(
                "the versions of libraries were not recorded", job=job.name, error=str(error)
            )
            return
        if found := libraries.differences(versions, recorded):
            logger.warning(libraries.sentence(job.name, found), job=job.name)
