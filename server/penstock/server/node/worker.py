"""A worker process: it holds lines, makes the batches it is told to, and never picks the next.

It is started as `python -m penstock.server.node.worker FD PAGE_FD FILES_FD PARENT`, with a fixed
environment (`penstock.server.environment`), before or after gRPC runs in the parent: it is a fresh
program, never a fork. It reads no job file: the server process sends what it needs to build a job.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Sequence

from penstock.server.core import libraries
from penstock.server.core.frames import error_line
from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.job import Job
from penstock.server.jobs.definition import rebuild
from penstock.server.node.arena import Arenas, ArenaWriter
from penstock.server.node.channel import FROM_SERVER
from penstock.server.node.child import MARK, MAX_MESSAGE, die_with_parent, is_forked, told
from penstock.server.node.known import Build, Known, KnownJobs
from penstock.server.node.memory import Descriptor
from penstock.server.node.messages import (
    Body,
    CloseLine,
    Cost,
    Counted,
    Done,
    Free,
    FromServer,
    FromWorker,
    Hurry,
    JobFailed,
    Judge,
    Judged,
    KnowJob,
    LaneEnds,
    Learn,
    Libraries,
    LineFailed,
    LineSnapshot,
    Make,
    NewArena,
    OpenLine,
    Plan,
    Planned,
    Produce,
    Ready,
    Refused,
    SetUp,
    Snapshot,
    Snapshots,
    SnapshotsFailed,
    TakeSnapshots,
    TicketFailed,
    Verified,
    Verify,
    VerifyFailed,
    Warned,
)
from penstock.server.node.outbox import HOLD_S, Outbox
from penstock.server.node.page import Page
from penstock.server.node.port import Port, SocketPort
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.kept import KEPT_BYTES, NODE_KEPT_BYTES
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Made
from penstock.server.pipeline.verdicts import VerdictBook
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.errors import ERRORS, Internal, PastEnd, PenstockError, clean_text
from penstock.wire.malloc import keep_memory

_TICKETED = (Produce, Plan, Make)


class ServerGone(BaseException):
    """The server process has ended, and with it whoever wanted what this worker makes."""


class Worker:
    """The worker's side: answers tickets one after another.

    Args:
        port: To the server process.
        page: Where it notes what it does.
        build: Builds a job from its definition.
        hold_s: How long the answer of a cheap ticket may wait for the next; 0 = none waits.

    Attributes:
        inbox: What was heard and is not yet done.
        lines: The lines that it holds, by number.
    """

    def __init__(
        self,
        port: Port[FromWorker, FromServer],
        page: Page,
        *,
        build: Build = rebuild,
        hold_s: float = HOLD_S,
    ) -> None:
        self.port, self.page, self.pid = port, page, os.getpid()
        self.inbox: deque[FromServer] = deque()
        self.arenas = Arenas(self._announce)
        self.jobs = KnownJobs(self._new_items, lambda: self._progress("setup", None), build)
        self.lines: dict[int, Line] = {}
        self.broken: dict[int, Exception] = {}  # lines whose planner failed, until they are closed
        self._outbox = Outbox(port, hold_s)
        self._unreported = 0  # batches whose cost was not told yet
        # What it is doing, and for whom.
        self.log_id: bytes | None = None
        self._log_text: str | None = None
        self.lane: int | None = None
        self.line: int | None = None
        self.careful = False

    def run(self) -> None:
        """Answer until the server process closes its end."""
        self._outbox.start()
        self._say(Ready())
        while True:
            if not self.inbox:
                self.page.note("idle")
            message = self._next()
            if message is None:
                return
            self.handle(message)

    def handle(self, message: FromServer) -> None:
        """Do what one message asks; whatever fails is answered, and never ends the worker."""
        try:
            self._do(message)
        except PenstockError as error:
            self._fail(message, error)
        except ServerGone:
            raise
        except BaseException as error:  # whatever a role raises, the worker is there for others
            text = "".join(traceback.format_tb(error.__traceback__)) + error_line(error)
            self._fail(message, Internal(f"a bug in penstock: {error_line(error)}", traceback=text))

    def _do(self, message: FromServer) -> None:
        match message:
            case Produce(log_id=log_id, lane=lane, line=line):
                self._begin(log_id, lane, line, careful=message.careful)
                self._produce(message)
            case Make(log_id=log_id, lane=lane):
                self._begin(log_id, lane, careful=message.careful)
                self._make(message)
            case Plan(log_id=log_id, lane=lane, line=line):
                self._begin(log_id, lane, line, careful=message.careful)
                self._plan(message)
            case KnowJob() | Learn():
                self._begin(message.log_id)
                self._know(message)
            case OpenLine(log_id=log_id, lane=lane, line=line):
                self._begin(log_id, lane, line)
                self._open(message)
            case CloseLine():
                self._close(message.line)
            case Verify(log_id=log_id, lane=lane):
                self._begin(log_id, lane)
                self._verify(message)
            case TakeSnapshots():
                self._begin(None)
                self._take_snapshots()
            case Free() | Hurry():
                pass  # what is free was given back on receipt; a retry looks for what hurries it
            case Judged() | Refused():
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
        if log_id != self.log_id:
            self.log_id, self._log_text = log_id, None if log_id is None else log_id.hex()
        self.lane, self.line = lane, line
        if careful is not self.careful:
            self.careful = careful
            for known in self.jobs:
                known.items.careful = careful

    # --- jobs and lines ---

    def _know(self, message: KnowJob | Learn) -> None:
        """Build a job, and learn its verdicts; set its roles up, where that is asked for."""
        self.jobs.hear(message)
        known = self.jobs[message.log_id]
        if isinstance(message, KnowJob) and message.set_up:
            known.items.set_up()
            self._say(SetUp())

    def _new_items(self, job: Job, message: KnowJob) -> Items:
        def insert(verdict: Verdict) -> Verdict:
            return self._judge(job.log_id, verdict)

        items = Items(job, VerdictBook((), insert), self._progress)
        items.may_wait, items.careful = self._may_wait, self.careful
        items.kept_bytes = min(KEPT_BYTES, NODE_KEPT_BYTES // message.workers)
        # The server process logs it: a worker's own words would stand between JSON lines.
        items.warn = lambda text: self._say(Warned(clean_text(text, MAX_MESSAGE)))
        return items

    def _open(self, message: OpenLine) -> None:
        """Open a line, from a snapshot where there is one."""
        known = self.jobs[message.log_id]
        self._progress("setup", None)
        line = Line(known.job, message.lane, known.items, message.snapshot)
        self.lines[message.line] = line

    def _close(self, number: int) -> None:
        """Forget a line."""
        self.lines.pop(number, None)
        self.broken.pop(number, None)
        for known in self.jobs:
            if known.block_needs is not None and known.block_needs.close(number):
                _keep_blocks(known)

    # --- tickets ---

    def _produce(self, message: Produce) -> None:
        """Plan and make the batch at an offset of a line."""
        line, plan, snapshots = self._plan_at(message.line, message.offset)
        made = line.make(plan, blank=message.blank)
        plan_told = None  # where arithmetic leads to any plan, nobody needs this one
        if not line.planner.can_seek():
            plan_told = _plan_bytes(plan)
            snapshots += _snapshot_if_due(line)
        self._done(message.ticket, made, plan_told, snapshots, line)

    def _make(self, message: Make) -> None:
        """Make a batch from its plan."""
        known = self.jobs[message.log_id]
        coming = self._coming(known) if known.items.reads_ahead else []
        made = known.maker.make(_plan_of(message.plan), None, coming, blank=message.blank)
        self._done(message.ticket, made, None, [], None)

    def _plan(self, message: Plan) -> None:
        """Plan some batches ahead, for any worker to make."""
        line, first, snapshots = self._plan_at(message.line, message.offset)
        plans = [_plan_bytes(first)]
        snapshots += _snapshot_if_due(line)
        broken = False
        before = line.planner.counters["drawn"]
        while len(plans) < message.count:
            try:
                plan = line.planner.next()
            except PenstockError:
                # It fails by name when it is asked for itself; the plans before it are good.
                broken = True
                break
            if plan is None:
                break
            plans.append(_plan_bytes(plan))
            snapshots += _snapshot_if_due(line)
        self.jobs[message.log_id].drawn += line.planner.counters["drawn"] - before
        line.planner.forget()  # whoever makes them fetches what they are made of
        answer = Planned(message.ticket, tuple(plans), broken, tuple(snapshots))
        self._say(*self._cost(), *_counted(line), *_ended(line), answer)

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
        self._say(*self._cost(), Verified(message.check, header))

    def _take_snapshots(self) -> None:
        """Answer the snapshots of every line, as the server drains."""
        lines = self.lines.items()
        found = [LineSnapshot(number, at.offset, at.planner.snapshot()) for number, at in lines]
        self._say(Snapshots(tuple(found)))

    def _coming(self, known: Known) -> list[ItemRef]:
        """Return the items of the next batch of a job to be made here."""
        for later in self.inbox:
            if isinstance(later, Make) and later.log_id == known.job.log_id:
                plan = _plan_of(later.plan)
                return list(dict.fromkeys(ref.item for row in plan.rows for ref in row))
        return []

    def _plan_at(self, number: int, offset: int) -> tuple[Line, BatchPlan, list[Snapshot]]:
        """Return a line, its plan at an offset, and the snapshots of the way there.

        A planner that has failed may have changed half of its state, so no plan is taken from it
        any more: tickets that wait behind the failure fail with it, and the line is closed.
        """
        if number in self.broken:
            raise self.broken[number]
        line = self.lines[number]
        known = self.jobs[line.job.log_id]
        if known.block_needs is not None and known.block_needs.use(number, line.lane):
            _keep_blocks(known)
        try:
            planner = line.planner
            snapshots = self._skip(line, offset) if planner.offset != offset else []
            before = planner.counters["drawn"]
            plan = line.advance()
            known.drawn += planner.counters["drawn"] - before
            if plan.offset != offset:  # the line must stand there, whatever happened before
                raise Internal(
                    f"a line of lane {line.lane} stood at offset {plan.offset} in place of {offset}"
                )
            return line, plan, snapshots
        except Exception as error:
            del self.lines[number]
            self.broken[number] = error
            if isinstance(error, PastEnd):
                self._say(*_ended(line))
            raise

    def _skip(self, line: Line, offset: int) -> list[Snapshot]:
        snapshots: list[Snapshot] = []
        if line.planner.can_seek():
            line.skip_to(offset)
        while line.offset < offset:
            line.skip_to(line.offset + 1)
            snapshots = _snapshot_if_due(line) or snapshots
            self._progress("replay", None)
        return snapshots

    # --- answers ---

    def _done(
        self,
        ticket: int,
        made: Made,
        plan: bytes | None,  # None: the server process has it, or needs none
        snapshots: Sequence[Snapshot],
        line: Line | None,
    ) -> None:
        span = None
        if made.nbytes:
            arena, start = self.arenas.take(made.nbytes)
            body = arena.view[start : start + made.nbytes]
            header = made.write(body)
            body.release()
            span = Body(arena.number, start, made.nbytes)
        else:
            header = made.write(memoryview(bytearray()))
        answer = Done(ticket, span, header, plan, made.counts, made.emptied, tuple(snapshots))
        before = [] if line is None else [*_counted(line), *_ended(line)]
        assert self.log_id is not None
        known = self.jobs[self.log_id]
        if not known.libraries_told:
            known.libraries_told = True  # the first batch has imported what the job needs
            before.append(Libraries(self.log_id, libraries.in_use()))
        self._unreported += 1
        hold = self._may_hold()
        if not hold:
            before += self._cost()
        self._say(*before, answer, hold=hold)

    def _cost(self) -> list[FromWorker]:
        """Return what batches cost since the last time, all of the job at hand.

        An answer is held only where the next ticket is of the same job: whatever answers that one
        tells the cost of both, or another job would be charged for it.
        """
        if not self._unreported:
            return []
        assert self.log_id is not None
        known, batches = self.jobs[self.log_id], self._unreported
        self._unreported, drawn, known.drawn = 0, known.drawn, 0
        read_bytes = sum(source.read_bytes() for source in known.job.sources.values())
        return [Cost(self.log_id, batches, self.page.take_spent(), read_bytes, drawn)]

    def _may_hold(self) -> bool:
        """Tell whether a finished batch may wait a moment for the next one, of the same job."""
        cheap = self._outbox.may_hold()
        if not (cheap and self.inbox) or self.careful:
            return False  # where it is careful, what comes next may be what ended a worker here
        following = self.inbox[0]
        return isinstance(following, _TICKETED) and following.log_id == self.log_id

    def _fail(self, message: FromServer, error: PenstockError) -> None:
        said = told(error)
        answer: FromWorker
        match message:
            case Produce() | Plan() | Make():
                answer = TicketFailed(message.ticket, **said)
            case OpenLine():
                answer = LineFailed(message.line, message.log_id, **said)
            case KnowJob() | Learn():
                answer = JobFailed(message.log_id, **said)
            case Verify():
                answer = VerifyFailed(message.log_id, **said)
            case TakeSnapshots():
                answer = SnapshotsFailed(**said)
            case _:  # nobody waits for an answer
                answer = Warned(said["message"])
        self._say(*self._cost(), answer)

    def _judge(self, log_id: bytes, verdict: Verdict) -> Verdict:
        """Make a verdict durable before anything that depends on it is released."""
        self._say(Judge(log_id, self.line, verdict))
        meanwhile: list[FromServer] = []
        while (message := self._next()) is not None:
            match message:
                case Judged():
                    self.inbox.extendleft(reversed(meanwhile))
                    return message.verdict
                case Refused():
                    self.inbox.extendleft(reversed(meanwhile))
                    cls = ERRORS.get(message.code, Internal)
                    raise cls.with_fields(message.message, message.fields)
            meanwhile.append(message)
        raise ServerGone

    def _progress(self, stage: str, item: ItemRef | None) -> None:
        if not (MARK and MARK[0]):  # asked here: every batch comes by several times
            self._end_fork()
        self.page.note(stage, self._log_text, self.lane, item)

    def _end_fork(self) -> None:
        """End this process if a role has forked it and it came back out of the role.

        It shares the port and the arenas: a second answer, or a batch written over another.
        """
        if is_forked(self.pid):
            built = (known.job for known in self.jobs)
            names = [f" of job {job.name!r}" for job in built if job.log_id == self.log_id]
            text = (
                f"penstock: a process that a role{''.join(names)} forked came back; it is ended\n"
            )
            os.write(2, text.encode("utf-8", "backslashreplace"))
            os._exit(70)

    # --- the port ---

    def _announce(self, arena: ArenaWriter) -> None:
        memory = Descriptor(os.dup(arena.fd))
        self._outbox.send([])  # what is held goes first, and this alone
        self._outbox.send([NewArena(arena.number, arena.size_bytes, memory)])

    def _say(self, *messages: FromWorker, hold: bool = False) -> None:
        if not (MARK and MARK[0]):
            self._end_fork()
        self._outbox.send(messages, hold=hold)

    def _may_wait(self) -> bool:
        """Tell whether a retry harms nobody: no other job waits for this worker.

        Whoever reads the job whose storage is away asks again by and by, to a deadline of their
        own; the readers of another job must not wait for it meanwhile.
        """
        before = -1
        while len(self.inbox) != before:
            before = len(self.inbox)
            if not self.take_in(wait=False):
                return False
        for message in self.inbox:
            match message:
                case Hurry():
                    if message.log_id == self.log_id:
                        return False
                case Produce() | Plan() | Make():
                    if message.log_id != self.log_id:
                        return False
        return True

    def _next(self) -> FromServer | None:
        while not self.inbox:
            if not self.take_in(wait=True):
                return None
        return self.inbox.popleft()

    def take_in(self, *, wait: bool) -> bool:
        """Put what the server process has said into the inbox; False where it is gone.

        Raises:
            Misspoken: A role has read what was meant for this process.
        """
        messages = self.port.receive(wait=wait)
        if messages is None:
            return False
        for message in messages:
            if isinstance(message, Free):
                for arena, start in message.spans:
                    self.arenas.give_back(arena, start)
            else:
                self.inbox.append(message)
        return True


def _keep_blocks(known: Known) -> None:
    """Let a job's source keep what the lines here read from, and no more."""
    needs = known.block_needs
    if needs is not None and (count := needs.blocks()) is not None:
        known.job.keep_blocks(count)


def _snapshot_if_due(line: Line) -> list[Snapshot]:
    if line.offset % line.job.snapshot_every or line.planner.can_seek():
        return []
    return [Snapshot(line.offset, line.planner.snapshot())]


def _counted(line: Line) -> list[FromWorker]:
    """Return what a line's planner has counted, if that is news.

    Draws alone are not: every batch has some.
    """
    mark = line.planner.count_mark()
    if mark == line.told_mark:
        return []
    line.told_mark = mark
    return [Counted(line.job.log_id, line.lane, line.counters(), line.counters_before)]


def _ended(line: Line) -> list[FromWorker]:
    """Return where a finite lane ends, if its planner has just found it out.

    Where arithmetic leads to any offset it says where the lane ends, too.
    """
    end = line.planner.end
    if end is None or line.told_end or line.job.epochs is None or line.planner.can_seek():
        return []
    line.told_end = True
    return [LaneEnds(line.job.log_id, line.lane, end)]


def _plan_bytes(plan: BatchPlan) -> bytes:
    return json.dumps(plan.to_json(), separators=(",", ":")).encode()


def _plan_of(data: bytes) -> BatchPlan:
    return BatchPlan.from_json(json.loads(data))


def main(argv: list[str]) -> None:
    """Run a worker over the inherited socket."""
    fd, page_fd, files_fd, parent = map(int, argv)
    die_with_parent()
    if os.getppid() != parent:
        return  # the parent died before prctl took effect
    # Ctrl-C reaches the whole terminal, and service managers send SIGTERM to every process of a
    # service: both are the server's to handle, which ends its workers by closing their sockets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_memory()
    if files_fd >= 0:
        take_catalogs(files_fd)
    port = SocketPort(socket.socket(fileno=fd), FROM_SERVER)
    try:
        Worker(port, Page(page_fd, write=True)).run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


if __name__ == "__main__":
    main(sys.argv[1:])
