"""A worker: it holds lines, makes the batches it is told to, and never picks the next.

It reads no job file: the server process sends what it needs to build a job. How its process begins
is in `penstock.server.node.workers.worker_main`.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Sequence

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.media.media_cpu import COPY, spending, take_media_cpu
from penstock.server.node.protocol.failures import failure_of
from penstock.server.node.protocol.message_port import MessagePort
from penstock.server.node.protocol.messages import (
    Body,
    CloseLine,
    Cost,
    Done,
    Free,
    FromServer,
    FromWorker,
    ItemQuarantined,
    KnowJob,
    Learn,
    Libraries,
    Make,
    MakeSooner,
    OpenLine,
    PlanAhead,
    Planned,
    Produce,
    Refused,
    SetUp,
    Snapshot,
    Snapshots,
    TakeSnapshots,
    Verified,
    Verify,
    Warned,
)
from penstock.server.node.workers.known_jobs import Build, Known, KnownJobs
from penstock.server.node.workers.link import Link, ServerGone
from penstock.server.node.workers.open_lines import OpenLines, changes_of, snapshot_if_due
from penstock.server.node.workers.outbox import HOLD_S
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.kept_items import kept_bytes
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.writing import MadeBatch
from penstock.server.processes.child import MARK, MAX_MESSAGE, end_fork
from penstock.server.processes.page import Page
from penstock.server.usercode import libraries
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import Internal, PenstockError
from penstock.wire.plain import clean_text


class Worker:
    """The worker's side: answers tickets one after another.

    Args:
        port: To the server process.
        page: Where it notes what it does.
        build: Builds a job from its definition.
        hold_s: How long the answer of a cheap ticket may wait for the next; 0 = none waits.

    Attributes:
        link: What it hears from the server process, and says to it.
        lines: The lines that it holds.

    Glossary:
        worker: A process of a node that plans and makes.
    """

    def __init__(
        self,
        port: MessagePort[FromWorker, FromServer],
        page: Page,
        *,
        build: Build,
        hold_s: float = HOLD_S,
    ) -> None:
        self.page, self._pid = page, os.getpid()
        self.link = Link(port, self._check_fork, hold_s)
        self.jobs = KnownJobs(self._new_items, lambda: self._progress("setup", None), build)
        self.lines = OpenLines(self.jobs, self._progress, self.link.say)
        self._unreported = 0  # batches whose cost was not told yet
        # What it is doing, and for whom.
        self._log_text: str | None = None
        self.lane: int | None = None
        self.line: int | None = None
        self.careful = False

    def run(self) -> None:
        """Answer until the server process closes its end; `Link.begin` comes before."""
        try:
            while True:
                if not self.link.inbox:
                    self.page.note("idle")
                message = self.link.next()
                if message is None:
                    return
                self.handle(message)
        finally:
            self.link.arenas.close()

    def handle(self, message: FromServer) -> None:
        """Do what one message asks; whatever fails is answered, and never ends the worker."""
        try:
            self._do(message)
        except PenstockError as error:
            self.link.say(*self._cost(), failure_of(message, error))
        except ServerGone:
            raise
        except BaseException as error:  # whatever a role raises, the worker is there for others
            text = "".join(traceback.format_tb(error.__traceback__)) + error_line(error)
            bug = Internal(f"a bug in penstock: {error_line(error)}", traceback=text)
            self.link.say(*self._cost(), failure_of(message, bug))

    def _do(self, message: FromServer) -> None:
        match message:
            case Produce(log_id=log_id, lane=lane, line=line):
                self._begin(log_id, lane, line, careful=message.careful)
                self._produce(message)
            case Make(log_id=log_id, lane=lane):
                self._begin(log_id, lane, careful=message.careful)
                self._make(message)
            case PlanAhead(log_id=log_id, lane=lane, line=line):
                self._begin(log_id, lane, line, careful=message.careful)
                self._plan(message)
            case KnowJob() | Learn():
                self._begin(message.log_id)
                self._know(message)
            case OpenLine(log_id=log_id, lane=lane, line=line):
                self._begin(log_id, lane, line)
                self.lines.open(message)
            case CloseLine():
                self.lines.close(message.line)
            case Verify(log_id=log_id, lane=lane):
                self._begin(log_id, lane)
                self._verify(message)
            case TakeSnapshots():
                self._begin(None)
                self._take_snapshots()
            case Free() | MakeSooner():
                pass  # what is free was given back on receipt; a retry looks for what hurries it
            case ItemQuarantined() | Refused():
                raise Internal("an answer about a verdict that nobody waits for")

    def _begin(
        self,
        log_id: bytes | None,
        lane: int | None = None,
        line: int | None = None,
        *,
        careful: bool = False,
    ) -> None:
        """Note for whom the next thing is done."""
        if log_id != self.link.log_id:
            self.link.log_id = log_id
            self._log_text = None if log_id is None else log_id.hex()
        self.lane, self.line = lane, line
        if careful is not self.careful:
            self.careful = careful
            for known in self.jobs:
                known.items.careful = careful

    # --- jobs ---

    def _know(self, message: KnowJob | Learn) -> None:
        """Build a job, and learn its verdicts; set its roles up, where that is asked for."""
        self.jobs.hear(message)
        known = self.jobs[message.log_id]
        if isinstance(message, KnowJob) and message.set_up:
            known.items.set_up()
            self.link.say(SetUp())

    def _new_items(self, job: Job, message: KnowJob) -> Items:
        def insert(verdict: Verdict) -> Verdict:
            return self.link.quarantine(job.log_id, self.line, verdict)

        items = Items(job, VerdictBook((), insert), self._progress)
        items.may_wait, items.careful = self.link.may_wait, self.careful
        items.kept_bytes = kept_bytes(message.workers)
        # The server process logs it: a worker's own words would stand between JSON lines.
        items.warn = lambda text: self.link.say(Warned(clean_text(text, MAX_MESSAGE)))
        return items

    # --- tickets ---

    def _produce(self, message: Produce) -> None:
        """Plan and make the batch at an offset of a line."""
        line, plan, snapshots = self.lines.plan_at(message.line, message.offset)
        made = line.make(plan, blank=message.blank)
        reported_plan = None  # where arithmetic leads to any plan, nobody needs this one
        if not line.planner.can_seek():
            reported_plan = _plan_bytes(made.plan)
            snapshots += snapshot_if_due(line)
        self._done(message.ticket, made, reported_plan, snapshots, line)

    def _make(self, message: Make) -> None:
        """Make a batch from its plan."""
        known = self.jobs[message.log_id]
        coming = self._coming(known) if known.items.reads_ahead else []
        made = known.maker.make(_plan_of(message.plan), None, coming, blank=message.blank)
        self._done(message.ticket, made, None, [], None)

    def _plan(self, message: PlanAhead) -> None:
        """Plan some batches ahead, for any worker to make."""
        line, first, snapshots = self.lines.plan_at(message.line, message.offset)
        plans, broken, after = self.lines.plan_ahead(line, message.count - 1)
        line.planner.forget()  # whoever makes them fetches what they are made of
        told = tuple(map(_plan_bytes, (first, *plans)))
        answer = Planned(message.ticket, told, broken, (*snapshots, *after))
        self.link.say(*self._cost(), *changes_of(line), answer)

    def _verify(self, message: Verify) -> None:
        """Make a batch once more and answer its header: it holds the checksum of the body."""
        known = self.jobs[message.log_id]
        if message.plan is not None:
            plan = _plan_of(message.plan)
        else:
            line = Line(known.job, message.lane, known.items)
            line.skip_to(message.offset)
            plan = line.advance()
        made = known.maker.make(plan, blank=message.blank)
        header = made.write(memoryview(bytearray(made.nbytes)))
        self.link.say(*self._cost(), Verified(message.check, header))

    def _take_snapshots(self) -> None:
        """Answer the snapshots of every line, as the server drains."""
        self.link.say(Snapshots(self.lines.snapshots()))

    def _coming(self, known: Known) -> list[ItemRef]:
        """Return the items of the next batches of a job to be made here."""
        self.link.take_in(wait=False)
        coming: list[ItemRef] = []
        for each in self.link.inbox:
            if len(coming) >= known.items.items_ahead:
                break
            if isinstance(each, Make) and each.log_id == known.job.log_id:
                coming += _items_of(_plan_of(each.plan))
        return list(dict.fromkeys(coming))

    # --- answers ---

    def _done(
        self,
        ticket: int,
        made: MadeBatch,
        plan: bytes | None,  # None: the server process has it, or needs none
        snapshots: Sequence[Snapshot],
        line: Line | None,
    ) -> None:
        span = None
        if made.nbytes:
            arena, start = self.link.arenas.take(made.nbytes)
            body = arena.view[start : start + made.nbytes]
            with spending(COPY):
                header = made.write(body)
            body.release()
            span = Body(arena.number, start, made.nbytes, made.body_bytes)
        else:
            header = made.write(memoryview(bytearray()))
        told = (made.counts, made.emptied, tuple(snapshots), made.exits)
        answer = Done(ticket, span, header, plan, *told)
        before = [] if line is None else changes_of(line)
        log_id = self.link.log_id
        assert log_id is not None
        known = self.jobs[log_id]
        if not known.libraries_reported:
            known.libraries_reported = True  # the first batch has imported what the job needs
            before.append(Libraries(log_id, libraries.in_use()))
        self._unreported += 1
        # Where it is careful, what comes next may be what ended a worker here.
        hold = self.link.may_hold() and not self.careful
        if not hold:
            before += self._cost()
        self.link.say(*before, answer, hold=hold)

    def _cost(self) -> list[FromWorker]:
        """Return what batches cost since the last time, all of the job at hand.

        An answer is held only where the next ticket is of the same job: whatever answers that one
        tells the cost of both, or another job would be charged for it.
        """
        if not self._unreported:
            return []
        log_id = self.link.log_id
        assert log_id is not None
        known, batches = self.jobs[log_id], self._unreported
        self._unreported, drawn, known.drawn = 0, known.drawn, 0
        read = known.job.read_bytes(), known.job.media_bytes()
        retries, spent_s = known.items.take_retries(), self.page.take_spent()
        # Taken also of jobs without videos, or the next one would be charged for them.
        frames, cpu_s = known.job.video_frames(), take_media_cpu()
        video = dict(frames), cpu_s if frames else {}
        return [Cost(log_id, batches, spent_s, *read, drawn, retries, *video)]

    def _progress(self, stage: str, item: ItemRef | None) -> None:
        if not (MARK and MARK[0]):  # asked here: every batch comes by several times
            self._check_fork()
        self.page.note(stage, self._log_text, self.lane, item)

    def _check_fork(self) -> None:
        """End this process if a role has forked it and it came back out of the role."""
        built = (known.job for known in self.jobs)
        end_fork(self._pid, [job.name for job in built if job.log_id == self.link.log_id])


# Made once: `json.dumps` with separators makes one for each plan. Rows hold themselves nowhere.
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def _plan_bytes(plan: BatchPlan) -> bytes:
    return _encoder.encode(plan.to_json()).encode()


def _plan_of(data: bytes) -> BatchPlan:
    return BatchPlan.from_json(json.loads(data))


def _items_of(plan: BatchPlan) -> list[ItemRef]:
    return [ref.item for row in plan.rows for ref in row]
