"""What readers know a node by that deal units to it: the same after it has started again."""

from __future__ import annotations

import os
import socket


def default_node_id(address: str) -> str:
    """Return the id of a node that was given none: the pod's name, else host and address.

    One host may have several nodes, and an address of one host is another node on the next.

    Args:
        address: Where it listens, with its port.
    """
    host = socket.gethostname()
    if pod := os.environ.get("POD_NAME"):
        return pod
    if "KUBERNETES_SERVICE_HOST" in os.environ:  # there the host has the name of the pod
        return os.environ.get("HOSTNAME") or host
    return f"{host}/{address}"
