"""How the process of a worker begins.

It is started as `python -m penstock.server.node.worker_main FD PAGE_FD FILES_FD PARENT`, with a
fixed environment (`penstock.server.environment`), before or after gRPC runs in the parent: it is a
fresh program, never a fork.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from penstock.server.node.channel import FROM_SERVER
from penstock.server.node.child import die_with_parent
from penstock.server.node.link import ServerGone
from penstock.server.node.page import Page
from penstock.server.node.port import SocketPort
from penstock.server.node.worker import Worker
from penstock.server.sources.catalog import take_catalogs
from penstock.wire.malloc import keep_memory


def main(argv: list[str]) -> None:
    """Run a worker over the inherited socket."""
    fd, page_fd, files_fd, parent = map(int, argv)
    die_with_parent()
    if os.getppid() != parent:
        return  # the parent died before prctl took effect
    # Ctrl-C reaches the whole terminal, and service managers send SIGTERM to every process of a
    # service: both are the server's to handle, which ends its workers by closing their sockets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_memory()
    if files_fd >= 0:
        take_catalogs(files_fd)
    port = SocketPort(socket.socket(fileno=fd), FROM_SERVER)
    try:
        Worker(port, Page(page_fd, write=True)).run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


if __name__ == "__main__":
    main(sys.argv[1:])
