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

from penstock.server.core.refs import ItemRef
from penstock.server.pipeline.arena import ArenaReader
from penstock.server.pipeline.channel import Message, Unpacker, pack, receive
from penstock.server.pipeline.scheduler import Entry, LaneState, LineState, Log
from penstock.server.pipeline.worker import PAGE_BYTES, Page, worker_environment

log = structlog.get_logger("penstock.worker")

DEPTH = 2
"""Tickets that a worker holds at once: the next is there in time, and no lane is far ahead."""


@dataclass(eq=False)
class Ticket:
    """What a worker was asked, until it has answered."""

    number: int
    log: Log
    lane: LaneState
    entry: Entry | None  # None for a ticket that only plans
    line: LineState | None
    offset: int
    count: int = 1


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
    ready: bool = False
    dead: bool = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the process; `on_message` tells when it is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        page_fd = os.memfd_create("penstock-page", os.MFD_CLOEXEC)
        os.ftruncate(page_fd, PAGE_BYTES)
        module = "penstock.server.pipeline.worker"
        arguments = [str(theirs.fileno()), str(page_fd), str(os.getpid()), self.target]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            env=worker_environment(os.environ),
            pass_fds=(theirs.fileno(), page_fd),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.page = Page(page_fd)
        os.close(page_fd)
        ours.setblocking(False)
        self._sock, self._loop = ours, loop
        self._unpacker = Unpacker()
        self._fds: list[int] = []
        self._outgoing = bytearray()
        self._frees: list[tuple[int, int]] = []
        self._free_scheduled = False
        loop.add_reader(ours.fileno(), self._readable)

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
        self._flush()

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

    def current(self) -> tuple[int, str, int | None, ItemRef | None]:
        """Return what the worker noted last: (serial, stage, lane, item)."""
        return self.page.read()

    def kill(self) -> None:
        """End the process at once."""
        if self.process.poll() is None:
            self.process.kill()

    def close(self) -> None:
        """End the process by closing its socket, and wait a moment for it."""
        self._gone()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _flush(self) -> None:
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
            if not self.dead:
                self._gone()
                self.on_death(self)
            return
        for message in self._unpacker.feed(data):
            if message["op"] == "arena":
                fd = self._fds.pop(0)
                self.arenas[message["number"]] = ArenaReader(fd, message["size"])
            else:
                self.on_message(self, message)

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


__all__ = ["DEPTH", "Ticket", "WorkerProcess"]
