"""What joins the server process and a worker: one end of it, whatever carries the messages.

A socket does between processes. Where both ends are in one process, as in tests, memory can.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.common.readable import readable
from penstock.server.node.protocol.channel import (
    READ_BYTES,
    Kinds,
    MessageDecoder,
    ProtocolError,
    encode,
    receive,
    send_with_fd,
)
from penstock.server.processes.shared_memory import Descriptor

if TYPE_CHECKING:
    import asyncio  # a worker has no event loop, and importing it takes a tenth of its start

Said = TypeVar("Said", contravariant=True)
Heard = TypeVar("Heard", covariant=True)

MAX_FDS = 8
"""File descriptors that may wait for the messages that they belong to."""


class MessagePort(Protocol[Said, Heard]):
    """One end: messages that are sent here come out at the other one, all of them, in order.

    A worker has a `MessagePort[FromServer heard, FromWorker said]` and waits at it. The server
    process has one for each worker, and its event loop listens.
    """

    def send(self, messages: Sequence[Said]) -> None:
        """Send messages; the other end gets them together.

        Raises:
            OSError: The other end is closed. Where an event loop listens, `receive` says so alone.
        """

    def receive(self, *, wait: bool) -> Sequence[Heard] | None:
        """Return what has come since the last call; None = all has, and the other end is closed.

        Args:
            wait: Wait until something has come. Else what is there is returned, maybe nothing.

        Raises:
            ProtocolError: What comes now is none of the messages that are heard here; all that were
                have been returned.
        """

    def listen(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Have an event loop call `wake` as often as `receive` has news; nothing waits from now on.

        `send` keeps what does not go at once.
        """

    def close(self) -> None:
        """Close both directions; what was sent still arrives."""


class SocketPort:
    """A port over a Unix socket.

    Args:
        sock: One of a pair; this object's from now on.
        kinds: What is heard here.
    """

    def __init__(self, sock: socket.socket, kinds: Kinds) -> None:
        self._sock, self._decoder = sock, MessageDecoder(kinds)
        self._passes_memory = kinds.pass_memory
        self._outgoing = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None]
        self._closed = False

    def send(self, messages: Sequence[Any]) -> None:
        """Send messages, as `MessagePort.send`."""
        data, fds = encode(messages)
        if self._loop is None:
            self._send_all(data, fds)
        else:
            assert not fds, "memory goes from a worker to the server process alone"
            self._outgoing += data
            self._send_some(self._loop)

    def _send_all(self, data: bytearray, fds: list[Descriptor]) -> None:
        if not fds:
            self._sock.sendall(data)
            return
        [memory] = fds  # the outbox sends it alone
        send_with_fd(self._sock, data, memory.fileno())

    def _send_some(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._outgoing:
                sent = self._sock.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            loop.add_writer(self._sock.fileno(), self._writable, loop)
        except OSError:
            self._outgoing.clear()  # receive() comes to the same end, and says so

    def _writable(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_writer(self._sock.fileno())
        self._send_some(loop)

    def receive(self, *, wait: bool) -> Sequence[Any] | None:
        """Return messages, as `MessagePort.receive`."""
        decoder = self._decoder
        if decoder.broken is not None:
            raise decoder.broken
        if self._loop is None and not wait and not readable([self._sock], 0):
            return ()
        try:
            data, fds = self._receive()
        except BlockingIOError:
            return ()
        except OSError:
            return None
        if not data:
            return None
        decoder.fds += map(Descriptor, fds)
        messages = decoder.feed(data)
        if decoder.broken is None and len(decoder.fds) > MAX_FDS:
            count = len(decoder.fds)
            decoder.broken = ProtocolError(
                f"it sends {count} file descriptors that nobody asked for"
            )
        if decoder.broken is not None:
            if not messages:
                raise decoder.broken
            if self._loop is not None:
                self._loop.call_soon(self._wake)  # no byte will wake it for this
        return messages

    def _receive(self) -> tuple[bytes, list[int]]:
        if self._passes_memory:
            return receive(self._sock)
        return self._sock.recv(READ_BYTES), []

    def listen(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Listen, as `MessagePort.listen`."""

        def wake_if_open() -> None:
            if not self._closed:
                wake()

        self._sock.setblocking(False)
        self._loop, self._wake = loop, wake_if_open
        loop.add_reader(self._sock.fileno(), wake)

    def close(self) -> None:
        """Close the socket."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._decoder.fds.clear()
