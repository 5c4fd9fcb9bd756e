"""Processes that a command, or a test, starts for itself: forked, in place of started anew.

A worker, the process of `local:` and those that count or measure import for longer than most tests
last. Here they are forks of a process that has done these imports and nothing else, and then do
what `python -P -m` does. Each is a child of the process that asks for it, as if that had started
it: a fork whose own parent ends at once is given to the nearest ancestor that says it takes such
(`PR_SET_CHILD_SUBREAPER`), which the asking process does for that moment.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.server import local
from penstock.server.node import start as starting

MODULES = (
    "penstock.server.node.worker_main",
    "penstock.server.node.count",
    "penstock.server.indexing.worker",
    "penstock.server.commands.plan_windows",
    "penstock.server.local_node",
)
"""What is forked. `penstock.server.commands.purity` is not: another hash seed is a new process."""

PYTHON = sys.executable
MAX_REQUEST = 1 << 20
NAME = "nursery"
"""What the system calls a process that forks others: it is not counted among the children."""

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36


def be_called(name: str) -> None:
    """Let the system call this process so."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option: int, value: Any) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Child:
    """A child of this process, with the face of `subprocess.Popen`.

    Args:
        pid: Its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self._wait(0 if end is None else os.WNOHANG)) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.001)
        return status

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

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
            finally:
                self._waiting.release()
        return self.returncode


# --- the process that asks ------------------------------------------------------------------------


def install(ask: Callable[[bytes, Sequence[int]], int]) -> None:
    """Let this process's children be forked.

    Args:
        ask: Given a request and its file descriptors, returns the process id of the child.
    """
    asking = threading.Lock()

    def start(command: list[str], **how: Any) -> Any:
        stdin = how.get("stdin")
        is_known = command[:3] == [PYTHON, "-P", "-m"] and command[3] in MODULES
        if not is_known or stdin is None:
            return subprocess.Popen(command, **how)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = how.get("stdout")
        first = [nothing if stdin == subprocess.DEVNULL else stdin.fileno()]
        errors = how.get("stderr")
        first += [1 if output is None else output, 2 if errors is None else errors]
        request = {
            "command": command[3:],
            "environment": dict(how["env"]),
            "folder": os.getcwd(),
            "own_session": how.get("start_new_session", False),
            "held_back": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "fds": list(how["pass_fds"]),
        }
        with asking:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                return Child(ask(json.dumps(request).encode(), [*first, *request["fds"]]))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
                os.close(nothing)

    forked = types.SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    for module in (starting, local):
        module.subprocess = forked  # type: ignore[assignment]


def install_own(become: Callable[[Sequence[str]], None]) -> None:
    """Fork what forks this process's children, while it has no thread yet.

    Args:
        become: Runs a module as a program, given its name and arguments.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    be_called(NAME)  # before it is there: whoever kills a child must not meet it without its name
    if not os.fork():
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while (asked := receive(theirs))[0]:
            theirs.send(str(bear(json.loads(asked[0]), asked[1], [theirs], become)).encode())
        os._exit(0)
    be_called("python")
    theirs.close()

    def ask(request: bytes, fds: Sequence[int]) -> int:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        ours.sendmsg([request], [rights])
        return int(ours.recv(64))

    install(ask)


# --- the process that forks -----------------------------------------------------------------------


def receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its file descriptors; nothing when nobody asks any more."""
    fds = array.array("i")
    data, ancillary, _, _ = requests.recvmsg(MAX_REQUEST, socket.CMSG_LEN(16 * fds.itemsize))
    for _, _, found in ancillary:
        fds.frombytes(found)
    return data, list(fds)


def bear(
    told: Mapping[str, Any],
    fds: Sequence[int],
    own: Sequence[socket.socket],
    become: Callable[[Sequence[str]], None],
) -> int:
    """Fork a child of the process that asks; return its process id.

    Args:
        told: The request.
        fds: Its file descriptors.
        own: Sockets of this process that are not for the child.
        become: Runs a module as a program, given its name and arguments.
    """
    read, write = os.pipe()
    waits, begins = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        for one in own:
            one.close()
        for fd in (read, write, begins):
            os.close(fd)
        os.read(waits, 1)  # until it is the asking process's child
        os.close(waits)
        _grow_up(told, fds, become)
    os.waitpid(between, 0)
    pid = int(os.read(read, 64))
    for fd in (read, write, waits, begins, *fds):
        os.close(fd)
    return pid


def _grow_up(
    told: Mapping[str, Any], fds: Sequence[int], become: Callable[[Sequence[str]], None]
) -> None:
    """Be what `python -P -m module` is."""
    numbers = [0, 1, 2, *told["fds"]]
    # First out of the way of each other's numbers.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 3 + max(*fds, *numbers)) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if told["own_session"]:
        os.setsid()
    be_called("python")
    signal.set_wakeup_fd(-1)
    # As a process that is started inherits it.
    signal.pthread_sigmask(signal.SIG_SETMASK, told["held_back"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    known = set(sys.path)
    paths = told["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in known]
    # A mark that forks lack: this process is no fork of another worker.
    for name, module in list(sys.modules.items()):
        if name.startswith("penstock.") and hasattr(module, "MARK"):
            del sys.modules[name]
    status = 1
    try:
        become(told["command"])
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        os._exit(status)


__all__ = ["NAME", "Child", "be_called", "bear", "install", "install_own", "receive"]
