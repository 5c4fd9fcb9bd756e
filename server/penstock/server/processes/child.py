"""What every process that runs roles does about its parent, its forks and its errors."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.server.logs.captured import raw_line
from penstock.server.processes.page import Page
from penstock.wire.errors import PenstockError
from penstock.wire.plain import clean_text

MAX_MESSAGE, MAX_FIELD = 4000, 16_000
"""Characters of an error's sentence and of any text in its fields that leave a worker: a role's
message is copied to the server process, its output and every reader, and may be as long as a
file."""


class Inherited(NamedTuple):
    """What a process with roles was started with.

    Attributes:
        socket: What it hears and says.
        page: Where it notes what it does.
        files_fd: What is known of the jobs' files (`take_catalogs`); -1 = nothing.
        definition: The definition of the job that it is for; empty = it is told of jobs later.
        arguments: What else it was told.
    """

    socket: socket.socket
    page: Page
    files_fd: int
    definition: bytes
    arguments: Sequence[str]


def die_with_parent() -> None:
    """Let the kernel end this process when the server process dies, even while a role computes."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _mark() -> mmap.mmap | None:
    """Return memory that holds a 1, and a 0 in every process that is forked from this one.

    None if the system has no such memory (Linux has it from 4.14 on).
    """
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(_WIPE_ON_FORK)
    except OSError:
        return None
    page[0] = 1
    return page


_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, which Python's mmap does not name
MARK = _mark()


def mark_anew() -> None:
    """Mark this process, which is a fork, as one that forks of its own are told from."""
    if MARK is not None:
        MARK[0] = 1


def is_forked(pid: int) -> bool:
    """Tell whether this process is a fork of the one that had a process id; asked all the time.

    However it was forked, by Python or by native code.
    """
    return os.getpid() != pid if MARK is None else not MARK[0]


def end_fork(pid: int, jobs: Iterable[str]) -> None:
    """End this process if a role has forked it and it came back out of the role.

    It shares the port and the arenas: a second answer, or a batch written over another.

    Args:
        pid: The process that it may be a fork of.
        jobs: The names of the job that that was working for.
    """
    if is_forked(pid):
        whose = "".join(f" of job {name!r}" for name in jobs)
        os.write(
            2, raw_line(f"penstock: a process that a role{whose} forked came back; it is ended")
        )
        os._exit(70)


def told(error: PenstockError) -> dict[str, Any]:
    """Return an error as JSON of bounded texts: `code`, `message` and `fields`."""
    return {
        "code": error.code,
        "message": clean_text(str(error.message), MAX_MESSAGE),
        "fields": _clean(error.fields),
    }


def _clean(value: Any) -> Any:
    """Return the fields of an error as JSON of bounded texts; they may come from a role."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else clean_text(hex(value), MAX_FIELD)
    if isinstance(value, str):
        return clean_text(value, MAX_FIELD)
    if isinstance(value, Mapping):
        return {clean_text(str(name), 99): _clean(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value[:1000]]
    return f"a {type(value).__name__}"
