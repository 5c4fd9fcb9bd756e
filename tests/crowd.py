"""Many connections to a port that never get to a call: opened in bursts, held, watched, closed."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What an HTTP/2 client says first (RFC 9113, 3.4)."""

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""An empty frame of settings, which ends the handshake on a plain port."""

HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
"""So a ClientHello of TLS begins."""

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 22)]
"""Where connections come from: each has ports of its own."""

SPARE_FILES = 500
"""What a test process has open beside a crowd."""


class Took(NamedTuple):
    """What a process has taken.

    Attributes:
        mb: Its own memory.
        files: Its open files.
    """

    mb: float
    files: int


def took(pid: int) -> Took:
    """Return what a process has now."""
    text = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("RssAnon")]
    return Took(int(line.split()[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd")))


@contextlib.contextmanager
def room_for(count: int) -> Iterator[None]:
    """Let this process have so many connections, as far as its hard limit goes.

    Raises:
        RuntimeError: The hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(
            f"this needs {wanted:,} open files, and the hard limit is {hard:,}: raise it "
            "(ulimit -Hn), or run it elsewhere"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Connections that are open together.

    Args:
        address: The port, as `host:port`.
        count: How many.
        openings: What each says first, in turn; empty = nothing.
    """

    def __init__(self, address: str, count: int, openings: Sequence[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self._openings, self._said = openings, [0] * count
        self._sockets: list[socket.socket] = []
        try:
            for number in range(count):
                sock = socket.socket()
                self._sockets.append(sock)
                sock.bind((ADDRESSES[number % len(ADDRESSES)], 0))
                sock.settimeout(20)
                sock.connect((host, int(port)))
                sock.setblocking(False)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, most_bytes: int) -> None:
        """Say so much more of what each has to say first; those that were closed say nothing."""
        for number, sock in enumerate(self._sockets):
            opening = self._openings[number % len(self._openings)]
            start = self._said[number]
            if data := opening[start : start + most_bytes]:
                with contextlib.suppress(OSError):
                    self._said[number] += sock.send(data)

    def open_ones(self) -> int:
        """Return how many the other side has not closed."""
        return sum(map(_is_open, self._sockets))

    def close(self) -> None:
        """Close all."""
        for sock in self._sockets:
            sock.close()


def _is_open(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


__all__ = ["HELLO", "PREFACE", "SETTINGS", "Crowd", "Took", "room_for", "took"]
