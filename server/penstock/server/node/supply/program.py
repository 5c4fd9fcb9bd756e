"""A worker's program: how it is started, and in words how it ended."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import NamedTuple

from penstock.server.node.protocol.channel import FROM_WORKER
from penstock.server.node.protocol.message_port import MessagePort, SocketPort
from penstock.server.node.protocol.messages import FromServer, FromWorker
from penstock.server.processes.page import Page
from penstock.server.processes.start import WORKER, StartedChild, start


class Started(NamedTuple):
    """A worker that was started.

    Attributes:
        process: The process, which is ended and waited for by whoever has started it.
        port: What it hears and says.
        page: Where it notes what it does.
    """

    process: StartedChild
    port: MessagePort[FromServer, FromWorker]
    page: Page


def start_program(files_fd: int, imports: Sequence[str] = ()) -> Started:
    """Start a worker, which says `Ready` when it has started.

    Args:
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.
        imports: Modules that it imports once it is ready: the jobs will need them.

    Raises:
        OSError: The system has no memory, process or file descriptor left for it.
    """
    process, page, ours = start(WORKER, *imports, files_fd=files_fd)
    return Started(process, SocketPort(ours, FROM_WORKER), page)


_CAUSES = {
    signal.SIGKILL: ": by the out-of-memory killer, or by somebody",
    signal.SIGSEGV: ": a crash in native code",
    signal.SIGBUS: ": a crash in native code, or a file that was cut while it was mapped",
    signal.SIGABRT: ": native code gave up",
}


def status_words(status: int) -> str:
    """Return a process's exit status in words."""
    if status >= 0:
        return f"with exit status {status}: a role ended the process"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"killed by signal {-status}"
    return f"killed by signal {number.name}{_CAUSES.get(number, '')}"
