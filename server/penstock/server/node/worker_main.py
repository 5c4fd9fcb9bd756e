"""How a worker begins: it makes and plans batches. `penstock.server.node.program` starts it."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time

from penstock.server.collecting import collect_as_usual, collect_seldom
from penstock.server.job import Job
from penstock.server.node.channel import FROM_SERVER
from penstock.server.node.child import Inherited
from penstock.server.node.link import ServerGone
from penstock.server.node.page import Page
from penstock.server.node.port import SocketPort
from penstock.server.node.worker import Worker
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.malloc import keep_memory

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
