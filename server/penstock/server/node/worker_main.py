"""How the process of a worker begins.

`penstock.server.node.program` starts it, before or after gRPC runs in the parent.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from collections.abc import Sequence

from penstock.server.collecting import collect_as_usual, collect_seldom

if __name__ == "__main__":
    collect_seldom()  # before what takes long to import

from penstock.server.job import Job
from penstock.server.node.channel import FROM_SERVER
from penstock.server.node.link import ServerGone
from penstock.server.node.port import SocketPort
from penstock.server.node.start import inherit
from penstock.server.node.worker import Worker
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.malloc import keep_memory


class Files:
    """What the node knows of its jobs' files, taken over before the first job is built.

    A worker may be started before the node knows it.

    Args:
        fd: What `take_catalogs` takes.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def build(self, definition: bytes, log_id: bytes) -> Job:
        """Build a job; see `rebuild`."""
        from penstock.server.jobs.definition import rebuild

        fd, self._fd = self._fd, -1
        take_catalogs(fd)
        return rebuild(definition, log_id)


def import_ahead(modules: Sequence[str]) -> None:
    """Import what jobs will need; a role that needs what is not installed says so."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def main(argv: list[str]) -> None:
    """Run a worker over the inherited socket."""
    if (found := inherit(argv)) is None:
        return
    # Service managers send SIGTERM to every process of a service: it is the server's to handle,
    # which ends its workers by closing their sockets.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_memory()
    port = SocketPort(found.socket, FROM_SERVER)
    try:
        worker = Worker(port, found.page, build=Files(found.files_fd).build)
        worker.link.begin()
        # Meanwhile the node starts, and it may get its first job.
        import_ahead(["penstock.server.jobs.definition", *found.arguments])
        collect_as_usual()
        worker.run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


if __name__ == "__main__":
    main(sys.argv[1:])
