"""Work that no signal can interrupt: it runs on another thread while the caller waits.

Python runs signal handlers on the main thread, between any two bytecodes. One that raises, as
Ctrl-C does, can leave a lock of Python code locked forever: `threading.Condition` and
`logging.Handler` take theirs in Python. gRPC uses such locks too, together with its own threads,
so one Ctrl-C could stop a connection for good.

So the thread that reads batches calls nothing of that kind itself. It leaves that to a thread of
ours, on which no handler ever runs, and waits with primitives that are written in C, which either
complete or do nothing.
"""

from __future__ import annotations

import _thread
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from penstock.wire.plain import plain_lines

T = TypeVar("T")

SLICE_S = 0.5
"""A wait is cut into pieces: a signal that comes right before one, or to another thread, does not
end it, and its handler runs after it."""

LOG_S = 1.0
"""How long the caller waits until a message is logged."""


class Patience(Protocol):
    """Whether the caller still waits for the work: a lock that is held as long as it does."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Wait; True = the caller does not wait for the work any more."""
        ...


def in_background(work: Callable[[Patience], T], *, patience_s: float = -1) -> T:
    """Return what `work` returns, computed on a thread of its own.

    If an exception interrupts the wait, the work goes on: so it must be safe to do it once more.
    Work that takes long checks its `Patience` now and then.

    Args:
        work: What is to be done.
        patience_s: How long to wait for it, in seconds; -1 = until it is done.

    Raises:
        TimeoutError: It was not done within `patience_s`.
        BaseException: What `work` raised.
    """
    waiting, done = _thread.allocate_lock(), _thread.allocate_lock()
    done.acquire()
    results: list[T] = []
    failures: list[BaseException] = []
    todo = [work]

    def run() -> None:
        try:
            # Nothing of the work is left when the caller goes on: this thread may end after that.
            results.append(todo.pop()(waiting))
        except BaseException as error:  # the edge of the thread: the caller raises it
            failures.append(error)
        finally:
            done.release()

    with waiting:  # written in C: it is released however this block ends
        try:
            if sys.is_finalizing():  # before Python 3.12 a thread starts then, and never runs
                run()
            else:
                _thread.start_new_thread(run, ())
        except RuntimeError:  # since Python 3.12 a process that ends starts no thread
            run()
        end = math.inf if patience_s < 0 else time.monotonic() + patience_s
        while not done.acquire(timeout=max(0.0, min(SLICE_S, end - time.monotonic()))):
            if time.monotonic() >= end:
                raise TimeoutError(f"not done within {patience_s} s")
    if failures:
        try:
            raise failures.pop()
        finally:
            del run  # else the error's traceback would be a circle
    return results.pop()


def log_in_background(write: Callable[..., None], message: str, *values: Any) -> None:
    """Log a message from a thread that cannot be interrupted while it holds the logger's lock.

    Args:
        write: `logger.info`, `logger.warning`.
        message: The message, with `%` for its values.
        values: What is filled in; a terminal obeys none of it, as some comes from a server.
    """
    shown = [plain_lines(value) if isinstance(value, str) else value for value in values]
    try:
        in_background(lambda _: write(message, *shown), patience_s=LOG_S)
    except TimeoutError:
        return  # another thread holds the logger's lock: the message comes when it is free
