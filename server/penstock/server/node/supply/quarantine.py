"""Verdicts about items, durable before anything depends on them, and known to every worker.

While one is on its way to the store, nothing new of its log is planned: a batch that was planned
without it could hold the item.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.node.demand.ledger import Log
from penstock.server.node.protocol.channel import ProtocolError
from penstock.server.node.protocol.messages import ItemQuarantined, Learn, QuarantineItem, Refused
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import STORE_DEADLINE_S, STORE_RETRY_S
from penstock.server.node.supply.worker_pool import WorkerPool
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.processes.child import told
from penstock.server.store.contract import Store
from penstock.server.store.records import Halt, LogChanges, Seen
from penstock.wire.errors import LogDiverged, PenstockError, StoreUnavailable

logger = structlog.get_logger("penstock.node")


class Quarantine:
    """Makes verdicts, and their release, hold everywhere.

    Args:
        verdicts: By log, the verdicts that hold.
        dispatch: Whose lines a verdict may overtake.
        pool: The workers that are told.
        store: Where verdicts are kept.
        life: The node's.
        observer: Told how many items are left out.

    Attributes:
        on_halts: Told of the lanes of a log that are stopped.
    """

    def __init__(
        self,
        verdicts: Mapping[bytes, VerdictBook],
        dispatch: Dispatch,
        pool: WorkerPool,
        store: Store,
        life: Life,
        observer: Observer,
    ) -> None:
        self._verdicts, self._dispatch, self._pool = verdicts, dispatch, pool
        self._store, self._life, self._observer = store, life, observer
        self.on_halts: Callable[[Log, Iterable[Halt]], None] = lambda *_: None

    def asked(self, worker: WorkerProcess, message: QuarantineItem) -> None:
        """See to the verdict of a worker, which waits for its answer.

        Raises:
            ProtocolError: The verdict cannot be of this job.
        """
        log, verdict = self._dispatch.logs[message.log_id], message.verdict
        job = log.job
        if job.on_item_error != "quarantine":
            raise ProtocolError(f"a verdict for job {job.name!r}, whose policy is to stop")
        if verdict.lane >= job.lanes:
            raise ProtocolError(f"a verdict of lane {verdict.lane}, which job {job.name!r} has not")
        self._life.spawn(self._answer(worker, log, verdict, message.line))

    async def _answer(
        self, worker: WorkerProcess, log: Log, verdict: Verdict, line: int | None
    ) -> None:
        """Make a verdict durable, tell every worker, and only then let the asking one go on."""
        log.awaited_verdicts += 1
        try:
            held = await self._insert(log, verdict, line)
        except PenstockError as error:
            if isinstance(error, LogDiverged):
                self._dispatch.diverged(log.job.log_id, verdict.lane, error)
            worker.send(Refused(**told(error)))
        else:
            worker.send(ItemQuarantined(held))
        finally:
            log.awaited_verdicts -= 1

    async def _insert(self, log: Log, verdict: Verdict, line: int | None) -> Verdict:
        """Have the store insert a verdict, and tell every worker that knows the job.

        Raises:
            StoreUnavailable: It was away for `STORE_DEADLINE_S`.
            BadItem, LogDiverged: As `Store.add_verdict`.
        """
        deadline = self._life.loop.time() + STORE_DEADLINE_S
        lane, offset, job = verdict.lane, verdict.offset, log.job
        while True:
            known = self._verdicts[job.log_id].find(verdict.stage, verdict.item, lane, offset)
            if known is not None:
                return known
            try:
                with self._deciding(log) as seen:
                    if verdict.stage == "draw":
                        self._overtake(log, verdict, line)
                        planned = log.lanes[lane].planned
                    else:
                        planned = offset + 1 if (lane, offset) in log.made else 0
                    held = await self._store.add_verdict(
                        job.log_id, verdict, seen._replace(planned=planned), job.max_quarantined
                    )
                    self._learn(log, [held])
                    return held
            except StoreUnavailable as error:
                if self._life.loop.time() > deadline:
                    raise
                logger.debug(
                    "a verdict waits for the store", item=str(verdict.item), error=str(error)
                )
            await asyncio.sleep(STORE_RETRY_S)

    async def release(self, log: Log, source: str, index: int) -> list[Verdict]:
        """Let an item be drawn again, above all that was given or asked for; tell every worker.

        Returns:
            Every verdict about the item, released; empty = there is none.

        Raises:
            LogDiverged: The log holds no batch above.
            StoreUnavailable: The store does not answer.
        """
        with self._deciding(log) as seen:
            found = await self._store.release_verdicts(log.job.log_id, source, index, seen)
            self._learn(log, found)
        return found

    def heard(self, log: Log, changes: LogChanges) -> None:
        """Take in what has changed in a log, by whichever node."""
        if changes.change <= log.known_change:
            return
        log.known_change = changes.change
        book = self._verdicts[log.job.log_id]
        for verdict in [each for each in changes.verdicts if each not in book]:
            if verdict.released is not None or _is_in(book, verdict):
                continue
            lane = log.lanes[verdict.lane]
            if verdict.stage == "draw":
                is_past = lane.planned_here > verdict.offset
            else:
                is_past = (verdict.lane, verdict.offset) in log.made
            if is_past and not log.deciding:
                self._dispatch.diverged(log.job.log_id, verdict.lane, _made_with(verdict))
            elif verdict.stage == "draw" and not log.deciding:
                self._overtake(log, verdict, None)
        self._learn(log, changes.verdicts)
        self.on_halts(log, changes.halts)

    def planned_below(self, job: Job) -> int:
        """Return below which offset lanes of a job's log were planned here, or are being."""
        log = self._dispatch.logs.get(job.log_id)
        return 0 if log is None else max(lane.asked for lane in log.lanes)

    @contextlib.contextmanager
    def _deciding(self, log: Log) -> Iterator[Seen]:
        """Let nothing new of a log be planned while its verdicts change; say what was asked for."""
        log.deciding += 1
        try:
            yield Seen(log.numbering.order, asked=self.planned_below(log.job))
        finally:
            log.deciding -= 1
            self._dispatch.schedule()

    def _overtake(self, log: Log, verdict: Verdict, number: int | None) -> None:
        """Take back what other lines of a lane plan past a verdict that they do not know.

        What they have answered the store is told of: it refuses the verdict.
        """
        lane = log.lanes[verdict.lane]
        for line in list(lane.lines):
            if line.number == number or line.next <= verdict.offset or not line.busy:
                continue
            for ticket in self._pool[line.worker].tickets.values():
                ticket.stale = ticket.stale or ticket.line is line
            self._dispatch.lines.close(lane, line)

    def _learn(self, log: Log, changes: Iterable[Verdict]) -> None:
        """Take over verdicts of a log, new or released, and tell every worker that knows it."""
        job = log.job
        book = self._verdicts[job.log_id]
        changed = [verdict for verdict in changes if verdict not in book]
        if not changed:
            return
        book.learn(changed)
        self._observer.quarantined(job.name, book.left_out)
        for worker in self._pool:
            if job.log_id in worker.logs and not worker.dead:
                worker.send(Learn(job.log_id, tuple(changed)))
        for verdict in changed:
            _tell(job.name, verdict)


def _is_in(book: VerdictBook, verdict: Verdict) -> bool:
    """Tell whether a verdict is known, be it as it was before it was released."""
    return any(known.number == verdict.number for known in book)


def _made_with(verdict: Verdict) -> LogDiverged:
    return LogDiverged(
        f"item {verdict.item} fails at another node ({verdict.reason}), which left it out at lane "
        f"{verdict.lane}, offset {verdict.offset}, and this node has made batches of that lane "
        "with it: the nodes' files or libraries are not the same; compare the item's file and the "
        "packages on both, then restart the one that differs",
        what=f"item {verdict.item}",
        lane=verdict.lane,
        offset=verdict.offset,
        item=list(verdict.item),
        ours=f"delivered from offset {verdict.offset} on",
        theirs=f"left out: {verdict.reason}",
    )


def _tell(job: str, verdict: Verdict) -> None:
    released = verdict.released is not None
    logger.warning(
        "item released" if released else "item quarantined",
        job=job,
        number=verdict.number,
        stage=verdict.stage,
        item=str(verdict.item),
        epochs="all" if verdict.every_epoch else str(verdict.item.epoch),
        reason=verdict.reason,
    )
