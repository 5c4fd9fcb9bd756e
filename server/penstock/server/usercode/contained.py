"""Calls code of users so that it cannot end the process: what it raises is its own error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from penstock.server.usercode.frames import error_text

T = TypeVar("T")


class Escaped(Exception):
    """Code of a user raised what ends a process: `sys.exit()`, or a panic of native code.

    Its traceback is the one of what was raised, which is its cause.
    """


class ProcessExit(SystemExit):
    """Code of a user called `os._exit()` in a process of ours."""


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """Make `os._exit()` raise in this process, within the block.

    It ends a process at once, without a message and with any status: a command whose job file names
    a module that calls it would seem to succeed. For penstock's own processes; children that a role
    forks may end as they like.
    """
    own, end = os.getpid(), os._exit

    def raise_here(status: int) -> NoReturn:
        if os.getpid() != own:
            end(status)
        raise ProcessExit(f"os._exit({status})")

    os._exit = raise_here
    try:
        yield
    finally:
        os._exit = end


def contained(call: Callable[[], T]) -> T:
    """Call code of a user; whatever it raises is an `Exception`.

    `sys.exit()` in a role would end a worker, or a command with exit status 0 and in silence.

    Raises:
        Escaped: It raised SystemExit, or another exception that is not an `Exception`.
        KeyboardInterrupt: The user pressed Ctrl-C, and it is not ignored.
    """
    try:
        return call()
    except BaseException as raised:
        error = as_exception(raised)
        if error is raised:
            raise
        raise error from raised


def as_exception(raised: BaseException) -> Exception:
    """Return the `Exception` for something that a user's code raised.

    For callers that call such code often and have a `try` of their own, in place of `contained`.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C, and it is not ignored.
    """
    if isinstance(raised, Exception):
        return raised
    if is_ctrl_c(raised):
        raise raised
    return escaped(raised)


def escaped(error: BaseException) -> Escaped:
    """Return the error that stands for one that would end the process."""
    kind = type(error)
    # Under its own name: sentences about an error begin with that of its type.
    named = type(kind.__name__, (Escaped,), {"__module__": kind.__module__})
    text = error_text(error)
    said = f"{text}; " if text else ""
    stands_for: Escaped = named(f"{said}code of a role must return or raise, not end the process")
    return stands_for.with_traceback(error.__traceback__)


def is_ctrl_c(error: BaseException) -> bool:
    """Tell whether an exception is a Ctrl-C; one that a role raises itself is not."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
