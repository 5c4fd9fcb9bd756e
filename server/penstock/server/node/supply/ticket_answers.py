"""Answers to tickets: batches and plans go into the ledger, failures to the readers that wait."""

from __future__ import annotations

import structlog

from penstock.server.node.protocol.failures import error_of
from penstock.server.node.protocol.messages import Done, Planned, Snapshot, TicketFailed
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.audit import Audit
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.node.supply.witnesses import Witnesses
from penstock.server.node.supply.worker_process import Ticket, WorkerProcess
from penstock.server.pipeline.line import MAX_EMPTIED, only_padding
from penstock.server.store.records import SnapshotRecord
from penstock.wire.errors import LogDiverged, PastEnd

logger = structlog.get_logger("penstock.node")

CANNOT_BE_MADE = "a batch cannot be made"
"""What the log says of an error that readers are told, too."""


class Answers:
    """Takes the answers of tickets.

    Args:
        dispatch: Which gave them out.
        snapshots: Takes the snapshots that come with answers.
        audit: Told of every batch.
        witnesses: The same.
        observer: Told what is made.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        snapshots: SnapshotWriter,
        audit: Audit,
        witnesses: Witnesses,
        observer: Observer,
    ) -> None:
        self._witnesses = witnesses
        self._dispatch, self._lines, self._snapshots = dispatch, dispatch.lines, snapshots
        self._audit, self._observer = audit, observer

    def done(self, worker: WorkerProcess, message: Done) -> None:
        """A batch was made: it is ready for all readers that wait for it."""
        ticket = worker.answer(message.ticket)
        nbytes, body_bytes, span = 0, 0, None
        if message.body is not None:
            nbytes, body_bytes = message.body.nbytes, message.body.completed_bytes
            span = worker.take_span(message.body)
        if span is not None and (ticket is None or ticket.stale):
            span.free()
        if ticket is None:  # it was taken back before it was answered
            return
        if ticket.line is not None:
            ticket.line.note_answered()
        if ticket.stale:
            ticket.log.back(ticket.entry)
            return
        plan = message.plan
        if plan is not None:
            ticket.lane.remember_plan(ticket.offset, plan)
        elif ticket.line is not None:  # it can be planned again by arithmetic
            ticket.lane.note_planned(ticket.offset)
        else:  # it was made from this very plan
            plan = ticket.lane.plans.get(ticket.offset, b"")
        job = ticket.log.job
        ticket.entry.tokens = max(0, message.counts.get("tokens", 0))
        ticket.log.ready(ticket.entry, message.header, nbytes, body_bytes, span)
        self._observer.produced(job.name, nbytes, message.counts)
        if message.exits:
            self._observer.left_out(job.name, message.exits)
        self._audit.made(worker, ticket, message.header, plan or b"")
        self._witnesses.made(ticket.log, ticket.entry)
        self._put_snapshots(ticket, message.snapshots)
        self._reached(ticket, ticket.offset + 1)
        if message.emptied and ticket.lane.note_emptied(ticket.offset, MAX_EMPTIED):
            error = only_padding(job, ticket.lane.lane, ticket.offset)
            self._dispatch.stop(ticket.log, ticket.lane, ticket.offset + 1, error)

    def planned(self, worker: WorkerProcess, message: Planned) -> None:
        """Batches were planned, for any worker to make."""
        ticket = worker.answer(message.ticket)
        if ticket is None:
            return
        ticket.lane.note_not_planning()
        assert ticket.line is not None
        ticket.line.note_answered()
        if ticket.stale:
            return
        ticket.line.next = ticket.offset + len(message.plans)
        if ticket.log.job.needs_sizes(ticket.lane.lane):
            ticket.lane.planned_by = worker.number
        if message.broken:  # the next plan failed: the line's state cannot be trusted
            self._lines.close(ticket.lane, ticket.line)
        for ahead, plan in enumerate(message.plans):
            ticket.lane.remember_plan(ticket.offset + ahead, plan)
        self._put_snapshots(ticket, message.snapshots)
        self._reached(ticket, ticket.offset + len(message.plans))

    def _reached(self, ticket: Ticket, batches: int) -> None:
        """Note that a lane holds so many batches at least."""
        try:
            ticket.log.reached(ticket.lane.lane, batches)
        except LogDiverged as error:
            self._dispatch.diverged(ticket.log.job.log_id, ticket.lane.lane, error)

    def _put_snapshots(self, ticket: Ticket, snapshots: tuple[Snapshot, ...]) -> None:
        if ticket.lane.error is not None:
            return
        log_id, lane = ticket.log.job.log_id, ticket.lane.lane
        for offset, data in snapshots:
            self._snapshots.put(SnapshotRecord(log_id, lane, offset, data))

    def failed(self, worker: WorkerProcess, message: TicketFailed) -> None:
        """A batch cannot be planned or made: the readers that wait are told."""
        ticket, error = worker.answer(message.ticket), error_of(message)
        if ticket is None:
            return
        log, lane = ticket.log, ticket.lane
        if ticket.line is not None:
            ticket.line.note_answered()
            # Its state may be in the middle of something.
            self._lines.close(lane, ticket.line)
        if ticket.plans:
            lane.note_not_planning()
        if ticket.stale or (isinstance(error, PastEnd) and lane.has_ended(ticket.offset)):
            log.back(ticket.entry)
            return
        if isinstance(error, LogDiverged):
            self._dispatch.diverged(log.job.log_id, lane.lane, error)
            log.failed(ticket.entry, error)
            return
        logger.error(
            CANNOT_BE_MADE,
            job=log.job.name,
            lane=lane.lane,
            offset=ticket.offset,
            code=error.code,
            error=error.message,
            **({"traceback": error.traceback} if error.traceback else {}),
        )
        self._observer.failed(log.job.name, error.code)
        log.failed(ticket.entry, error)
