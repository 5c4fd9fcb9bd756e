"""A process beside the workers, in their environment, for tasks other than batches.

It is a module that is started with the job's definition on its standard input. What both say goes
through a socket; a page tells what it is doing, for when it hangs or dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from penstock.server.environment import worker_environment
from penstock.server.node.page import PAGE_BYTES, Page
from penstock.server.sources.catalog import cache_variable, take_catalogs
from penstock.wire.errors import Internal, PenstockError, encode_error

END_S = 2.0
"""How long a process whose work is done may take to end."""


class Aside(NamedTuple):
    """A process that was started.

    Attributes:
        process: The process.
        page: Where it notes what it does.
        socket: What it hears and says.
    """

    process: subprocess.Popen[bytes]
    page: Page
    socket: socket.socket


def start_aside(
    module: str,
    definition: bytes,
    *arguments: object,
    files_fd: int = -1,
    output: int | None = None,
) -> Aside:
    """Start a module, which calls `began` first.

    Args:
        module: Its name.
        definition: The definition of a job, for its standard input.
        arguments: What it is told beside.
        files_fd: What is known of the job's files (`pack_catalogs`); -1 = nothing.
        output: A descriptor for what code of users prints; None = the standard output.

    Raises:
        OSError: The system has no memory, process or file descriptor left for it.
    """
    ours, theirs = socket.socketpair()
    page_fd = -1
    try:
        page_fd = os.memfd_create("penstock-page", os.MFD_CLOEXEC)
        os.ftruncate(page_fd, PAGE_BYTES)
        fds = [theirs.fileno(), page_fd, files_fd]
        told = [*fds, os.getpid(), *arguments]
        with open(os.memfd_create("penstock-job", os.MFD_CLOEXEC), "w+b") as text:
            text.write(definition)
            text.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, told)],
                env=worker_environment({**os.environ, **cache_variable()}),
                pass_fds=[fd for fd in fds if fd >= 0],
                stdin=text,
                stdout=output,
            )
        return Aside(process, Page(page_fd), ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if page_fd >= 0:
            os.close(page_fd)


class Began(NamedTuple):
    """What a process was started with.

    Attributes:
        socket: What it hears and says.
        page: Where it notes what it does.
        definition: The job's.
        arguments: What else it was told.
    """

    socket: socket.socket
    page: Page
    definition: bytes
    arguments: list[str]


def began(argv: list[str]) -> Began | None:
    """Return what this process was started with; None = its parent has died already.

    Args:
        argv: Its arguments, without its name.
    """
    # Here and not above: the process that starts others needs none of it.
    from penstock.server.node.child import die_with_parent

    fd, page_fd, files_fd, parent = map(int, argv[:4])
    die_with_parent()
    if os.getppid() != parent:
        return None  # the parent died before prctl took effect
    if files_fd >= 0:
        take_catalogs(files_fd)
    channel = socket.socket(fileno=fd)
    return Began(channel, Page(page_fd, write=True), sys.stdin.buffer.read(), argv[4:])


def attend(
    argv: list[str],
    work: Callable[[Began, BinaryIO, BinaryIO], None],
    refuse: Callable[[BinaryIO, bytes], None],
) -> None:
    """Do the work of this process, whose command hears and ends it; an error is told, and ends it.

    Args:
        argv: Its arguments, without its name.
        work: Does it, given what the command says and where to answer.
        refuse: Writes an error, as `encode_error` gives it, where answers go.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends us
    if (start := began(argv)) is None:
        return
    with (
        start.socket,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
        start.socket.makefile("rb") as heard,
        start.socket.makefile("wb") as out,
    ):
        try:
            work(start, heard, out)
        except PenstockError as error:
            refuse(out, encode_error(error))
        except Exception as error:
            bug = Internal(f"a bug in penstock: {type(error).__name__}: {error}")
            refuse(out, encode_error(bug))
            raise


def end_aside(process: subprocess.Popen[bytes]) -> int:
    """Let a process whose work is done end by itself, kill it if it does not; return its status."""
    try:
        return process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def short_status(code: int) -> str:
    """Return an exit status in a word or two."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


__all__ = ["Aside", "Began", "attend", "began", "end_aside", "short_status", "start_aside"]
