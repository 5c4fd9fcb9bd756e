"""How a worker begins, which makes and plans batches; `supply.program` starts it."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time

from penstock.common.malloc import keep_memory
from penstock.server.files.catalog import take_catalogs
from penstock.server.job.job import Job
from penstock.server.node.protocol.channel import FROM_SERVER
from penstock.server.node.protocol.message_port import SocketPort
from penstock.server.node.workers.link import ServerGone
from penstock.server.node.workers.worker import Worker
from penstock.server.process.garbage import collect_as_usual, collect_seldom
from penstock.server.processes.child import Inherited
from penstock.server.processes.page import Page

IDLE_S = 1.0
"""How often it is looked whether this worker has nothing to do."""


def build(definition: bytes, log_id: bytes) -> Job:
    """Build a job; see `rebuild`."""
    from penstock.server.jobs.definition import rebuild

    return rebuild(definition, log_id)


def give_back_when_idle(page: Page) -> None:
    """Give back what Arrow has freed, once each time that this worker has nothing to do.

    By itself its allocator does that in a thread, which a zygote must not have, or with the next
    blocks that are read.
    """
    seen = given = -1
    while True:
        time.sleep(IDLE_S)
        note = page.read()
        if note.stage == "idle" and given < note.serial == seen and "pyarrow" in sys.modules:
            given = note.serial
            sys.modules["pyarrow"].default_memory_pool().release_unused()
        seen = note.serial


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
        for package in inherited.arguments:  # unless its zygote has done so
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
        collect_as_usual()
        threading.Thread(target=give_back_when_idle, args=(inherited.page,), daemon=True).start()
        worker.run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


__all__ = ["main"]
