"""The node's memory socket: bodies are lent to processes on this host instead of sent.

The protocol is `penstock.wire.memory_socket`'s. A loan keeps its batch in the worker's arena until
it comes back, by number or with the end of the connection: the kernel closes that however the
process ends, so nothing stays lent to a dead process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import socket
import struct
from array import array
from collections.abc import Callable

import structlog

from penstock.server.node.demand.batch_spans import ArenaReader
from penstock.server.node.demand.wanted import WantedBatch
from penstock.server.rpc.address import remove_dead_socket
from penstock.wire import LENT_BYTES
from penstock.wire import memory_socket as memory
from penstock.wire.errors import BadFrame
from penstock.wire.v1 import feed_pb2

logger = structlog.get_logger("penstock.rpc")

LENT_SHARE = 2
"""At most one part in this many of the ready bytes may be lent: the rest is for all other
readers."""

MAX_CONNECTIONS, FILES_SHARE = 1024, 4
"""Processes that may borrow at once, and of the files that this process may have open, one part in
so many: streams, workers and the store need some, too."""

PAUSE_S = 1.0
"""How long no connection is accepted after a file could not be opened."""

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class Lender:
    """What one connection has borrowed.

    Args:
        sock: The connection.
        give_back: Told of every entry whose loan has come back.

    Attributes:
        token: The value of `Open.borrower` of its consumer.
        lent_bytes: What is lent now, headers included.

    Glossary:
        loan: The body of a batch that a process on the node's host reads in the node's memory,
            instead of being sent it.
    """

    def __init__(self, sock: socket.socket, give_back: Callable[[WantedBatch], None]) -> None:
        self._sock, self._give_back = sock, give_back
        self.token = secrets.token_bytes(memory.TOKEN_BYTES)
        self.lent_bytes = 0
        self._loans: dict[int, WantedBatch] = {}
        self._next_loan = self._next_arena = 1
        self._arenas: dict[ArenaReader, int] = {}
        self.closed = False

    def lend(self, entry: WantedBatch, limit_bytes: int) -> feed_pb2.Lent | None:
        """Lend a batch that the caller has pinned; None = send it.

        Args:
            entry: The batch.
            limit_bytes: The most bytes that may be lent on this connection.
        """
        span = entry.span
        if self.closed or span is None or span.view.nbytes < LENT_BYTES:
            return None
        if not span.arena.may_be_lent:
            return None
        if self.lent_bytes + entry.nbytes > limit_bytes:
            return None
        try:
            arena = self._announced(span.arena)
        except OSError as error:
            # It does not take its packets, or is gone: it is sent bodies as long as it reads.
            logger.debug("memory cannot be passed on", error=str(error))
            return None
        number, self._next_loan = self._next_loan, self._next_loan + 1
        entry.pins += 1
        self._loans[number] = entry
        self.lent_bytes += entry.nbytes
        key = entry.key
        return feed_pb2.Lent(
            lane=key.lane, offset=key.offset, loan=number, arena=arena, start=span.start
        )

    def _announced(self, arena: ArenaReader) -> int:
        """Return an arena's number here; the other side has its descriptor, or will."""
        for old in [arena for arena in self._arenas if arena.closed]:
            self._sock.send(memory.pack(memory.Gone(self._arenas[old])))
            del self._arenas[old]
        number = self._arenas.get(arena)
        if number is None:
            number = self._next_arena
            packet = memory.pack(memory.ArenaSent(number, arena.size_bytes))
            rights = array("i", [arena.fd]).tobytes()
            self._sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            self._arenas[arena], self._next_arena = number, number + 1
        return number

    def hear(self, packet: bytes) -> None:
        """Take loans back.

        Raises:
            BadFrame: It is not a packet, or names an unknown loan.
        """
        for number in memory.parse_returns(packet):
            entry = self._loans.pop(number, None)
            if entry is None:
                raise BadFrame(f"loan {number} comes back, and is not lent")
            self.lent_bytes -= entry.nbytes
            self._give_back(entry)

    def close(self) -> None:
        """Take everything back: the other side is gone."""
        self.closed = True
        entries = list(self._loans.values())
        self._loans.clear()
        self.lent_bytes = 0
        for entry in entries:
            self._give_back(entry)


class Lending:
    """Listens on the memory socket, and finds the connection that a consumer names.

    Args:
        give_back: Told of every entry whose loan has come back.
        bound_bytes: The node's bound on ready bytes.
    """

    def __init__(self, give_back: Callable[[WantedBatch], None], bound_bytes: int) -> None:
        self._give_back, self._limit_bytes = give_back, bound_bytes // LENT_SHARE
        self._lenders: dict[bytes, Lender] = {}
        self._listening: socket.socket | None = None
        self._path, self._inode = "", 0
        self._loop: asyncio.AbstractEventLoop

    def start(self, listen: str, socket_mode: int) -> None:
        """Listen beside a Unix socket; with any other address nothing is lent.

        Args:
            listen: What the node listens on.
            socket_mode: The mode of that socket, and of this one.
        """
        path = memory.memory_path(listen)
        if path is None:
            return
        self._loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            remove_dead_socket(path)  # of a server that was killed
            umask = os.umask(0o177)
            try:
                sock.bind(path)
            finally:
                os.umask(umask)
            os.chmod(path, socket_mode)
            sock.listen(128)
        except OSError as error:
            sock.close()
            logger.warning(
                "no memory socket; batches for this host are sent", path=path, error=str(error)
            )
            return
        self._listening, self._path, self._inode = sock, path, os.lstat(path).st_ino
        self._loop.add_reader(sock.fileno(), self._accept)

    def stop(self) -> None:
        """Stop listening; idempotent.

        What is lent stays lent until this process ends: consumers may still read it, and no worker
        writes there after that.
        """
        if self._listening is not None:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(self._path).st_ino == self._inode:  # not one that has its name since
                    os.unlink(self._path)

    def find(self, token: bytes) -> Lender | None:
        """Return the connection that a consumer names, if there is one that lends."""
        lender = self._lenders.get(token) if token else None
        return None if lender is None or lender.closed else lender

    def limit_bytes(self, lender: Lender) -> int:
        """Return what may be lent on a connection in all: half of what the others leave.

        So the bound holds, a connection that gives nothing back leaves as much for the next one as
        it has, and n connections that take all they can have one part in n + 1 each. Switches share
        their buffers this way (Choudhury and Hahne, "Dynamic queue length thresholds for
        shared-memory packet switches", 1998, with alpha = 1).
        """
        others = self.lent_bytes - lender.lent_bytes
        return (self._limit_bytes - others) // 2

    @property
    def lent_bytes(self) -> int:
        """Return what is lent now."""
        return sum(lender.lent_bytes for lender in self._lenders.values())

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has hung up
        except OSError as error:
            # No file or memory is left. It would be retried at once, forever.
            logger.warning("nobody can be let in to borrow", error=str(error), again_in_s=PAUSE_S)
            self._loop.remove_reader(self._listening.fileno())
            self._loop.call_later(PAUSE_S, self._accept_on)
            return
        sock.setblocking(False)
        reason = self._refusal(sock)
        if reason is not None:
            with contextlib.suppress(OSError):
                sock.send(memory.pack(memory.Refusal(reason)))
            sock.close()
            return
        lender = Lender(sock, self._give_back)
        try:
            sock.send(memory.pack(memory.Hello(lender.token)))
        except OSError:
            sock.close()
            return
        self._lenders[lender.token] = lender
        self._loop.add_reader(sock.fileno(), self._readable, sock, lender)

    def _accept_on(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _refusal(self, sock: socket.socket) -> str | None:
        """Return why nothing is lent to a new connection; None = it may borrow."""
        _, uid, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            return f"the node runs as user {os.geteuid()}, and this process as user {uid}"
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        bounded = files != resource.RLIM_INFINITY
        most = min(MAX_CONNECTIONS, files // FILES_SHARE) if bounded else MAX_CONNECTIONS
        if len(self._lenders) >= most:
            return f"{most} connections to the node's memory are open already"
        return None

    def _readable(self, sock: socket.socket, lender: Lender) -> None:
        try:
            packet = sock.recv(memory.MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet and not lender.closed:
            try:
                lender.hear(packet)
                return
            except BadFrame as error:
                logger.warning(
                    "a consumer gives back what it has not borrowed", error=error.message
                )
                # What it has stays lent until it hangs up: it may still read it.
                lender.closed = True
                return
        if packet:
            return  # its messages are ignored from now on
        self._loop.remove_reader(sock.fileno())
        sock.close()
        del self._lenders[lender.token]
        lender.close()
