"""One worker process as the server process sees it: its socket, page, arenas and tickets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from penstock.server.core.frames import error_line
from penstock.server.core.refs import Verdict
from penstock.server.environment import worker_environment
from penstock.server.job import Job
from penstock.server.node.arena import ArenaReader, sealed_memory
from penstock.server.node.books import LaneState, LineState, Log
from penstock.server.node.channel import Message, Misspoken, Unpacker, pack_all, receive
from penstock.server.node.entry import Entry
from penstock.server.node.messages import check, check_arena
from penstock.server.node.page import PAGE_BYTES, Note, Page

log = structlog.get_logger("penstock.worker")

END_S = 0.2
"""How long a process whose socket has closed may take to end by itself."""

MAX_FDS = 8
"""File descriptors that may wait for the messages that they belong to."""

MIN_DEPTH, MAX_DEPTH, DEPTH_S = 2, 24, 0.004
"""Tickets that a worker holds at once: the next is there when one is done. Where tickets take less
than `DEPTH_S` seconds it holds more of them, and gets them several at a time: a wake-up costs as
much."""


@dataclass(eq=False)
class Ticket:
    """What a worker was asked, until it has answered."""

    number: int
    log: Log
    lane: LaneState
    entry: Entry
    line: LineState | None
    offset: int
    plans: bool = False  # it only plans, on behalf of `entry`
    suspect: bool = False  # a worker has ended over it
    stale: bool = False  # a verdict has overtaken it: its answer is not used
    given_s: float = 0.0

    def is_of(self, note: Note) -> bool:
        """Tell whether a worker's note is about this ticket; without a lane, about all its job."""
        return note.job == self.log.job.name and note.lane in (None, self.lane.lane)


@dataclass(eq=False)
class WorkerProcess:
    """A worker process.

    Args:
        number: Its slot on this node.
        target: The job file that it loads.
        on_message: Called in the event loop for each message.
        on_death: Called once in the event loop, when its socket has closed.
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.
        workers: How many there are on this node: what they keep for themselves is bounded for all
            of them together.

    Attributes:
        tickets: What it was asked and has not answered, in the order in which it was asked.
        taken_back: Tickets that it may still answer, and whose answer nobody wants any more.
        fault: What it said that no worker says, for which it was ended.
        held_up_s: For how long it has been at one thing, where that is long: it is asked nothing
            more, and has no share of the lanes.
        stuck_s: For how long it was allowed to do one thing, where it was ended for that.
        made_way: It was ended for others, who waited for what nobody reads.
    """

    number: int
    target: str
    on_message: Callable[[WorkerProcess, Message], None]
    on_death: Callable[[WorkerProcess], None]
    files_fd: int = -1
    workers: int = 1
    tickets: dict[int, Ticket] = field(default_factory=dict)
    taken_back: dict[int, Ticket] = field(default_factory=dict)
    arenas: dict[int, ArenaReader] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    started: bool = False
    ready: bool = False
    dead: bool = False
    fault: str | None = None
    stuck_s: float | None = None
    made_way: bool = False
    held_up_s: float = 0.0
    tickets_per_s: float = 1 / DEPTH_S
    _answered_s: float = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the process; `on_message` tells when it is ready.

        Raises:
            OSError: The system has no memory, process or file descriptor left for it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._launch(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._attach(ours, loop)

    def _launch(self, theirs: socket.socket) -> None:
        page_fd = sealed_memory("penstock-page", PAGE_BYTES)
        try:
            module = "penstock.server.node.worker"
            fds = [theirs.fileno(), page_fd, self.files_fd]
            arguments = [*map(str, fds), str(os.getpid()), self.target]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                env=worker_environment(os.environ),
                pass_fds=[fd for fd in fds if fd >= 0],
                stdin=subprocess.DEVNULL,
            )
            self.page = Page(page_fd)
        finally:
            os.close(page_fd)

    def _attach(self, ours: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the worker at the other end of a socket."""
        ours.setblocking(False)
        self._sock, self._loop = ours, loop
        self._unpacker = Unpacker()
        self._fds: list[int] = []
        self._unsent: list[tuple[Message, Sequence[bytes]]] = []
        self._outgoing = bytearray()
        self._flush_scheduled = False
        self._frees: list[tuple[int, int]] = []
        self._free_scheduled = False
        loop.add_reader(ours.fileno(), self._readable)
        self.started = True

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def send(self, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Send a message, and the spans that are free again with it."""
        if self.dead:
            return
        if self._frees:
            message = {**message, "frees": self._frees}
            self._frees = []
        self._unsent.append((message, blobs))
        if not self._flush_scheduled:
            # One write for all tickets of this turn of the loop: a wake-up costs more than one.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send_job(self, job: Job, verdicts: Iterable[Verdict], *, set_up: bool = False) -> None:
        """Have it know a job, or more verdicts of one that it knows; or set its roles up, too."""
        entries = [verdict.to_json() for verdict in verdicts]
        log_id, ends = job.log_id.hex(), job.lane_ends
        message = {"op": "job", "job": job.name, "log": log_id, "verdicts": entries, "ends": ends}
        self.send({**message, "workers": self.workers, "set_up": set_up})

    @property
    def takes_part(self) -> bool:
        """Tell whether it has a share of the lanes: not while it starts, or is held up."""
        return self.ready and not self.dead and not self.held_up_s

    @property
    def alone(self) -> bool:
        """Tell whether it does what has ended a worker before.

        What it was given beside that would wait for it, perhaps to its deadline.
        """
        return any(ticket.suspect for ticket in self.tickets.values())

    def room(self) -> int:
        """Return how many tickets this worker may be given now."""
        if not self.ready or self.dead or self.held_up_s:
            return 0
        if self.alone:
            return 0
        depth = min(MAX_DEPTH, max(MIN_DEPTH, int(DEPTH_S * self.tickets_per_s)))
        return depth - len(self.tickets) if len(self.tickets) <= depth // 2 else 0

    def give(self, ticket: Ticket, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Give a ticket."""
        ticket.given_s = self._loop.time()
        self.tickets[ticket.number] = ticket
        self.send(message, blobs)

    def answer(self, number: int) -> Ticket | None:
        """Take an answered ticket back, and learn how long tickets take.

        None where it was taken from this worker before it answered.
        """
        self.taken_back.pop(number, None)
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            now = self._loop.time()
            took_s = now - max(ticket.given_s, self._answered_s)
            # A mean of rates: where every other ticket takes next to no time, the next one must be
            # there at once, however long those between them take.
            rate = 1 / max(took_s, DEPTH_S / MAX_DEPTH)
            self.tickets_per_s += 0.2 * (rate - self.tickets_per_s)
            ticket.log.ticket_s += 0.2 * (took_s - ticket.log.ticket_s)
            self._answered_s = now
        return ticket

    def at_work(self, note: Note) -> Ticket | None:
        """Return the ticket that it is at: the one of its note, else the first."""
        tickets = list(self.tickets.values())
        return next((one for one in tickets if one.is_of(note)), next(iter(tickets), None))

    def take_back(self, ticket: Ticket) -> None:
        """Take a ticket from this worker, which may still answer it."""
        self.taken_back[ticket.number] = self.tickets.pop(ticket.number)

    def take_body(
        self, arena: int, start: int, nbytes: int
    ) -> tuple[memoryview, Callable[[], None]]:
        """Return the body that lies in an arena, and what gives its memory back to the worker."""
        reader = self.arenas[arena]
        reader.starts.add(start)
        view = reader.view[start : start + nbytes]

        def release() -> None:
            view.release()
            self.free_later(arena, start)

        return view, release

    def free_later(self, arena: int, start: int) -> None:
        """Tell the worker that a span is free, with the next message or soon."""
        reader = self.arenas[arena]
        reader.starts.discard(start)
        if self.dead:
            if reader.spans == 0:
                del self.arenas[arena]
                reader.close()
            return
        self._frees.append((arena, start))
        if not self._free_scheduled:
            self._free_scheduled = True
            self._loop.call_later(0.05, self._send_frees)

    def _send_frees(self) -> None:
        self._free_scheduled = False
        if self._frees:
            self.send({"op": "free"})

    def current(self) -> Note:
        """Return what the worker noted last."""
        return self.page.read()

    def notice_end(self) -> None:
        """See to a process that has ended although its socket is still open."""
        if self.process.poll() is not None:
            self._end()

    def end_status(self) -> int:
        """Return how the process ended, as `subprocess` says it; end it if it has not yet.

        Its socket closes a moment before it has ended by itself, and a SIGKILL then would hide why.
        """
        if self.fault is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=END_S)
        self.kill()
        return self.process.wait()

    def how_it_ended(self) -> str:
        """Return in words how the process ended."""
        if self.fault is not None:
            return f"for what it said on its socket ({self.fault})"
        if self.made_way:
            return "killed for the readers of another job, who waited for it"
        if self.stuck_s is not None:
            return f"killed because it was still at it after item_seconds = {self.stuck_s:g}"
        return _status_words(self.process.wait())

    def kill(self) -> None:
        """End the process at once."""
        if self.process.poll() is None:
            self.process.kill()

    def hang_up(self) -> None:
        """Close the socket, at which the process ends when it has done what it is at."""
        self._gone()

    def await_end(self, most_s: float) -> None:
        """Wait for the process to end by itself, at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=most_s)

    def close(self) -> None:
        """Close the socket, and end the process where it has not ended yet."""
        self.hang_up()
        self.kill()
        self.process.wait()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.dead:
            return
        self._outgoing += pack_all(self._unsent)
        self._unsent.clear()
        try:
            while self._outgoing:
                sent = self._sock.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        except OSError:
            self._outgoing.clear()  # the reader side sees the same end, and says so

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._flush()

    def _readable(self) -> None:
        try:
            data, fds = receive(self._sock)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._fds += fds
        if not data:
            self._end()
            return
        try:
            for message in self._unpacker.feed(data):
                self.hear(message)
                if self.dead:
                    return  # it was ended for what it said
            if self._unpacker.broken is not None:
                raise self._unpacker.broken
            if len(self._fds) > MAX_FDS:
                raise Misspoken(f"it sends {len(self._fds)} file descriptors that nobody asked for")
        except Exception as error:
            # No memory to map an arena, or something else has written to the socket: what came
            # with it is lost, so its tickets would never be answered.
            self.misspoke(error)

    def hear(self, message: Message) -> None:
        """Act upon a message: the one place where anything that a worker says comes in.

        Raises:
            Misspoken: No worker of ours says this.
            OSError: An arena cannot be mapped.
        """
        if message.get("op") == "arena":
            number, size_bytes = check_arena(message, self.arenas)
            if not self._fds:
                raise Misspoken("it announces an arena without its memory")
            self.arenas[number] = ArenaReader(self._fds.pop(0), size_bytes)
            return
        known = ChainMap(self.tickets, self.taken_back) if self.taken_back else self.tickets
        self.on_message(self, check(message, known, self.arenas, self.jobs))

    def misspoke(self, error: Exception) -> None:
        """End a worker that has said what no worker says; what it was asked others shall do."""
        self.fault = error_line(error)
        log.error("a worker cannot be understood; it is replaced", error=self.fault)
        self._end()

    def _end(self) -> None:
        """Say once that the worker is gone."""
        if not self.dead:
            self._gone()
            self.on_death(self)

    def _gone(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for fd in self._fds:
            os.close(fd)
        for number, reader in list(self.arenas.items()):
            if reader.spans == 0:  # others stay mapped until their last batch is sent
                del self.arenas[number]
                reader.close()


_CAUSES = {
    signal.SIGKILL: ": by the out-of-memory killer, or by somebody",
    signal.SIGSEGV: ": a crash in native code",
    signal.SIGBUS: ": a crash in native code, or a file that was cut while it was mapped",
    signal.SIGABRT: ": native code gave up",
}


def _status_words(status: int) -> str:
    """Return a process's exit status in words."""
    if status >= 0:
        return f"with exit status {status}: a role ended the process"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"killed by signal {-status}"
    return f"killed by signal {number.name}{_CAUSES.get(number, '')}"


__all__ = ["Ticket", "WorkerProcess"]
