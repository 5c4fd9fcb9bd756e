"""Processes of our commands, forked from one that has done their imports.

To import a server takes longer than all that most tests do with it, and a run of the tests starts
hundreds. So one process imports what the commands import, and nothing else: it starts no thread and
no gRPC. Each command is a fork of it that then does what `python -m` does: a process of its own,
with its own files, signals, environment and end, that is killed and waited for like any other.
Commands as a user starts them, in an interpreter of their own, run in `e2e/test_wheel.py`.

`python -m forge` is that process; `Forge` starts it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from penstock.common.programs import COMMANDS
from penstock.server.process.environment import FIXED

ENDED = "ended"
MAX_REQUEST = 1 << 20


# --- the process that forks -----------------------------------------------------------------------


def _import() -> None:
    """Import what the commands import, but not the modules that are run as a program."""
    names = [f"penstock.client.commands.{name}" for name in ("cat", "cursors", "ping", "top")]
    names += [f"penstock.server.commands.{name}" for name in COMMANDS["penstockd"]]
    for name in ("penstock.server.app", "penstock.server.commands.group", *names):
        importlib.import_module(name)


def main() -> None:
    """Fork a process for each request, and tell how each has ended, until nobody asks any more."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    woken, wake = socket.socketpair()
    for one in (woken, wake):
        one.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who runs the tests ends them, and with them this
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    _import()
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
            _reap(requests)
        if requests in ready:
            data, fds = _receive(requests)
            if not data:
                return
            if not (pid := os.fork()):
                for one in (requests, woken, wake):
                    one.close()
                _become(json.loads(data), fds)
                return
            for fd in fds:
                os.close(fd)
            requests.send(json.dumps(["started", pid]).encode())


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its file descriptors; nothing when nobody asks any more."""
    fds = array.array("i")
    data, ancillary, _, _ = requests.recvmsg(MAX_REQUEST, socket.CMSG_LEN(3 * fds.itemsize))
    for _, _, found in ancillary:
        fds.frombytes(found)
    return data, list(fds)


def _reap(requests: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            requests.send(json.dumps([ENDED, pid, os.waitstatus_to_exitcode(status)]).encode())


def _become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Be what `python -m module` is."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    sys.path.insert(0, os.getcwd())
    module, *arguments = request["command"]
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    gc.unfreeze()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


# --- the side of the tests ------------------------------------------------------------------------


class Forked:
    """A process that was forked for us, with the face of `subprocess.Popen`."""

    def __init__(self, pid: int, stderr: IO[str] | None) -> None:
        self.pid, self.stderr = pid, stderr
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forge:
    """The process that forks, as the tests see it; it ends with them."""

    _one: Forge | None = None

    @classmethod
    def shared(cls) -> Forge:
        """Return the one of this process, started when it is first asked for."""
        if cls._one is None or cls._one._pid != os.getpid():
            cls._one = cls()
        return cls._one

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forge", str(theirs.fileno())],
            env={**os.environ, **FIXED, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._asking = threading.Lock()
        self._started: list[int] = []
        self._has_started = threading.Condition()
        self._running: dict[int, Forked] = {}
        self._early: dict[int, int] = {}
        threading.Thread(target=self._listen, name="forge", daemon=True).start()
        atexit.register(self._close)

    def _close(self) -> None:
        """End the process, unless this is a fork of the one that has started it."""
        if self._pid == os.getpid():
            self._socket.shutdown(socket.SHUT_RDWR)
            self._process.wait(10)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        *,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> Forked:
        """Start a command, as `subprocess.Popen` starts `python -m`.

        Args:
            command: The module, and what it is given.
            environment: All of its variables.
            folder: Where it runs.
            stdout: Where its output goes; None = where ours goes.
            stderr: Or `subprocess.PIPE`, which is read as text.
        """
        pipe: IO[str] | None = None
        ours: list[int] = []
        out = 1 if stdout is None else stdout if isinstance(stdout, int) else stdout.fileno()
        if stderr == subprocess.PIPE:
            read, err = os.pipe()
            pipe, ours = os.fdopen(read, buffering=1), [err]
        else:
            err = 2 if stderr is None else stderr if isinstance(stderr, int) else stderr.fileno()
        request = {
            "command": command,
            "folder": folder,
            "environment": {**environment, **FIXED},
        }
        nothing = os.open(os.devnull, os.O_RDONLY)
        fds = array.array("i", [nothing, out, err])
        try:
            with self._asking, self._has_started:
                process = Forked(self._ask(json.dumps(request).encode(), fds), pipe)
                self._running[process.pid] = process
                if process.pid in self._early:
                    self._end(process.pid, self._early.pop(process.pid))
        finally:
            for fd in (nothing, *ours):
                os.close(fd)
        return process

    def _ask(self, request: bytes, fds: array.array[int]) -> int:
        self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        assert self._has_started.wait_for(lambda: self._started, 60), "no process"
        return self._started.pop()

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], folder: str, deadline_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` runs `python -m` and captures its output.

        Raises:
            subprocess.TimeoutExpired: It takes longer than `deadline_s`, and was killed.
        """
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = self.start(command, environment, folder, stdout=out, stderr=err)
            try:
                status = process.wait(deadline_s)
            finally:
                process.kill()
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(command, status, out.read(), err.read())

    def _listen(self) -> None:
        while data := self._socket.recv(4096):
            kind, pid, *status = json.loads(data)
            with self._has_started:
                if kind == ENDED:
                    self._end(pid, status[0])
                else:
                    self._started.append(pid)
                    self._has_started.notify_all()

    def _end(self, pid: int, status: int) -> None:
        if pid in self._running:
            process = self._running.pop(pid)
            process.returncode = status
            process.ended.set()
        else:
            self._early[pid] = status


__all__ = ["Forge", "Forked"]

if __name__ == "__main__":
    main()
