"""The connection to a node's memory socket, as the process that borrows uses it.

The protocol is `penstock.wire.memory_socket`'s. No call but `receive` waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from array import array
from collections import deque

from penstock.common.readable import readable
from penstock.wire import memory_socket as memory
from penstock.wire.errors import BadFrame, PenstockError, Unreachable

HELLO_S = 2.0
"""How long the node may take to answer a connection, without which bodies are sent."""

_MSG_CMSG_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # memory is lent on Linux alone


class NotLent(Exception):
    """Bodies cannot be lent, or no more of them; says why, for people."""


class Absent(NotLent):
    """Nothing listens on the memory socket now: the node may be about to start."""


class BorrowerSocket:
    """A memory socket; `connect` comes first.

    Raises:
        NotLent: No socket can be opened.
    """

    def __init__(self) -> None:
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise NotLent(f"no socket can be opened: {error}") from error

    def connect(self, path: str) -> bytes:
        """Connect to a node, and return the token that it knows this connection by.

        Raises:
            Absent: Nothing listens there.
            NotLent: It has no such socket, or lends nothing to this process.
        """
        try:
            self._sock.settimeout(HELLO_S)
            self._sock.connect(path)
            # What is sent, and a look at what is there, must not wait. Of a socket with a timeout
            # Python waits before each call, whatever MSG_DONTWAIT says.
            self._sock.setblocking(False)
            packet, fds = self.receive(HELLO_S)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Absent(f"nothing listens at {path} ({error.strerror})") from error
        except (OSError, PenstockError) as error:
            raise NotLent(f"{path}: {error}") from error
        if isinstance(packet, memory.Refusal):
            raise NotLent(packet.reason)
        if not isinstance(packet, memory.Hello):
            close_all(fds)
            raise NotLent(f"{path} says {packet}")
        return packet.token

    def receive(self, within_s: float) -> tuple[memory.Said, list[int]]:
        """Return the node's next packet, and the file descriptors that came with it.

        That of an arena is of memory that does not shrink.

        Args:
            within_s: How long it is waited for.

        Raises:
            Unreachable: None comes, or the node is gone.
            BadFrame: It is not a packet of the protocol.
            NotLent: This process may open no more files.
        """
        received = array("i")
        try:
            if not readable([self._sock], within_s):
                raise Unreachable(f"no answer on the node's memory socket for {within_s:g} s")
            # Without CLOEXEC programs that this process starts would have the node's memory, too.
            packet, ancillary, flags, _ = self._sock.recvmsg(
                memory.MAX_PACKET_BYTES, socket.CMSG_SPACE(received.itemsize), _MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Unreachable(f"no answer on the node's memory socket: {error}") from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
        fds = received.tolist()
        if not packet:
            raise Unreachable("the node's memory socket was closed")
        parsed = memory.parse(packet)
        if not fds and flags & socket.MSG_CTRUNC:
            raise NotLent("this process may open no more files (ulimit -n)")
        if len(fds) != isinstance(parsed, memory.ArenaSent):
            close_all(fds)
            raise BadFrame(f"the node's memory socket says {parsed} with {len(fds)} descriptors")
        if isinstance(parsed, memory.ArenaSent):
            _check_sealed(fds[0], parsed.size_bytes)
        return parsed, fds

    def has_packet(self) -> bool:
        """Tell whether a packet has come; False also where the node is gone: the stream says so."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def give_back(self, loans: deque[int]) -> None:
        """Give loans back, as many as the node takes now; those are left out of `loans`."""
        while loans:
            count = min(len(loans), memory.RETURNS_AT_ONCE)
            now = [loans.popleft() for _ in range(count)]
            try:
                self._sock.send(memory.pack_returns(now))
            except BlockingIOError:  # the node has not looked for long: with the next message
                loans.extendleft(reversed(now))
                return
            except OSError:
                # The node is gone, or will say so on the stream; everything has come back then.
                loans.clear()

    def end(self) -> None:
        """End the connection, for other holders of it, too: a child forked by other means."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def close(self) -> None:
        """Close this process's end; other holders go on."""
        self._sock.close()


def close_all(fds: list[int]) -> None:
    """Close file descriptors that came with a packet."""
    for fd in fds:
        os.close(fd)


def _check_sealed(fd: int, size_bytes: int) -> None:
    """Refuse memory that may shrink: reading past its end would kill this process.

    Raises:
        BadFrame: It may shrink, or is not memory, such as a pipe or a file.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        os.close(fd)
        raise BadFrame(
            f"the node's memory socket hands over something that is not memory ({error.strerror})"
        ) from None
    if os.fstat(fd).st_size < size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        os.close(fd)
        raise BadFrame(f"the node lends {size_bytes} bytes of memory that may become less")
