"""How the process of a worker begins.

`penstock.server.node.program` starts it, before or after gRPC runs in the parent.
"""

from __future__ import annotations

import signal
import sys

from penstock.server.node.channel import FROM_SERVER
from penstock.server.node.link import ServerGone
from penstock.server.node.port import SocketPort
from penstock.server.node.start import inherit
from penstock.server.node.worker import Worker
from penstock.wire.malloc import keep_memory


def main(argv: list[str]) -> None:
    """Run a worker over the inherited socket."""
    if (found := inherit(argv)) is None:
        return
    # Ctrl-C reaches the whole terminal, and service managers send SIGTERM to every process of a
    # service: both are the server's to handle, which ends its workers by closing their sockets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_memory()
    port = SocketPort(found.socket, FROM_SERVER)
    try:
        Worker(port, found.page).run()
    except (BrokenPipeError, ConnectionResetError, ServerGone):
        return  # the server process is gone


if __name__ == "__main__":
    main(sys.argv[1:])
