"""A link between readers and a node that a test can cut, slow down and reset: a TCP proxy."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class Link:
    """Passes bytes both ways between whoever connects to it and a node; a context manager.

    Args:
        target: The node's `host:port`, or a path of a unix socket.

    Attributes:
        address: Where it listens.
        refuses: Who connects is hung up on.
        delay_s: How long each piece lies in the cable.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.delay_s, self.refuses = 0.0, False
        self._passes, self._closed = threading.Event(), threading.Event()
        self._passes.set()
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()

    def __enter__(self) -> Link:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._passes.set()
        # A thread in accept() would keep the socket open after close().
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.reset()

    def cut(self) -> None:
        """Let nothing through, in both directions, and end nothing: packets are lost."""
        self._passes.clear()

    def mend(self) -> None:
        """Let through what comes, and what was in the cable."""
        self._passes.set()

    def reset(self) -> None:
        """End every connection at once."""
        with self._guard:
            found, self._open = self._open, set()
        for end in found:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(ours,), daemon=True).start()

    def _join(self, ours: socket.socket) -> None:
        self._passes.wait()
        if self.refuses:
            ours.close()
            return
        try:
            theirs = self._connect()
        except OSError:
            ours.close()
            return
        with self._guard:
            self._open |= {ours, theirs}
        threading.Thread(target=self._pump, args=(ours, theirs), daemon=True).start()
        self._pump(theirs, ours)

    def _connect(self) -> socket.socket:
        if self._target.startswith("/"):
            theirs = socket.socket(socket.AF_UNIX)
            try:
                theirs.connect(self._target)
            except OSError:
                theirs.close()
                raise
            return theirs
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host, int(port)))

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                if self.delay_s:
                    self._closed.wait(self.delay_s)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._guard:
            self._open -= {source, sink}
        source.close()
