"""The node's status, polled twice a second in the background so that it does not delay the play."""

from __future__ import annotations

import threading
from typing import Any

from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.client.demo.board import ServerRow
from penstock.wire.errors import PenstockError

EVERY_S = 0.5


class NodeWatch:
    """Asks a node for its status until closed; between a kill and a restart there is none.

    Args:
        address: Where the node is, or will be.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._status: dict[str, Any] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)
        self._thread.start()

    def show(self, row: ServerRow) -> None:
        """Put the last answer into what is shown."""
        status = self._status
        if status is None:
            row.workers = 0
            return
        row.workers = len(status["workers"])
        row.busy = sum(bool(worker["busy"]) for worker in status["workers"])
        row.ready_batches = sum(int(job["ready_batches"]) for job in status["jobs"])
        row.ready_bytes = sum(int(job["ready_bytes"]) for job in status["jobs"])

    def close(self) -> None:
        """Stop asking; idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        transport = open_transport(self._address)
        control = Control(transport, "", self._address, deadline_s=EVERY_S)
        try:
            while not self._closed.wait(EVERY_S):
                try:
                    self._status = control.status()
                except PenstockError:  # it is down, and is shown as such
                    self._status = None
        finally:
            transport.close()


__all__ = ["NodeWatch"]
