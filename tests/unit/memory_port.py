"""A port within one process: a worker's loop runs where its test does, a step at a time or apart.

What is sent goes through bytes as it does over a socket, so a message that no socket could carry
fails here as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.server.node.protocol.channel import (
    FROM_SERVER,
    FROM_WORKER,
    Kinds,
    MessageDecoder,
    encode,
)
from penstock.server.processes.shared_memory import Descriptor

WAIT_S = 60.0
"""How long a test waits at most for what never comes."""


class MemoryPort:
    """One end; `memory_ports` makes two.

    Args:
        kinds: What is heard here.
        changed: Shared with the other end.
    """

    peer: MemoryPort

    def __init__(self, kinds: Kinds, changed: threading.Condition) -> None:
        self._decoder, self._changed = MessageDecoder(kinds), changed
        self._arrived: deque[tuple[bytes, list[Descriptor]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None] = lambda: None
        self._closed = False

    def send(self, messages: Sequence[Any]) -> None:
        """Send messages, as `Port.send`."""
        with self._changed:
            if not (self._closed or self.peer._closed):
                self.peer._arrived.append(encode(messages))
                self.peer._rouse()
            elif self._loop is None:
                raise BrokenPipeError(32, "the other end is closed")

    def _rouse(self) -> None:
        """Tell whoever waits here, or the loop that listens."""
        self._changed.notify_all()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_if_open)

    def _wake_if_open(self) -> None:
        if not self._closed:
            self._wake()

    def receive(self, *, wait: bool) -> Sequence[Any] | None:
        """Return messages, as `Port.receive`."""
        if self._decoder.broken is not None:
            raise self._decoder.broken
        with self._changed:
            if wait and self._loop is None:
                here = self._changed.wait_for(lambda: self._arrived or self.peer._closed, WAIT_S)
                assert here, "nothing came"
            if not self._arrived:
                return None if self.peer._closed else ()
            messages: list[Any] = []
            while self._arrived and self._decoder.broken is None:
                data, fds = self._arrived.popleft()
                self._decoder.fds += fds
                messages += self._decoder.feed(data)
            if self._decoder.broken is not None:
                if not messages:
                    raise self._decoder.broken
                self._rouse()
            elif self.peer._closed:
                self._rouse()  # a socket would, too
            return messages

    def listen(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Listen, as `Port.listen`."""
        with self._changed:
            self._loop, self._wake = loop, wake
            if self._arrived or self.peer._closed:
                self._rouse()

    def close(self) -> None:
        """Close this end."""
        with self._changed:
            self._closed = True
            self._arrived.clear()
            self._decoder.fds.clear()
            self.peer._rouse()


def memory_ports(end: type[MemoryPort] = MemoryPort) -> tuple[MemoryPort, MemoryPort]:
    """Return the ends of a server process and of a worker.

    Args:
        end: What the worker's is.
    """
    changed = threading.Condition(threading.RLock())
    ours, theirs = MemoryPort(FROM_WORKER, changed), end(FROM_SERVER, changed)
    ours.peer, theirs.peer = theirs, ours
    return ours, theirs


__all__ = ["MemoryPort", "memory_ports"]
