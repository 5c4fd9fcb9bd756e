"""A worker process: it holds lines, makes the batches it is told to, and never picks the next.

It is started as `python -m penstock.server.node.worker FD PAGE_FD FILES_FD PARENT TARGET`, with
a fixed environment (`penstock.server.environment`), before or after gRPC runs in the parent: it is
a fresh program, never a fork.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Sequence

from penstock.server.core import libraries
from penstock.server.core.frames import error_line
from penstock.server.core.refs import BatchPlan, ItemRef, Verdict
from penstock.server.job import Job
from penstock.server.jobs.load import load
from penstock.server.node.arena import Arenas, ArenaWriter
from penstock.server.node.channel import Message, Unpacker, pack, pack_all, send_with_fd
from penstock.server.node.child import MARK, MAX_MESSAGE, die_with_parent, is_forked, told
from penstock.server.node.page import Page
from penstock.server.node.places import Places
from penstock.server.pipeline.items import Items, VerdictBook
from penstock.server.pipeline.kept import KEPT_BYTES, NODE_KEPT_BYTES
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.maker import Made, Maker
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.errors import ERRORS, Internal, JobChanged, PenstockError, clean_text
from penstock.wire.malloc import keep_memory

HOLD_S = 0.001
"""How long a finished batch may wait for the next one, where more tickets are at hand."""

LATE_S = 0.02
"""Behind this it goes without the next one, which takes longer than the ones before it."""


class ServerGone(BaseException):
    """The server process has ended, and with it whoever wanted what this worker makes."""


class Worker:
    """The worker's side: answers tickets one after another."""

    def __init__(self, sock: socket.socket, page: Page, target: str) -> None:
        self.sock, self.page, self.pid = sock, page, os.getpid()
        self.config = load(target)
        self.unpacker = Unpacker()
        self.inbox: deque[Message] = deque()
        self.arenas = Arenas(self._announce)
        self.announced: dict[str, list[Message]] = {}  # by job, what is not yet done about it
        self.jobs: dict[str, Job] = {}
        self.items: dict[str, Items] = {}
        self.makers: dict[str, Maker] = {}
        self.places: dict[str, Places] = {}  # of the jobs that read storage blocks
        self.lines: dict[int, Line] = {}
        self.broken: dict[int, Exception] = {}  # lines whose planner failed, until they are closed
        self.lane: int | None = None
        self.line: int | None = None
        self._sending = threading.Lock()  # guards the socket and what is held
        self._held: list[tuple[Message, Sequence[bytes]]] = []
        self._holding = threading.Event()
        self._held_until = self._last_s = 0.0
        self._ticket_s = 1.0
        self._unreported = 0  # batches whose cost was not told yet
        self._drawn: defaultdict[str, int] = defaultdict(int)  # by job, draws not told yet
        self._told: set[str] = set()  # jobs whose libraries the server process knows
        self.job: str | None = None
        self.careful = False

    def run(self) -> None:
        """Answer until the server process closes the socket."""
        self._send({"op": "ready", "pid": os.getpid()})
        threading.Thread(target=self._flush_late, name="penstock-late", daemon=True).start()
        while True:
            if not self.inbox:
                self.page.note("idle")
            message = self._next()
            if message is None:
                return
            self.handle(message)

    def handle(self, message: Message) -> None:
        """Do what one message asks; whatever fails is answered, and never ends the worker."""
        handler = getattr(self, f"_on_{message['op']}")
        get = message.get
        self.lane, self.job, self.line = get("lane"), get("job"), get("line")
        careful = get("careful", False)
        if careful is not self.careful:
            self.careful = careful
            for items in self.items.values():
                items.careful = careful
        try:
            handler(message)
        except PenstockError as error:
            self._fail(message, error)
        except ServerGone:
            raise
        except BaseException as error:  # whatever a role raises, the worker is there for others
            text = "".join(traceback.format_tb(error.__traceback__)) + error_line(error)
            self._fail(message, Internal(f"a bug in penstock: {error_line(error)}", traceback=text))

    # --- what the server asks ---

    def _on_job(self, message: Message) -> None:
        """Build a job, and learn its verdicts; set its roles up, where that is asked for."""
        self.announced.setdefault(message["job"], []).append(message)
        self._require(message["job"])
        if message.get("set_up"):
            self.items[message["job"]].set_up()
            self._send({"op": "set_up"})

    def _require(self, name: str) -> None:
        """Do what was announced of a job.

        What failed is tried again by whoever needs the job: a mount may be back, and if it is not,
        everybody is told why and nobody that a job is missing here.
        """
        if not (waiting := self.announced[name]):
            return
        if name not in self.jobs:
            self._progress("setup", None)  # a role's constructor may end or hold up this process
            job = self.config.jobs[name]
            if job.log_id.hex() != waiting[0]["log"]:
                raise JobChanged(
                    f"job {name!r} is not what it was when the server started: its files changed; "
                    "restart the server, and put the old files back if its cursors shall go on",
                    job=name,
                    differences=["log id"],
                )
            if waiting[0].get("ends") is not None:
                job.set_lane_ends(waiting[0]["ends"])
            self.jobs[name] = job

            def insert(verdict: Verdict) -> Verdict:
                return self._verdict(name, verdict)

            items = Items(job, VerdictBook((), insert), self._progress)
            items.may_wait, items.careful = self._may_wait, self.careful
            items.kept_bytes = min(KEPT_BYTES, NODE_KEPT_BYTES // waiting[0]["workers"])
            # The server process logs it: a worker's own words would stand between JSON lines.
            items.warn = lambda text: self._send(
                {"op": "warning", "text": clean_text(text, MAX_MESSAGE)}
            )
            self.items[name] = items
            self.makers[name] = Maker(job, items)
            if (reading := job.distributor.reading()) is not None:
                self.places[name] = Places(reading)
        for message in waiting:
            self.items[name].verdicts.learn(map(Verdict.from_json, message["verdicts"]))
        waiting.clear()

    def _on_hurry(self, message: Message) -> None:
        """Nothing to do any more: it is looked for between retries."""

    def _on_free(self, message: Message) -> None:
        """Nothing else to do: the spans were freed on receipt."""

    def _on_open(self, message: Message) -> None:
        """Open a line, from a snapshot where there is one."""
        self._require(message["job"])
        job = self.jobs[message["job"]]
        self._progress("setup", None)
        snapshot = message["blobs"][0] if message["blobs"] else None
        self.lines[message["line"]] = Line(
            job, message["lane"], self.items[message["job"]], snapshot
        )

    def _on_close(self, message: Message) -> None:
        """Forget a line."""
        self.lines.pop(message["line"], None)
        self.broken.pop(message["line"], None)
        for name, places in self.places.items():
            if places.close(message["line"]):
                self._keep_blocks(places, self.jobs[name])

    def _on_produce(self, message: Message) -> None:
        """Plan and make the batch at an offset of a line."""
        line, plan, snapshots = self._plan_at(message["line"], message["offset"])
        made = line.make(plan, blank=message["blank"])
        if line.planner.can_seek():
            plan_told = None  # where arithmetic leads to any plan, nobody needs this one
        else:
            plan_told = plan
            snapshots += self._snapshot_if_due(line)
        self._done(message, made, plan_told, snapshots, line)

    def _on_plan(self, message: Message) -> None:
        """Plan some batches ahead, for any worker to make."""
        line, first, snapshots = self._plan_at(message["line"], message["offset"])
        plans = [_plan_bytes(first)]
        snapshots += self._snapshot_if_due(line)
        broken = False
        before = line.planner.counters["drawn"]
        while len(plans) < message["count"]:
            try:
                plan = line.planner.next()
            except PenstockError:
                # It fails by name when it is asked for itself; the plans before it are good.
                broken = True
                break
            if plan is None:
                break
            plans.append(_plan_bytes(plan))
            snapshots += self._snapshot_if_due(line)
        self._drawn[line.job.name] += line.planner.counters["drawn"] - before
        answer: Message = {
            "op": "planned",
            "ticket": message["ticket"],
            "plans": len(plans),
            "broken": broken,
            "snapshots": [offset for offset, _ in snapshots],
        }
        self._tell_cost(answer)
        _tell_counts(answer, line)
        self._send(answer, [*plans, *(data for _, data in snapshots)])

    def _on_make(self, message: Message) -> None:
        """Make a batch from its plan."""
        self._require(message["job"])
        plan = BatchPlan.from_json(json.loads(message["blobs"][0]))
        coming = self._coming(message["job"])
        made = self.makers[message["job"]].make(plan, None, coming, blank=message["blank"])
        self._done(message, made, None, [], None)

    def _on_verify(self, message: Message) -> None:
        """Make a batch once more and answer its header: it holds the checksum of the body."""
        name = message["job"]
        self._require(name)
        if message["blobs"]:
            plan = BatchPlan.from_json(json.loads(message["blobs"][0]))
        else:
            line = Line(self.jobs[name], message["lane"], self.items[name])
            line.skip_to(message["offset"])
            plan = line.advance()
        made = self.makers[name].make(plan, blank=message["blank"])
        header = made.write(memoryview(bytearray(made.nbytes)))
        answer: Message = {"op": "verified", "check": message["check"]}
        self._tell_cost(answer)
        self._send(answer, [header])

    def _on_snapshot(self, message: Message) -> None:
        """Answer the snapshots of every line, as the server drains."""
        offsets, blobs = [], []
        for number, line in self.lines.items():
            offsets.append([number, line.offset])
            blobs.append(line.planner.snapshot())
        self._send({"op": "snapshots", "lines": offsets}, blobs)

    # --- helpers ---

    def _coming(self, job: str) -> list[ItemRef]:
        """Return the items of the next batch of a job to be made here, where that is of use."""
        if not self.items[job].reads_ahead:
            return []
        for later in self.inbox:
            if later["op"] == "make" and later["job"] == job:
                plan = BatchPlan.from_json(json.loads(later["blobs"][0]))
                return list(dict.fromkeys(ref.item for row in plan.rows for ref in row))
        return []

    def _plan_at(self, number: int, offset: int) -> tuple[Line, BatchPlan, list[tuple[int, bytes]]]:
        """Return a line, its plan at an offset, and the snapshots of the way there.

        A planner that has failed may have changed half of its state, so no plan is taken from it
        any more: tickets that wait behind the failure fail with it, and the line is closed.
        """
        if number in self.broken:
            raise self.broken[number]
        line = self.lines[number]
        if self.places:
            places = self.places.get(line.job.name)
            if places is not None and places.use(number, line.lane):
                self._keep_blocks(places, line.job)
        try:
            planner = line.planner
            snapshots = self._skip(line, offset) if planner.offset != offset else []
            before = planner.counters["drawn"]
            plan = line.advance()
            self._drawn[line.job.name] += planner.counters["drawn"] - before
            if plan.offset != offset:  # the line must stand there, whatever happened before
                raise Internal(
                    f"a line of lane {line.lane} stood at offset {plan.offset} in place of {offset}"
                )
            return line, plan, snapshots
        except Exception as error:
            del self.lines[number]
            self.broken[number] = error
            raise

    def _keep_blocks(self, places: Places, job: Job) -> None:
        """Let the source keep what the lines here read from, and no more."""
        count = places.blocks()
        if count is not None:
            job.keep_blocks(count)

    def _skip(self, line: Line, offset: int) -> list[tuple[int, bytes]]:
        snapshots: list[tuple[int, bytes]] = []
        if line.planner.can_seek():
            line.skip_to(offset)
        while line.offset < offset:
            line.skip_to(line.offset + 1)
            snapshots = self._snapshot_if_due(line) or snapshots
            self._progress("replay", None)
        return snapshots

    def _snapshot_if_due(self, line: Line) -> list[tuple[int, bytes]]:
        if line.offset % line.job.snapshot_every or line.planner.can_seek():
            return []
        return [(line.offset, line.planner.snapshot())]

    def _done(
        self,
        message: Message,
        made: Made,
        plan: BatchPlan | None,  # None: the server has it
        snapshots: list[tuple[int, bytes]],
        line: Line | None,
    ) -> None:
        if made.nbytes:
            arena, start = self.arenas.take(made.nbytes)
            body = arena.view[start : start + made.nbytes]
            header = made.write(body)
            body.release()
            where = [arena.number, start]
        else:
            header, where = made.write(memoryview(bytearray())), None
        answer: Message = {
            "op": "done",
            "ticket": message["ticket"],
            "where": where,
            "nbytes": made.nbytes,
            "counts": {str(name): value for name, value in made.counts.items()},
            "emptied": made.emptied,
            "snapshots": [offset for offset, _ in snapshots],
        }
        if line is not None:
            _tell_counts(answer, line)
        if self.job is not None and self.job not in self._told:
            self._told.add(self.job)  # the first batch has imported what the job needs
            answer["libraries"] = libraries.in_use()
        self._unreported += 1
        hold = self._may_hold()
        if not hold:
            self._tell_cost(answer)
        blobs = [header, _plan_bytes(plan) if plan else b"", *[data for _, data in snapshots]]
        self._send(answer, blobs, hold=hold)

    def _tell_cost(self, answer: Message) -> None:
        """Put into an answer what batches cost since the last time, all of the job at hand.

        An answer is held only where the next message is of the same job: whatever answers that one
        tells the cost of both, or another job would be charged for it.
        """
        if not self._unreported:
            return
        assert self.job is not None
        answer["cost"] = {
            "job": self.job,
            "batches": self._unreported,
            "stages_s": self.page.take_spent(),
            "read_bytes": sum(
                source.read_bytes() for source in self.jobs[self.job].sources.values()
            ),
            "drawn": self._drawn.pop(self.job, 0),
        }
        self._unreported = 0

    def _fail(self, message: Message, error: PenstockError) -> None:
        answer: Message = {
            "op": "failed",
            "of": message["op"],
            "ticket": message.get("ticket"),
            "line": message.get("line"),
            "job": message.get("job"),
            **told(error),
        }
        self._tell_cost(answer)
        self._send(answer)

    def _verdict(self, job: str, verdict: Verdict) -> Verdict:
        """Make a verdict durable before anything that depends on it is released."""
        self._send({"op": "verdict", "job": job, "line": self.line, "verdict": verdict.to_json()})
        held: list[Message] = []
        while (message := self._next()) is not None:
            if message["op"] == "verdict":
                self.inbox.extendleft(reversed(held))
                if "code" in message:
                    cls = ERRORS.get(message["code"], Internal)
                    raise cls(message["message"], **message["fields"])
                return Verdict.from_json(message["verdict"])
            held.append(message)
        raise ServerGone

    def _end_fork(self) -> None:
        """End this process if a role has forked it and it came back out of the role.

        It shares the socket and the arenas: a second answer, or a batch written over another.
        """
        if is_forked(self.pid):
            job = f" of job {self.job!r}" if self.job else ""
            text = f"penstock: a process that a role{job} forked came back; it is ended\n"
            os.write(2, text.encode("utf-8", "backslashreplace"))
            os._exit(70)

    def _progress(self, stage: str, item: ItemRef | None) -> None:
        if not (MARK and MARK[0]):  # asked here: every batch comes by several times
            self._end_fork()
        self.page.note(stage, self.job, self.lane, item)

    def _announce(self, arena: ArenaWriter) -> None:
        message = pack({"op": "arena", "number": arena.number, "size": arena.size_bytes})
        with self._sending:
            self._flush()  # in order: the file descriptor rides on this message
            send_with_fd(self.sock, message, arena.fd)

    def _send(self, message: Message, blobs: Sequence[bytes] = (), *, hold: bool = False) -> None:
        if not (MARK and MARK[0]):
            self._end_fork()
        with self._sending:
            self._held.append((message, blobs))
            if not hold:
                self._flush()
            elif len(self._held) == 1:
                self._holding.set()

    def _may_hold(self) -> bool:
        """Tell whether a finished batch may wait a moment for the next one.

        A wake-up of the server process costs as much as a cheap batch. So where the next ticket is
        at hand, of the same job, and its tickets take next to no time, answers wait for each other.
        """
        now = time.monotonic()
        took_s, self._last_s = now - self._last_s, now
        self._ticket_s += 0.2 * (took_s - self._ticket_s)
        if not self._held:
            self._held_until = now + HOLD_S
        return (
            not self.careful  # what comes next may be what ended a worker here
            and bool(self.inbox)
            and self.inbox[0].get("job") == self.job
            and self._ticket_s < HOLD_S
            and now < self._held_until
        )

    def _flush_late(self) -> None:
        """Let what is held go when the ticket behind it takes long: a thread, since a role has it.

        It wakes at most once in `LATE_S`, and not at all where nothing is held.
        """
        while True:
            self._holding.wait()
            self._holding.clear()
            time.sleep(LATE_S)
            try:
                with self._sending:
                    self._flush()
            except OSError:
                return  # the server process is gone; whoever reads the socket sees it, too

    def _flush(self) -> None:
        if self._held:
            data = pack_all(self._held)
            self._held.clear()
            self.sock.sendall(data)

    def _may_wait(self) -> bool:
        """Tell whether a retry harms nobody: no other job waits for this worker.

        Whoever reads the job whose storage is away asks again by and by, to a deadline of their
        own; the readers of another job must not wait for it meanwhile.
        """
        while select.select([self.sock], [], [], 0)[0]:
            if not self._receive():
                return False
        return not any(
            one["job"] == self.job if one["op"] == "hurry" else one.get("job") != self.job
            for one in self.inbox
            if "ticket" in one or one["op"] == "hurry"
        )

    def _next(self) -> Message | None:
        while not self.inbox:
            if not self._receive():
                return None
        return self.inbox.popleft()

    def _receive(self) -> bool:
        """Put what the server has sent into the inbox; False when it is gone."""
        data = self.sock.recv(1 << 18)
        messages = self.unpacker.feed(data)
        if self.unpacker.broken is not None:
            raise self.unpacker.broken  # a role has read what was meant for this process
        for message in messages:
            for number, start in message.get("frees", ()):
                self.arenas.give_back(number, start)
            self.inbox.append(message)
        return bool(data)


def _tell_counts(answer: Message, line: Line) -> None:
    """Put into an answer what a line's planner has counted, if that is news.

    Draws alone are not: every batch has some.
    """
    mark = line.planner.count_mark()
    if mark != line.told_mark:
        line.told_mark = mark
        answer["counted"] = {
            "job": line.job.name,
            "lane": line.lane,
            "counters": line.counters(),
            "before": line.counters_before,
        }


def _plan_bytes(plan: BatchPlan) -> bytes:
    return json.dumps(plan.to_json(), separators=(",", ":")).encode()


def main(argv: list[str]) -> None:
    """Run a worker over the inherited socket."""
    fd, page_fd, files_fd, parent, target = *map(int, argv[:4]), argv[4]
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
    sock = socket.socket(fileno=fd)
    try:
        Worker(sock, Page(page_fd, write=True), target).run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


if __name__ == "__main__":
    main(sys.argv[1:])
