"""How a process of penstock is started, and what it inherits: a socket, a page, what files hold.

It is a fresh program in a fixed environment (`penstock.server.environment`), never a fork, and it
does not outlive the process that has started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple

from penstock.server.allocator import preloaded, withdraw
from penstock.server.environment import worker_environment
from penstock.server.followed_log import follow
from penstock.server.node.memory import sealed_memory
from penstock.server.node.page import PAGE_BYTES, Page
from penstock.server.said import for_children, stderr_of_children
from penstock.server.sources.catalog import cache_variable


class Process(NamedTuple):
    """A process that was started.

    Attributes:
        process: The process, which is ended and waited for by what has started it.
        page: Where it notes what it does.
        socket: What it hears and says.
    """

    process: subprocess.Popen[bytes]
    page: Page
    socket: socket.socket


def start(
    module: str,
    *arguments: object,
    files_fd: int = -1,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | None = None,
) -> Process:
    """Start a module, which calls `inherit` first.

    Args:
        module: Its name.
        arguments: What it is told beside.
        files_fd: What is known of the job's files (`pack_catalogs`); -1 = nothing.
        stdin: Its standard input.
        stdout: A descriptor for what code of users prints; None = the standard output.

    Raises:
        OSError: The system has no memory, process or file descriptor left for it.
    """
    ours, theirs = socket.socketpair()
    page_fd = -1
    try:
        page_fd = sealed_memory("penstock-page", PAGE_BYTES)
        fds = [theirs.fileno(), page_fd, files_fd]
        told = [*fds, os.getpid(), *arguments]
        with _without_interrupts():
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, told)],
                env=program_environment(),
                pass_fds=[fd for fd in fds if fd >= 0],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr_of_children(),
            )
        return Process(process, Page(page_fd), ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if page_fd >= 0:
            os.close(page_fd)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold SIGINT back from this thread, and from a process that it starts until `inherit`.

    A process that is still importing would end with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def program_environment() -> dict[str, str]:
    """Return the environment that a process is started in now."""
    return preloaded(worker_environment({**os.environ, **cache_variable(), **for_children()}))


class Inherited(NamedTuple):
    """What a process was started with.

    Attributes:
        socket: What it hears and says.
        page: Where it notes what it does.
        files_fd: What is known of the jobs' files (`take_catalogs`); -1 = nothing.
        arguments: What else it was told.
    """

    socket: socket.socket
    page: Page
    files_fd: int
    arguments: list[str]


def inherit(argv: list[str]) -> Inherited | None:
    """Return what this process was started with; None = its parent has died already.

    Args:
        argv: Its arguments, without its name.
    """
    # Ctrl-C reaches the whole terminal, and is the parent's to handle, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    withdraw()  # before anything here starts a process of its own
    # Here and not above: the process that starts others needs none of it.
    from penstock.server.node.child import die_with_parent

    fd, page_fd, files_fd, parent = map(int, argv[:4])
    die_with_parent()
    if os.getppid() != parent:
        return None  # the parent died before prctl took effect
    follow()
    return Inherited(socket.socket(fileno=fd), Page(page_fd, write=True), files_fd, argv[4:])


__all__ = ["Inherited", "Process", "inherit", "program_environment", "start"]
