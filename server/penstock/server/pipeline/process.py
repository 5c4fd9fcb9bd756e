"""One worker process as the server process sees it: its socket, page, arenas and tickets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from penstock.server.pipeline.arena import ArenaReader
from penstock.server.pipeline.channel import Message, Unpacker, pack, receive
from penstock.server.pipeline.scheduler import Entry, LaneState, LineState, Log
from penstock.server.pipeline.worker import PAGE_BYTES, Note, Page, worker_environment

log = structlog.get_logger("penstock.worker")

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
    stale: bool = False  # a verdict has overtaken it: its answer is not used
    given_s: float = 0.0


@dataclass(eq=False)
class WorkerProcess:
    """A worker process.

    Args:
        number: Its slot on this node.
        target: The job file that it loads.
        on_message: Called in the event loop for each message.
        on_death: Called once in the event loop, when its socket has closed.
    """

    number: int
    target: str
    on_message: Callable[[WorkerProcess, Message], None]
    on_death: Callable[[WorkerProcess], None]
    tickets: dict[int, Ticket] = field(default_factory=dict)
    arenas: dict[int, ArenaReader] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    started: bool = False
    ready: bool = False
    dead: bool = False
    ticket_s: float = DEPTH_S
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
        page_fd = os.memfd_create("penstock-page", os.MFD_CLOEXEC)
        try:
            os.ftruncate(page_fd, PAGE_BYTES)
            module = "penstock.server.pipeline.worker"
            arguments = [str(theirs.fileno()), str(page_fd), str(os.getpid()), self.target]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                env=worker_environment(os.environ),
                pass_fds=(theirs.fileno(), page_fd),
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
        self._outgoing += pack(message, blobs)
        if not self._flush_scheduled:
            # One write for all tickets of this turn of the loop: a wake-up costs more than one.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def room(self) -> int:
        """Return how many tickets this worker may be given now."""
        if not self.ready or self.dead:
            return 0
        depth = min(MAX_DEPTH, max(MIN_DEPTH, int(DEPTH_S / max(self.ticket_s, 1e-6))))
        return depth - len(self.tickets) if len(self.tickets) <= depth // 2 else 0

    def give(self, ticket: Ticket, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Give a ticket."""
        ticket.given_s = self._loop.time()
        self.tickets[ticket.number] = ticket
        self.send(message, blobs)

    def answer(self, number: int) -> Ticket | None:
        """Take an answered ticket back, and learn how long tickets take."""
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            now = self._loop.time()
            took_s = now - max(ticket.given_s, self._answered_s)
            self.ticket_s += 0.2 * (took_s - self.ticket_s)
            self._answered_s = now
        return ticket

    def free_later(self, arena: int, start: int) -> None:
        """Tell the worker that a span is free, with the next message or soon."""
        reader = self.arenas[arena]
        reader.spans -= 1
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

    def kill(self) -> None:
        """End the process at once."""
        if self.process.poll() is None:
            self.process.kill()

    def hang_up(self) -> None:
        """Close the socket, at which the process ends when it has done what it is at."""
        self._gone()

    def close(self, grace_s: float = 2.0) -> None:
        """End the process: it has a moment to end by itself."""
        self.hang_up()
        try:
            self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.dead:
            return
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
                if message["op"] == "arena":
                    fd = self._fds.pop(0)
                    self.arenas[message["number"]] = ArenaReader(fd, message["size"])
                else:
                    self.on_message(self, message)
        except Exception as error:
            # No memory to map an arena, or something else has written to the socket: what came
            # with it is lost, so its tickets would never be answered.
            log.exception("a worker cannot be understood; it is replaced", exc_info=error)
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


__all__ = ["Ticket", "WorkerProcess"]
