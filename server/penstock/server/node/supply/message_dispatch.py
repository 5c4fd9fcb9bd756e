"""Receives every message of every worker, and passes it to the part that it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import structlog

from penstock.server.node.protocol.channel import ProtocolError
from penstock.server.node.protocol.failures import error_of
from penstock.server.node.protocol.messages import (
    Cost,
    CountsSaid,
    Done,
    FromWorker,
    GoneArena,
    JobFailed,
    LaneEnds,
    Libraries,
    LineFailed,
    NewArena,
    Planned,
    QuarantineItem,
    Ready,
    SetUp,
    Snapshots,
    SnapshotsFailed,
    TicketFailed,
    Verified,
    VerifyFailed,
    Warned,
)
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.audit import Audit
from penstock.server.node.supply.counting import LaneCounting
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.lane_ends import Ends
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.quarantine import Quarantine
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.node.supply.ticket_answers import Answers
from penstock.server.node.supply.witnesses import Witnesses
from penstock.server.node.supply.worker_pool import WorkerPool
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.store.records import SnapshotRecord

logger = structlog.get_logger("penstock.node")

GIVE_WAY_S = 5.0
"""How long after a worker has ended over a batch other batches go before it."""


class MessageDispatch:
    """Receives every message of every worker.

    Args:
        dispatch: Told of lines and jobs that could not be opened.
        pool: The workers.
        answers: Takes what tickets bring.
        snapshots: Where the snapshots go of a worker that is drained.
        audit: Told of batches that were made twice.
        witnesses: Told with what workers compute.
        quarantine: Asked for verdicts.
        ends: Told where lanes end.
        life: The node's.
        observer: Told what batches cost.

    Attributes:
        drained: Called with a worker that has said where its lines are, or cannot say it.
        is_draining: Tells whether a worker was asked where its lines are, as the node drains.
        counting: Told where the lines of a worker are, if it has asked.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        pool: WorkerPool,
        answers: Answers,
        snapshots: SnapshotWriter,
        audit: Audit,
        witnesses: Witnesses,
        quarantine: Quarantine,
        ends: Ends,
        life: Life,
        observer: Observer,
    ) -> None:
        self._dispatch, self._pool, self._answers = dispatch, pool, answers
        self._snapshots, self._witnesses = snapshots, witnesses
        self._audit, self._quarantine, self._life = audit, quarantine, life
        self._ends, self._observer = ends, observer
        self.drained: Callable[[WorkerProcess], None]
        self.is_draining: Callable[[WorkerProcess], bool]
        self.counting: LaneCounting

    def hear(self, worker: WorkerProcess, message: FromWorker) -> None:
        """Act upon a message that was checked against the worker's tickets."""
        try:
            self._hear(worker, message)
        except ProtocolError as error:
            worker.misspoke(error)
        except Exception as error:
            self._life.fatal(error)
        self._dispatch.schedule()

    def _hear(self, worker: WorkerProcess, message: FromWorker) -> None:
        dispatch = self._dispatch
        match message:
            case Done():
                self._answers.done(worker, message)
            case Planned():
                self._answers.planned(worker, message)
            case Cost():
                self._cost(message)
            case CountsSaid():
                self._counted(message)
            case LaneEnds():
                self._lane_ends(message)
            case TicketFailed():
                self._answers.failed(worker, message)
            case LineFailed():
                dispatch.failed_open(worker, message.log_id, message.line, error_of(message))
            case JobFailed():
                dispatch.failed_open(worker, message.log_id, None, error_of(message))
            case VerifyFailed():
                text = "a batch could not be made twice"
                logger.warning(text, job=dispatch.name(message.log_id), error=message.message)
            case SnapshotsFailed():
                logger.error("a worker cannot say where its lines are", error=message.message)
                if self.counting.awaits(worker):
                    self.counting.lines_stand(worker, ())
                else:
                    self.drained(worker)
            case Verified():
                self._audit.made_twice(message.check, message.header)
            case Libraries():
                log = dispatch.logs[message.log_id]
                self._audit.note_libraries(log.job, message.versions)
                self._witnesses.computes_with(log, message.versions)
            case QuarantineItem():
                self._quarantine.asked(worker, message)
            case Snapshots():
                self._take_snapshots(worker, message)
            case Warned():
                logger.warning(message.text, worker=worker.number)
            case Ready():
                self._ready(worker)
            case SetUp():
                dispatch.was_set_up(worker)
            case NewArena() | GoneArena():
                raise ProtocolError("an arena, which its process has taken in")
            case other:
                assert_never(other)

    def _cost(self, cost: Cost) -> None:
        log = self._dispatch.logs[cost.log_id]
        log.assignment.note_read(cost.read_bytes)
        told = (cost.batches, cost.stages_s, cost.read_bytes, cost.media_bytes, cost.drawn)
        self._observer.worked(log.job.name, *told)
        if cost.video_frames:
            self._observer.decoded(log.job.name, cost.video_frames, cost.media_cpu_s)
        if cost.retries:
            self._observer.retried(log.job.name, cost.retries)

    def _counted(self, counted: CountsSaid) -> None:
        job = self._dispatch.logs[counted.log_id].job
        if counted.lane >= job.lanes:
            raise ProtocolError(f"counts of lane {counted.lane}, which there is not")
        self._observer.counted(job.name, counted.lane, counted.counters, counted.before)

    def _lane_ends(self, message: LaneEnds) -> None:
        log = self._dispatch.logs[message.log_id]
        if message.lane >= log.job.lanes or log.job.epochs is None:
            raise ProtocolError(f"an end of lane {message.lane}, which there is not")
        self._ends.found(log, message.lane, message.batches, message.in_vain)

    def _ready(self, worker: WorkerProcess) -> None:
        self._pool.ready(worker)
        if all(worker.ready for worker in self._pool):
            self._dispatch.set_up_ahead()
        self._life.loop.call_later(GIVE_WAY_S, self._dispatch.end_giving_way)

    def _take_snapshots(self, worker: WorkerProcess, message: Snapshots) -> None:
        """Keep where every line of a draining worker stands, unless a count has asked for that."""
        if self.counting.awaits(worker):  # it has asked first: a node that drains counts no more
            self.counting.lines_stand(worker, message.lines)
            return
        if not self.is_draining(worker):
            raise ProtocolError("it says where its lines are, and nobody asked")
        said = {row.line: row for row in message.lines}
        for log in self._dispatch.logs.values():
            log_id = log.job.log_id
            for lane in log.lanes:
                here = [line for line in lane.lines if line.worker == worker.number]
                for line in here if lane.error is None else ():
                    if (found := said.get(line.number)) is not None:
                        record = SnapshotRecord(log_id, lane.lane, found.offset, found.data)
                        self._snapshots.put_last(record)
        self.drained(worker)
