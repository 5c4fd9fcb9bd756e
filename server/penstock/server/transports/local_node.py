"""The node of `local:`: as `penstockd serve` runs one, for one process, which has started it.

It is started as `python -m penstock.server.transports.local_node CONTROL_FD PARENT ADDRESS STORE
JOB TARGET WORKERS [JOB.KEY=VALUE ...]`, in the environment of the workers, and with their
allocator. It serves one job or all, and where its reader has no group it opens no store.

What its worker is forked from is started before anything else here: it imports while this does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import traceback
from types import TracebackType
from typing import Any

from penstock.server.process.garbage import collect_seldom

if __name__ == "__main__":
    collect_seldom()  # until the node is ready

from penstock.server.process.allocator import withdraw
from penstock.server.process.hidden import hidden
from penstock.server.processes import child
from penstock.server.processes.start import COUNT, WORKER, preload
from penstock.server.transports.local import FAILED, READY, SAID
from penstock.server.usercode.contained import exits_are_errors
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import Internal, PenstockError

SETTINGS = {"metrics": "off", "remote_page": "off"}


class NodeCaller:
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

    def __enter__(self) -> NodeCaller:
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

    def __init__(self, caller: NodeCaller) -> None:
        super().__init__(logging.WARNING)
        self._caller = caller

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a record."""
        self._caller.tell(SAID, [record.levelno, record.getMessage()])


def _sentence(_logger: Any, _name: str, event: Any) -> str:
    """Return an event of the log as one line: what happened, then its fields.

    What the caller is told as a reader, by an error, is not said here as well.
    """
    import structlog

    from penstock.server.node.supply.ticket_answers import CANNOT_BE_MADE

    said = event.pop("event")
    if said == CANNOT_BE_MADE:
        raise structlog.DropEvent
    fields = ", ".join(f"{key} {value}" for key, value in event.items() if key != "exc_info")
    return f"{said} ({fields})" if fields else str(said)


def _log_to(caller: NodeCaller) -> None:
    with hidden("rich"):  # for tracebacks that no log here has
        import structlog

    structlog.configure(
        processors=[_sentence],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    logging.getLogger("penstock").handlers = [Said(caller)]
    logging.getLogger("penstock").propagate = False


def _run(caller: NodeCaller, arguments: list[str]) -> None:
    # Here and not above: what the worker is forked from imports while this does.
    from penstock.server.jobs.load import load

    address, store, job, target, workers, *assignments = arguments
    settings = {**SETTINGS, "workers": workers, "listen": f"unix:{address}"}
    config = load(target, overrides=settings, assignments=assignments)
    names = [job or next(iter(config.jobs))] if job or len(config.jobs) == 1 else None
    _log_to(caller)
    from penstock.server.app import run
    from penstock.server.store.recorded import Recorded
    from penstock.server.transports.looking import LookingStore

    recorded = Recorded(config.server.store, config.base)
    looking = None if store == "group" else LookingStore(recorded)
    run(config, users=caller, names=names, store=looking)


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
    caller = NodeCaller(control)
    with contextlib.suppress(OSError):  # the node tries again, and says what the system said
        preload(WORKER, COUNT)
    with exits_are_errors():
        try:
            _run(caller, arguments)
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
