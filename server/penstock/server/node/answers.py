"""What workers answer: batches and plans into the books, failures to those who wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import structlog

from penstock.server.node.audit import Audit
from penstock.server.node.channel import Misspoken
from penstock.server.node.crew import Crew
from penstock.server.node.dispatch import Dispatch
from penstock.server.node.ends import Ends
from penstock.server.node.life import Life
from penstock.server.node.messages import (
    Cost,
    Counted,
    Done,
    Failed,
    FromWorker,
    JobFailed,
    Judge,
    LaneEnds,
    Libraries,
    LineFailed,
    NewArena,
    Planned,
    Ready,
    SetUp,
    Snapshot,
    Snapshots,
    SnapshotsFailed,
    TicketFailed,
    Verified,
    VerifyFailed,
    Warned,
)
from penstock.server.node.observer import Observer
from penstock.server.node.process import Ticket, WorkerProcess
from penstock.server.node.quarantine import Quarantine
from penstock.server.node.shelf import Shelf
from penstock.server.pipeline.line import MAX_EMPTIED, only_padding
from penstock.server.store.base import SnapshotRecord
from penstock.wire.errors import ERRORS, Internal, LogDiverged, PastEnd, PenstockError

log = structlog.get_logger("penstock.node")

GIVE_WAY_S = 5.0
"""How long after a worker has ended over a batch other batches go before it."""


class Answers:
    """Hears every message of every worker.

    Args:
        dispatch: Whose tickets are answered.
        crew: The workers.
        shelf: Where the snapshots go that come with answers.
        audit: Told of every batch.
        quarantine: Asked for verdicts.
        ends: Told where lanes end.
        life: The node's.
        observer: Told what is made and what it costs.

    Attributes:
        drained: Called with a worker that has said where its lines are, or cannot say it.
        is_draining: Tells whether a worker was asked where its lines are.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        crew: Crew,
        shelf: Shelf,
        audit: Audit,
        quarantine: Quarantine,
        ends: Ends,
        life: Life,
        observer: Observer,
    ) -> None:
        self._dispatch, self._crew, self._shelf = dispatch, crew, shelf
        self._audit, self._quarantine, self._life = audit, quarantine, life
        self._ends, self._observer = ends, observer
        self.drained: Callable[[WorkerProcess], None]
        self.is_draining: Callable[[WorkerProcess], bool]

    def hear(self, worker: WorkerProcess, message: FromWorker) -> None:
        """Act upon a message, which was held against what the worker was asked."""
        try:
            self._hear(worker, message)
        except Misspoken as error:
            worker.misspoke(error)
        except Exception as error:
            self._life.fatal(error)
        self._dispatch.schedule()

    def _hear(self, worker: WorkerProcess, message: FromWorker) -> None:
        dispatch = self._dispatch
        match message:
            case Done():
                self._done(worker, message)
            case Planned():
                self._planned(worker, message)
            case Cost():
                self._cost(message)
            case Counted():
                self._counted(message)
            case LaneEnds():
                self._lane_ends(message)
            case TicketFailed():
                self._ticket_failed(worker, message)
            case LineFailed():
                dispatch.failed_open(worker, message.job, message.line, _error(message))
            case JobFailed():
                dispatch.failed_open(worker, message.job, None, _error(message))
            case VerifyFailed():
                text = "a batch could not be made twice"
                log.warning(text, job=message.job, error=message.message)
            case SnapshotsFailed():
                log.error("a worker cannot say where its lines are", error=message.message)
                self.drained(worker)
            case Verified():
                self._audit.made_twice(message.check, message.header)
            case Libraries():
                self._audit.note_libraries(dispatch.logs[message.job].job, message.versions)
            case Judge():
                self._quarantine.asked(worker, message)
            case Snapshots():
                self._snapshots(worker, message)
            case Warned():
                log.warning(message.text, worker=worker.number)
            case Ready():
                self._ready(worker)
            case SetUp():
                dispatch.was_set_up(worker)
            case NewArena():
                raise Misspoken("an arena, which its process has taken in")
            case other:
                assert_never(other)

    def _cost(self, cost: Cost) -> None:
        self._dispatch.logs[cost.job].note_read(cost.read_bytes)
        self._observer.worked(cost.job, cost.batches, cost.stages_s, cost.read_bytes, cost.drawn)

    def _counted(self, counted: Counted) -> None:
        if counted.lane >= self._dispatch.logs[counted.job].job.lanes:
            raise Misspoken(f"counts of lane {counted.lane}, which there is not")
        self._observer.counted(counted.job, counted.lane, counted.counters, counted.before)

    def _lane_ends(self, message: LaneEnds) -> None:
        books = self._dispatch.logs[message.job]
        if message.lane >= books.job.lanes or books.job.epochs is None:
            raise Misspoken(f"an end of lane {message.lane}, which there is not")
        self._ends.found(books, message.lane, message.batches)

    def _reached(self, ticket: Ticket, batches: int) -> None:
        """Note that a lane holds so many batches at least."""
        try:
            ticket.log.reached(ticket.lane.lane, batches)
        except LogDiverged as error:
            self._dispatch.diverged(ticket.log.job.log_id, ticket.lane.lane, error)

    def _ready(self, worker: WorkerProcess) -> None:
        self._crew.ready(worker)
        if all(one.ready for one in self._crew):
            self._dispatch.set_up_ahead()
        self._life.loop.call_later(GIVE_WAY_S, self._dispatch.end_giving_way)

    def _done(self, worker: WorkerProcess, message: Done) -> None:
        ticket = worker.answer(message.ticket)
        nbytes, span = 0, None
        if message.body is not None:
            nbytes = message.body.nbytes
            span = worker.take_span(message.body)
        if span is not None and (ticket is None or ticket.stale):
            span.free()
        if ticket is None:  # it was taken back before it was answered
            return
        if ticket.line is not None:
            ticket.line.busy -= 1
        if ticket.stale:
            ticket.log.back(ticket.entry)
            return
        plan = message.plan
        if plan is not None:
            ticket.log.remember_plan(ticket.lane, ticket.offset, plan)
        elif ticket.line is not None:  # it can be planned again by arithmetic
            ticket.lane.note_planned(ticket.offset)
        else:  # it was made from this very plan
            plan = ticket.lane.plans.get(ticket.offset, b"")
        job = ticket.log.job
        ticket.entry.tokens = max(0, message.counts.get("tokens", 0))
        ticket.log.ready(ticket.entry, message.header, nbytes, span)
        self._observer.produced(job.name, nbytes, message.counts)
        self._audit.made(worker, ticket, message.header, plan or b"")
        self._put_snapshots(ticket, message.snapshots)
        self._reached(ticket, ticket.offset + 1)
        if message.emptied and ticket.lane.note_emptied(ticket.offset, MAX_EMPTIED):
            error = only_padding(job, ticket.lane.lane, ticket.offset)
            self._dispatch.stop(ticket.log, ticket.lane, error)

    def _planned(self, worker: WorkerProcess, message: Planned) -> None:
        ticket = worker.answer(message.ticket)
        if ticket is None:
            return
        ticket.lane.planning = False
        assert ticket.line is not None
        ticket.line.busy -= 1
        if ticket.stale:
            return
        ticket.line.next = ticket.offset + len(message.plans)
        if ticket.log.job.batcher.needs_sizes:
            ticket.lane.planned_by = worker.number
        if message.broken:  # the next plan failed: the line's state cannot be trusted
            self._dispatch.close_line(ticket.lane, ticket.line)
        for ahead, plan in enumerate(message.plans):
            ticket.log.remember_plan(ticket.lane, ticket.offset + ahead, plan)
        self._put_snapshots(ticket, message.snapshots)
        self._reached(ticket, ticket.offset + len(message.plans))

    def _put_snapshots(self, ticket: Ticket, snapshots: tuple[Snapshot, ...]) -> None:
        if ticket.lane.error is not None:
            return
        log_id, lane = ticket.log.job.log_id, ticket.lane.lane
        for offset, data in snapshots:
            self._shelf.put(SnapshotRecord(log_id, lane, offset, data))

    def _ticket_failed(self, worker: WorkerProcess, message: TicketFailed) -> None:
        ticket, error = worker.answer(message.ticket), _error(message)
        if ticket is None:
            return
        one, lane = ticket.log, ticket.lane
        if ticket.line is not None:
            ticket.line.busy -= 1
            # Its state may be in the middle of something.
            self._dispatch.close_line(lane, ticket.line)
        if ticket.plans:
            lane.planning = False
        if ticket.stale or (isinstance(error, PastEnd) and one.has_ended(lane, ticket.offset)):
            one.back(ticket.entry)
            return
        if isinstance(error, LogDiverged):
            self._dispatch.diverged(one.job.log_id, lane.lane, error)
            one.failed(ticket.entry, error)
            return
        log.error(
            "a batch cannot be made",
            job=one.job.name,
            lane=lane.lane,
            offset=ticket.offset,
            code=error.code,
            error=error.message,
            **({"traceback": error.traceback} if error.traceback else {}),
        )
        self._observer.failed(one.job.name, error.code)
        one.failed(ticket.entry, error)

    def _snapshots(self, worker: WorkerProcess, message: Snapshots) -> None:
        """Keep where every line of a draining worker stands."""
        if not self.is_draining(worker):
            raise Misspoken("it says where its lines are, and nobody asked")
        said = {one.line: one for one in message.lines}
        for books in self._dispatch.logs.values():
            log_id = books.job.log_id
            for lane in books.lanes:
                here = [one for one in lane.lines if one.worker == worker.number]
                for line in here if lane.error is None else ():
                    if (found := said.get(line.number)) is not None:
                        record = SnapshotRecord(log_id, lane.lane, found.offset, found.data)
                        self._shelf.put_last(record)
        self.drained(worker)


def _error(message: Failed) -> PenstockError:
    """Return the error that a message carries."""
    return ERRORS.get(message.code, Internal).with_fields(message.message, message.fields)


__all__ = ["Answers"]
