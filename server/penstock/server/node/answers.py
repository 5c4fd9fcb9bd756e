"""What workers answer: batches and plans into the books, failures to those who wait."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from penstock.server.node.audit import Audit
from penstock.server.node.channel import Message, Misspoken
from penstock.server.node.crew import Crew
from penstock.server.node.dispatch import Dispatch
from penstock.server.node.life import Life
from penstock.server.node.observer import Observer
from penstock.server.node.process import Ticket, WorkerProcess
from penstock.server.node.quarantine import Quarantine
from penstock.server.node.shelf import Shelf
from penstock.server.pipeline.line import MAX_EMPTIED, only_padding
from penstock.server.store.base import SnapshotRecord
from penstock.wire.errors import ERRORS, Internal, LogDiverged, PenstockError

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
        life: Life,
        observer: Observer,
    ) -> None:
        self._dispatch, self._crew, self._shelf = dispatch, crew, shelf
        self._audit, self._quarantine, self._life = audit, quarantine, life
        self._observer = observer
        self.drained: Callable[[WorkerProcess], None]
        self.is_draining: Callable[[WorkerProcess], bool]

    def hear(self, worker: WorkerProcess, message: Message) -> None:
        """Act upon a message, whose form was checked."""
        try:
            if "cost" in message:
                cost = message["cost"]
                self._dispatch.logs[cost["job"]].note_read(cost["read_bytes"])
                self._observer.worked(**cost)
            if "counted" in message:
                self._counted(message["counted"])
            match message["op"]:
                case "ready":
                    self._ready(worker)
                case "set_up":
                    self._dispatch.was_set_up(worker)
                case "done":
                    self._done(worker, message)
                case "planned":
                    self._planned(worker, message)
                case "failed":
                    self._failed(worker, message)
                case "verified":
                    self._audit.made_twice(message["check"], message["blobs"][0])
                case "verdict":
                    self._quarantine.asked(worker, message)
                case "snapshots":
                    self._snapshots(worker, message)
                case "warning":
                    log.warning(message["text"], worker=worker.number)
                case other:
                    raise Misspoken(f"an answer {other!r}, which nobody reads")
        except Misspoken as error:
            worker.misspoke(error)
        except Exception as error:
            self._life.fatal(error)
        self._dispatch.schedule()

    def _counted(self, counted: Message) -> None:
        if counted["lane"] >= self._dispatch.logs[counted["job"]].job.lanes:
            raise Misspoken(f"counts of lane {counted['lane']}, which there is not")
        self._observer.counted(**counted)

    def _ready(self, worker: WorkerProcess) -> None:
        self._crew.ready(worker)
        if all(one.ready for one in self._crew):
            self._dispatch.set_up_ahead()
        self._life.loop.call_later(GIVE_WAY_S, self._dispatch.end_giving_way)

    def _done(self, worker: WorkerProcess, message: Message) -> None:
        ticket = worker.answer(message["ticket"])
        header, plan, *snapshots = message["blobs"]
        nbytes, where = message["nbytes"], message["where"]
        span = None
        if where is not None:
            arena, at = where
            span = worker.take_span(arena, at, nbytes)
        if span is not None and (ticket is None or ticket.stale):
            span.free()
        if ticket is None:  # it was taken back before it was answered
            return
        if ticket.line is not None:
            ticket.line.busy -= 1
        if ticket.stale:
            ticket.log.back(ticket.entry)
            return
        if plan:
            ticket.log.remember_plan(ticket.lane, ticket.offset, plan)
        elif ticket.line is not None:  # it can be planned again by arithmetic
            ticket.lane.note_planned(ticket.offset)
        else:  # it was made from this very plan
            plan = ticket.lane.plans.get(ticket.offset, b"")
        job = ticket.log.job
        ticket.entry.tokens = max(0, message["counts"].get("tokens", 0))
        ticket.log.ready(ticket.entry, header, nbytes, span)
        self._observer.produced(job.name, nbytes, message["counts"])
        self._audit.made(worker, ticket, header, plan)
        if "libraries" in message:
            self._audit.note_libraries(job, message["libraries"])
        self._put_snapshots(ticket, message["snapshots"], snapshots)
        if message["emptied"] and ticket.lane.note_emptied(ticket.offset, MAX_EMPTIED):
            error = only_padding(job, ticket.lane.lane, ticket.offset)
            self._dispatch.stop(ticket.log, ticket.lane, error)

    def _planned(self, worker: WorkerProcess, message: Message) -> None:
        ticket = worker.answer(message["ticket"])
        if ticket is None:
            return
        plans = message["blobs"][: message["plans"]]
        ticket.lane.planning = False
        assert ticket.line is not None
        ticket.line.busy -= 1
        if ticket.stale:
            return
        ticket.line.next = ticket.offset + len(plans)
        if ticket.log.job.batcher.needs_sizes:
            ticket.lane.planned_by = worker.number
        if message["broken"]:  # the next plan failed: the line's state cannot be trusted
            self._dispatch.close_line(ticket.lane, ticket.line)
        for ahead, plan in enumerate(plans):
            ticket.log.remember_plan(ticket.lane, ticket.offset + ahead, plan)
        self._put_snapshots(ticket, message["snapshots"], message["blobs"][len(plans) :])

    def _put_snapshots(self, ticket: Ticket, offsets: list[int], blobs: list[bytes]) -> None:
        if ticket.lane.error is not None:
            return
        log_id, lane = ticket.log.job.log_id, ticket.lane.lane
        for offset, data in zip(offsets, blobs, strict=True):
            self._shelf.put(SnapshotRecord(log_id, lane, offset, data))

    def _failed(self, worker: WorkerProcess, message: Message) -> None:
        error = ERRORS.get(message["code"], Internal)(message["message"], **message["fields"])
        match message["of"]:
            case "snapshot":
                log.error("a worker cannot say where its lines are", error=error.message)
                self.drained(worker)
            case "verify":
                log.warning(
                    "a batch could not be made twice", job=message["job"], error=error.message
                )
            case "open":
                self._dispatch.failed_open(worker, message["job"], message["line"], error)
            case "job":
                self._dispatch.failed_open(worker, message["job"], None, error)
            case _:
                ticket = worker.answer(message["ticket"])
                if ticket is not None:
                    self._failed_ticket(ticket, error)

    def _failed_ticket(self, ticket: Ticket, error: PenstockError) -> None:
        one, lane = ticket.log, ticket.lane
        if ticket.line is not None:
            ticket.line.busy -= 1
            # Its state may be in the middle of something.
            self._dispatch.close_line(lane, ticket.line)
        if ticket.plans:
            lane.planning = False
        if ticket.stale:
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

    def _snapshots(self, worker: WorkerProcess, message: Message) -> None:
        """Where every line of a draining worker stands."""
        if not self.is_draining(worker):
            raise Misspoken("it says where its lines are, and nobody asked")
        numbers: dict[int, int] = dict(message["lines"])
        blobs = dict(zip(numbers, message["blobs"], strict=True))
        for one in self._dispatch.logs.values():
            for lane in one.lanes:
                for line in lane.lines:
                    if line.worker == worker.number and line.number in blobs and lane.error is None:
                        self._shelf.put_last(
                            SnapshotRecord(
                                one.job.log_id, lane.lane, numbers[line.number], blobs[line.number]
                            )
                        )
        self.drained(worker)


__all__ = ["Answers"]
