"""How a process with roles is started: as a fork of a zygote, in a fixed environment.

One way for all of them: those that make and plan batches, count, measure, and pack windows. Each is
a module with a function `main`, which is given what the process inherits (`child.Inherited`): a
socket, a page, what is known of the job's files, and the job. It does not outlive the process that
has started it, whose child it is; its working folder and output are the ones of that process at
this moment. Limits and priorities are those that it had as its zygote was started.

A process has one zygote (`penstock.server.processes.zygote`), a fresh program in the environment
that processes with roles have (`penstock.server.process.environment`). Where that environment
changes, as by code of users that builds jobs, or the zygote has ended, the next start begins with
another one.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.server.files.catalog import cache_variable
from penstock.server.logs.captured import for_children, stderr_of_children
from penstock.server.process.allocator import preloaded
from penstock.server.process.environment import worker_environment
from penstock.server.processes.page import PAGE_BYTES, Page
from penstock.server.processes.shared_memory import sealed_memory

logger = logging.getLogger("penstock")

ANSWER_S, LOADED_S = 60.0, 120.0
"""How long a zygote may take to fork, and to do its imports: one that was stopped never does.

The former holds the server process up. The latter took more than a minute on two cores at a load
of 25 (2026-11-28)."""

END_S = 2.0
"""How long a zygote whose socket has closed may take to end by itself."""

MOST_PAUSE_S = 0.05
"""Between two looks at a process whose end is waited for with a deadline."""

WORKER, COUNT = "penstock.server.node.workers.worker_main", "penstock.server.node.workers.count"
"""The tasks of a node."""

COMMON = ("penstock.server.jobs.definition",)
"""What every task with a job needs."""

PADDING = " " * 64
"""An argument of the zygote, which leaves room for what its children are called."""

LOADED = b"loaded"
"""What asks the zygote whether it has done its imports."""

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class StartedChild:
    """A process that was started, which is ended and waited for by what has started it.

    Args:
        pid: Its process id.

    Attributes:
        returncode: How it ended, as `subprocess` says it; None = that is not known yet.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return how it ended.

        Raises:
            subprocess.TimeoutExpired: It has not ended within so many seconds.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        pause_s = MOST_PAUSE_S / 64
        while (status := self._wait(0 if end_s is None else os.WNOHANG)) is None:
            if end_s is not None and time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        return status

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, how: int) -> int | None:
        # Only one thread at a time may wait for it: the other one would find no such child.
        if self.returncode is None and self._waiting.acquire(blocking=how == 0):
            try:
                if self.returncode is None:
                    pid, status = os.waitpid(self.pid, how)
                    if pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # code of users has waited for it: nobody will know
                self.returncode = 0
            finally:
                self._waiting.release()
        return self.returncode


class Process(NamedTuple):
    """A process that was started.

    Attributes:
        process: The process.
        page: Where it notes what it does.
        socket: What it hears and says.
    """

    process: StartedChild
    page: Page
    socket: socket.socket


def start(
    module: str,
    *arguments: object,
    files_fd: int = -1,
    definition: bytes = b"",
    output: int = 1,
    errors: int | None = None,
) -> Process:
    """Start a process that runs a module's `main`.

    Args:
        module: Its name.
        arguments: What it is told beside.
        files_fd: What is known of the job's files (`pack_catalogs`); -1 = nothing.
        definition: The definition of a job.
        output: A descriptor for what code of users prints.
        errors: One for its standard error; None = as that of all children.

    Raises:
        OSError: The system has no memory, process or file descriptor left for it.
    """
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_error, theirs:
            on_error.callback(ours.close)
            page_fd = _closed(stack, sealed_memory("penstock-page", PAGE_BYTES))
            folder = _closed(stack, os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            if errors is None:
                errors = stderr_of_children()
            fds = [output, 2 if errors is None else errors, folder, theirs.fileno(), page_fd]
            if definition:
                fds.append(_closed(stack, os.memfd_create("penstock-job", os.MFD_CLOEXEC)))
                with open(fds[-1], "wb", closefd=False) as file:
                    file.write(definition)
            if files_fd >= 0:
                fds.append(files_fd)
            request = {
                "module": module,
                "arguments": list(map(str, arguments)),
                "parent": os.getpid(),
                "definition": bool(definition),
            }
            with _asking:
                child = _fork(module, json.dumps(request).encode(), fds)
            page = Page(page_fd)
            on_error.pop_all()
        return Process(child, page, ours)


def _closed(stack: contextlib.ExitStack, fd: int) -> int:
    """Return a descriptor that is closed with a stack."""
    stack.callback(os.close, fd)
    return fd


def preload(*modules: str) -> None:
    """Start the zygote, which imports what tasks need while this process does something else.

    Args:
        modules: Those of the tasks.

    Raises:
        OSError: The system has no memory or process left for it.
    """
    with _asking:
        _modules[:] = modules
        _current()


def await_zygote() -> None:
    """Wait until the zygote has done its imports, so that it forks at once; in a thread.

    Raises:
        OSError: There is none, for the reason that the system gives.
    """
    with _asking:
        zygote = _current()
        try:
            zygote.ask(LOADED, (), LOADED_S)
        except ConnectionError:
            zygote.await_end()
            raise


def kill_zygote() -> None:
    """End the zygote, and with that what waits for it."""
    for zygote in _zygotes:
        zygote.kill()


def program_environment() -> dict[str, str]:
    """Return the environment that a process is started in now."""
    return preloaded(worker_environment({**os.environ, **cache_variable(), **for_children()}))


# --- the zygote, as this process sees it ----------------------------------------------------------


class _Zygote:
    """The process that forks, for the process that has started it."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment, self.owner, self.was_killed = environment, os.getpid(), False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "penstock.server.processes.zygote"]
        try:
            with theirs, _without_signals():
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), PADDING, *modules],
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=stderr_of_children(),
                )
        except BaseException:
            self._socket.close()
            raise

    @property
    def status(self) -> int | None:
        """Return how it has ended; None = it has not."""
        return self._process.poll()

    def ask(self, request: bytes, fds: Sequence[int], within_s: float = ANSWER_S) -> int:
        """Return the answer to a request: the process id of a new child, where it is for one.

        Args:
            request: What is wanted.
            fds: Descriptors that the child has.
            within_s: How long that may take.

        Raises:
            OSError: There is none, for the reason that the system gives, or in time.
        """
        self._socket.settimeout(within_s)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        try:
            with _taking_orphans():
                self._socket.sendmsg([request], [rights])
                answer = self._socket.recv(64)
        except ConnectionError:
            answer = b""
        except TimeoutError as error:
            self.close()
            raise TimeoutError(
                f"the process that forks them has not answered within {within_s:.0f} s, so it is "
                "stopped, or the machine is overloaded: look at its load, then start again"
            ) from error
        except BaseException:
            # An answer may still come, which nobody would take for that of the next request.
            self.close()
            raise
        if not answer:
            raise ConnectionResetError("the process that forks others has ended")
        if (pid := int(answer)) < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def kill(self) -> None:
        """End it, whatever it does."""
        self.was_killed = True
        self._process.kill()
        self._process.wait()

    def await_end(self) -> None:
        """Wait until it has ended: its socket closes a moment before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it; it has no state."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()


_asking = threading.Lock()
_modules: list[str] = []
"""What a zygote imports: those of tasks."""

_zygotes: list[_Zygote] = []
"""The one of this process, if it was needed."""


def _fork(module: str, request: bytes, fds: Sequence[int]) -> StartedChild:
    """Return a new child, forked by the zygote or, where that has ended just now, by another one.

    Raises:
        OSError: There is none.
    """
    try:
        return StartedChild(_current(module).ask(request, fds))
    except ConnectionError:
        _zygotes[0].await_end()
    return StartedChild(_current(module).ask(request, fds))


def _current(module: str = "") -> _Zygote:
    """Return the zygote of this process, started where there is none in the right environment."""
    environment = program_environment()
    if _zygotes:
        zygote = _zygotes[0]
        status = zygote.status if zygote.owner == os.getpid() else None
        if status is None and (zygote.owner, zygote.environment) == (os.getpid(), environment):
            return zygote
        if status is not None and not zygote.was_killed:
            logger.warning(
                "the process that starts workers has ended with status %d; another one is started",
                status,
            )
        _end()
    if module and module not in _modules:
        _modules.append(module)
    _zygotes.append(_Zygote([*COMMON, *_modules], environment))
    # It stands there once; after what hears the standard error of children, so that it runs before.
    atexit.unregister(_end)
    atexit.register(_end)
    return _zygotes[0]


def _end() -> None:
    while _zygotes:
        _zygotes.pop().close()


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """Hold signals back from this thread, and from a zygote that it starts until that ignores them.

    A process that is still importing would end with a traceback at Ctrl-C.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _taking_orphans() -> Iterator[None]:
    """Let descendants of this process whose parent ends become its children."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _prctl(option: int, value: Any) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
