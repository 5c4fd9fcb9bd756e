"""A process for a task other than batches, such as to count: what it and its command share.

It is started with the job's definition (`penstock.server.processes.start`). What both say goes
through a socket; a page tells what it is doing, for when it hangs or dies.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable
from typing import BinaryIO

from penstock.server.files.catalog import take_catalogs
from penstock.server.processes.child import Inherited
from penstock.server.processes.start import StartedChild
from penstock.wire.errors import Internal, PenstockError
from penstock.wire.sent_errors import encode_error

END_S = 2.0
"""How long a process whose work is done may take to end."""


def attend(
    inherited: Inherited,
    work: Callable[[Inherited, BinaryIO, BinaryIO], None],
    refuse: Callable[[BinaryIO, bytes], None],
) -> None:
    """Do the work of this process, whose command hears and ends it; an error is told, and ends it.

    Args:
        inherited: What this process was started with.
        work: Does it, given that, what the command says and where to answer.
        refuse: Writes an error, as `encode_error` gives it, where answers go.
    """
    take_catalogs(inherited.files_fd)
    with (
        inherited.socket,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
        inherited.socket.makefile("rb") as heard,
        inherited.socket.makefile("wb") as out,
    ):
        try:
            work(inherited, heard, out)
        except PenstockError as error:
            refuse(out, encode_error(error))
        except Exception as error:
            bug = Internal(f"a bug in penstock: {type(error).__name__}: {error}")
            refuse(out, encode_error(bug))
            raise


def end_child(process: StartedChild) -> int:
    """Let a process whose work is done end by itself, kill it if it does not; return its status."""
    try:
        return process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def short_status(code: int) -> str:
    """Return an exit status in a word or two."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
