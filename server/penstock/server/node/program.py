"""A worker's program: how it is started, and in words how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

from penstock.server.environment import worker_environment
from penstock.server.node.channel import FROM_WORKER
from penstock.server.node.memory import sealed_memory
from penstock.server.node.messages import FromServer, FromWorker
from penstock.server.node.page import PAGE_BYTES, Page
from penstock.server.node.port import Port, SocketPort
from penstock.server.sources.catalog import cache_variable


class Started(NamedTuple):
    """A worker that was started.

    Attributes:
        process: The process, which is ended and waited for by whoever has started it.
        port: What it hears and says.
        page: Where it notes what it does.
    """

    process: subprocess.Popen[bytes]
    port: Port[FromServer, FromWorker]
    page: Page


def start_program(files_fd: int) -> Started:
    """Start a worker, which says `Ready` when it has started.

    Args:
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.

    Raises:
        OSError: The system has no memory, process or file descriptor left for it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    page_fd = -1
    try:
        page_fd = sealed_memory("penstock-page", PAGE_BYTES)
        fds = [theirs.fileno(), page_fd, files_fd]
        arguments = [*map(str, fds), str(os.getpid())]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.server.node.worker_main", *arguments],
            env=worker_environment({**os.environ, **cache_variable()}),
            pass_fds=[fd for fd in fds if fd >= 0],
            stdin=subprocess.DEVNULL,
        )
        return Started(process, SocketPort(ours, FROM_WORKER), Page(page_fd))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if page_fd >= 0:
            os.close(page_fd)


_CAUSES = {
    signal.SIGKILL: ": by the out-of-memory killer, or by somebody",
    signal.SIGSEGV: ": a crash in native code",
    signal.SIGBUS: ": a crash in native code, or a file that was cut while it was mapped",
    signal.SIGABRT: ": native code gave up",
}


def status_words(status: int) -> str:
    """Return a process's exit status in words."""
    if status >= 0:
        return f"with exit status {status}: a role ended the process"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"killed by signal {-status}"
    return f"killed by signal {number.name}{_CAUSES.get(number, '')}"


__all__ = ["Started", "start_program", "status_words"]
