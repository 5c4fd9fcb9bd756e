"""The node of `local:`: as `penstockd serve` runs one, for one process, which has started it.

It is started as `python -m penstock.server.local_node CONTROL_FD PARENT ADDRESS STORE JOB TARGET`,
in the environment of the workers, and with their allocator. It has one worker, serves one job or
all, and where its reader has no group it opens no store.

The worker is forked from it, before there is a thread, gRPC or code of users in it: what both
import is imported once, and that is most of what a first batch waits for. A worker that takes the
place of one that has died is started as on every node.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from types import TracebackType
from typing import Any

from penstock.server.collecting import collect_seldom

if __name__ == "__main__":
    collect_seldom()  # until the node is ready

from penstock.server.allocator import withdraw
from penstock.server.hidden import hidden
from penstock.server.jobs.load import load
from penstock.server.local import FAILED, READY, SAID
from penstock.server.node import child, worker_main
from penstock.server.node.early import Early
from penstock.server.node.memory import sealed_memory
from penstock.server.node.page import PAGE_BYTES, Page
from penstock.server.node.start import Process, program_environment
from penstock.server.sources.catalog import catalogs_memory
from penstock.server.usercode.contained import exits_are_errors
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import Internal, PenstockError

SETTINGS = {"workers": "1", "metrics": "off", "remote_page": "off"}


WAIT_S = 0.005
"""Between two looks at a process that is about to end."""


class Forked:
    """A fork of this process, with the face of `subprocess.Popen`.

    Args:
        pid: Its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return how it ended.

        Raises:
            subprocess.TimeoutExpired: It has not ended within so many seconds.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            time.sleep(WAIT_S)
        return status

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_worker(control: socket.socket) -> Early:
    """Return the worker, forked from this process.

    Args:
        control: What the worker must not hold open.
    """
    files_fd, page_fd = catalogs_memory(), sealed_memory("penstock-page", PAGE_BYTES)
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    gc.freeze()  # what is there stays shared: no collection touches it
    pid = os.fork()
    if pid:
        theirs.close()
        process: Any = Forked(pid)
        found = Process(process, Page(page_fd), ours)
        os.close(page_fd)
        return Early(files_fd, program_environment(), {0: found})
    status = 1
    try:
        ours.close()
        control.close()
        if child.MARK is not None:
            child.MARK[0] = 1  # of a worker: forks of this one are a role's
        worker_main.main([str(fd) for fd in (theirs.detach(), page_fd, files_fd, parent)])
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)


class Caller:
    """The one process that a node of `local:` is for, at the other end of a socket.

    Args:
        control: The node's end.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def tell(self, kind: str, value: Any = None) -> None:
        """Tell something, from any thread; it may be gone."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps([kind, value]).encode() + b"\n")

    def __enter__(self) -> Caller:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: it waits for the process to end."""

    def ready(self) -> None:
        """Tell it that the node can be called."""
        self.tell(READY)

    async def gone(self) -> None:
        """Return when it has hung up, or ended."""
        import asyncio  # not above: nothing of it is for the worker

        loop, hung_up = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._control, hung_up.set)  # it says nothing
        await hung_up.wait()
        loop.remove_reader(self._control)


class Said(logging.Handler):
    """Tells the caller what the log says, which is its log's then."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(logging.WARNING)
        self._caller = caller

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a record."""
        self._caller.tell(SAID, [record.levelno, record.getMessage()])


def _sentence(_logger: Any, _name: str, event: Any) -> str:
    """Return an event of the log as one line: what happened, then its fields."""
    said = event.pop("event")
    fields = ", ".join(f"{key} {value}" for key, value in event.items() if key != "exc_info")
    return f"{said} ({fields})" if fields else str(said)


def _log_to(caller: Caller) -> None:
    with hidden("rich"):  # for tracebacks that no log here has
        import structlog

    structlog.configure(
        processors=[_sentence],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    logging.getLogger("penstock").handlers = [Said(caller)]
    logging.getLogger("penstock").propagate = False


def _run(caller: Caller, early: Early, arguments: list[str]) -> None:
    address, store, job, target = arguments
    config = load(target, overrides={**SETTINGS, "listen": f"unix:{address}"})
    names = [job or next(iter(config.jobs))] if job or len(config.jobs) == 1 else None
    _log_to(caller)
    # Here and not above: nothing of this is for the worker.
    from penstock.server.app import run
    from penstock.server.looking import LookingStore
    from penstock.server.store.recorded import Recorded

    recorded = Recorded(config.server.store, config.base)
    looking = None if store == "group" else LookingStore(recorded)
    run(config, early=early, users=caller, names=names, store=looking)


def main(argv: list[str]) -> None:
    """Serve until the parent hangs up."""
    withdraw()  # before anything here starts a process of its own
    control_fd, parent, *arguments = argv
    child.die_with_parent()
    if os.getppid() != int(parent):
        return  # the parent died before that took effect
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # what a role prints is read while it runs
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    control = socket.socket(fileno=int(control_fd))
    caller = Caller(control)
    with fork_worker(control) as early, exits_are_errors():
        try:
            _run(caller, early, arguments)
        except PenstockError as error:
            caller.tell(FAILED, child.told(error))
        except BaseException as error:
            what = f"a bug in penstock: {error_line(error)}"
            caller.tell(FAILED, child.told(Internal(what, traceback=traceback.format_exc())))


if __name__ == "__main__":
    main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(0)  # as `penstockd serve` does: all that lasts is closed
