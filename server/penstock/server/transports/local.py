"""`local:FILE`: a node of one reader's own, with one worker, that ends with the process of that.

For a notebook, for tests, and to check what a server sent: the bytes are the same. The node
(`penstock.server.transports.local_node`) is a process, and so is its worker: the trainer keeps its
random generators, its threads and its modules to itself. It listens on a socket in a folder of this
user alone, and hangs on a socket pair besides, over which it says that it is ready, why it does not
start, and what its log says. It ends when that is closed, or with this process, however that ends.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from penstock.server.jobs.target import absolute_target
from penstock.server.process.allocator import preloaded
from penstock.server.process.environment import worker_environment
from penstock.server.process.extra import require_server
from penstock.server.transports.spawn import private_folder
from penstock.wire.errors import ERRORS, Internal, PenstockError, WorkerCrashed
from penstock.wire.memory_socket import memory_path
from penstock.wire.transports import Endpoint

logger = logging.getLogger("penstock")

READY, FAILED, SAID = "ready", "failed", "said"
"""What the node says, a line of JSON each: `[kind, value]`."""

GRACE_S = 5.0
"""How long a node that is told to end may take, before it is killed."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0
"""Between two starts of a node that dies at once."""


class PrivateNode:
    """A node that this process has for itself.

    A thread of this one starts the process, hears what it says, and starts it again where it ends
    while it is used: the kernel ends a process with the *thread* that has started it.

    Args:
        target: The job file.
        job: The job that it serves; empty = all of the file.
        grouped: It uses the file's store. Else it looks there for what makes it fast, and keeps its
            own records in memory: a running node has that store for itself.
        workers: How many workers it has.
        assignments: What `--set` gave keys of the jobs, as it was written.

    Raises:
        PenstockError: It does not start; what it says itself.
        OSError: The system has no memory, process or file descriptor left for it.
    """

    def __init__(
        self,
        target: str,
        job: str,
        *,
        grouped: bool,
        workers: int = 1,
        assignments: Sequence[str] = (),
    ) -> None:
        self._what, self._pid = f"local:{target}", os.getpid()
        folder = private_folder("local:")
        _remove_left(folder)
        # With the number of this process: who finds the socket later sees whether that lives.
        self.address = folder / f"{self._pid}-{uuid.uuid4().hex[:8]}.sock"
        store = "group" if grouped else "-"
        self._arguments = [self._pid, self.address, store, job, target, workers, *assignments]
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        # Not threading.Thread, nor an Event: their locks are left taken for ever where a Ctrl-C
        # meets the thread that waits for them.
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            _thread.start_new_thread(self._keep, ())
            failure = self._started.get()
        except BaseException:
            self.close()
            raise
        if failure is not None:
            self.close()
            raise failure

    def close(self) -> None:
        """End the node; idempotent. In a fork it is left to the parent."""
        if os.getpid() != self._pid or self._is_closed:
            return
        self._is_closed = True
        self._hang_up()
        with contextlib.suppress(queue.Empty):
            self._ended.get(timeout=GRACE_S)
            return
        if self._process is not None:
            self._process.kill()
        with contextlib.suppress(queue.Empty):
            self._ended.get(timeout=GRACE_S)

    def _hang_up(self) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                # Not by closing alone: a fork of ours may hold a copy of the socket.
                self._control.shutdown(socket.SHUT_RDWR)

    # --- in the thread ---

    def _keep(self) -> None:
        is_first, pause_s = True, FIRST_PAUSE_S
        while not self._is_closed:
            began = time.monotonic()
            try:
                was_ready, failure = self._run(is_first)
            except BaseException as error:
                was_ready, failure = False, error
            if is_first and not was_ready:
                self._started.put(failure)
                break
            if self._is_closed:
                break
            is_first = False
            logger.warning("%s; it is started again", failure)
            if time.monotonic() - began > MAX_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        _remove(self.address)
        self._ended.put(None)

    def _run(self, is_first: bool) -> tuple[bool, BaseException]:
        """Run the process to its end; return whether it was ready, and why it has ended."""
        self._control, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-P",
            "-m",
            "penstock.server.transports.local_node",
            str(theirs.fileno()),
        ]
        try:
            self._process = process = subprocess.Popen(
                [*command, *map(str, self._arguments)],
                # What a role prints is read while it runs.
                env=preloaded(worker_environment({**os.environ, "PYTHONUNBUFFERED": "1"})),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the trainer's terminal is not for it
            )
        finally:
            theirs.close()
        if self._is_closed:
            self._hang_up()
        was_ready, failure = False, None
        with self._control, self._control.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                kind, value = json.loads(line)
                if kind == SAID:
                    logger.log(value[0], "%s", value[1])
                elif kind == FAILED:
                    failure = _error(value)
                elif kind == READY and not was_ready:
                    was_ready = True
                    if is_first:
                        self._started.put(None)
        status = process.wait()
        return was_ready, failure or self._ending(status, was_ready)

    def _ending(self, status: int, was_ready: bool) -> PenstockError:
        """Return the error for a process that has ended without a word."""
        how = f"with status {status}" if status >= 0 else f"by {_signal_name(-status)}"
        sentence = f"the node of {self._what} was ended {how}"
        if was_ready:
            return Internal(sentence)
        return WorkerCrashed(
            f"{sentence} before it was ready: by a role as its job was built, by a crash in native "
            "code, or for want of memory",
            deaths=1,
            exit_status=status,
        )


def _error(told: dict[str, object]) -> PenstockError:
    kind = ERRORS.get(str(told["code"]), PenstockError)
    fields = told["fields"]
    assert isinstance(fields, dict)
    return kind.with_fields(str(told["message"]), fields)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _remove_left(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    for path in folder.glob("*-*.sock"):
        with contextlib.suppress(ValueError, PermissionError):
            try:
                os.kill(int(path.name.partition("-")[0]), 0)
            except ProcessLookupError:
                _remove(path)


def _remove(address: Path) -> None:
    for path in (address, Path(memory_path(f"unix:{address}") or address)):
        path.unlink(missing_ok=True)


def open_transport(rest: str, *, job: str = "", grouped: bool = True) -> Endpoint:
    """Start the node of `local:FILE`: an entry point of the group `penstock.transports`.

    Raises:
        MissingExtra: The server half's packages are not installed.
        PenstockError: The node does not start.
    """
    require_server(f"local:{rest}")
    node = PrivateNode(absolute_target(rest), job, grouped=grouped)
    return Endpoint(f"unix:{node.address}", node.close)
