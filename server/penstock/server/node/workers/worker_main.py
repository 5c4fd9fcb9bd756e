"""How a worker begins, which makes and plans batches; `supply.program` starts it."""

from __future__ import annotations

import contextlib
import importlib

from penstock.common.malloc import keep_memory
from penstock.server.files.catalog import take_catalogs
from penstock.server.job.job import Job
from penstock.server.node.protocol.channel import FROM_SERVER
from penstock.server.node.protocol.message_port import SocketPort
from penstock.server.node.workers.link import ServerGone
from penstock.server.node.workers.worker import Worker
from penstock.server.process.garbage import collect_as_usual, collect_seldom
from penstock.server.processes.child import Inherited


def build(definition: bytes, log_id: bytes) -> Job:
    """Build a job; see `rebuild`."""
    from penstock.server.jobs.definition import rebuild

    return rebuild(definition, log_id)


def main(inherited: Inherited) -> None:
    """Run a worker over the inherited socket."""
    take_catalogs(inherited.files_fd)
    keep_memory()
    port = SocketPort(inherited.socket, FROM_SERVER)
    try:
        worker = Worker(port, inherited.page, build=build)
        worker.link.begin()
        # Meanwhile the node starts, and it may get its first job.
        # Not in the zygote: `import pyarrow` starts a thread of its allocator, which no fork has.
        collect_seldom()
        for package in inherited.arguments:  # a role that needs what is not there says so
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
        collect_as_usual()
        worker.run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone
