"""How a worker begins: it makes and plans batches. `penstock.server.node.program` starts it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence

from penstock.server.collecting import collect_as_usual, collect_seldom
from penstock.server.job import Job
from penstock.server.node.channel import FROM_SERVER
from penstock.server.node.child import Inherited
from penstock.server.node.link import ServerGone
from penstock.server.node.port import SocketPort
from penstock.server.node.worker import Worker
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.malloc import keep_memory


def build(definition: bytes, log_id: bytes) -> Job:
    """Build a job; see `rebuild`."""
    from penstock.server.jobs.definition import rebuild

    return rebuild(definition, log_id)


def import_ahead(modules: Sequence[str]) -> None:
    """Import what jobs will need; a role that needs what is not installed says so."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def main(inherited: Inherited) -> None:
    """Run a worker over the inherited socket."""
    take_catalogs(inherited.files_fd)
    keep_memory()
    port = SocketPort(inherited.socket, FROM_SERVER)
    try:
        worker = Worker(port, inherited.page, build=build)
        worker.link.begin()
        # Meanwhile the node starts, and it may get its first job.
        collect_seldom()
        import_ahead(inherited.arguments)
        collect_as_usual()
        worker.run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


__all__ = ["main"]
