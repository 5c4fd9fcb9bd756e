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

from penstock.server.node.page import Page
from penstock.server.node.start import Process, inherit, start
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.errors import Internal, PenstockError
from penstock.wire.sent_errors import encode_error

END_S = 2.0
"""How long a process whose work is done may take to end."""


def start_aside(
    module: str,
    definition: bytes,
    *arguments: object,
    files_fd: int = -1,
    output: int | None = None,
) -> Process:
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
    with open(os.memfd_create("penstock-job", os.MFD_CLOEXEC), "w+b") as text:
        text.write(definition)
        text.seek(0)
        return start(module, *arguments, files_fd=files_fd, stdin=text, stdout=output)


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
    if (found := inherit(argv)) is None:
        return None
    take_catalogs(found.files_fd)
    return Began(found.socket, found.page, sys.stdin.buffer.read(), found.arguments)


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
    if (found := began(argv)) is None:
        return
    with (
        found.socket,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
        found.socket.makefile("rb") as heard,
        found.socket.makefile("wb") as out,
    ):
        try:
            work(found, heard, out)
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


__all__ = ["Began", "attend", "began", "end_aside", "short_status", "start_aside"]
