"""A port for a process that is told where to listen: none that the system may give to another."""

from __future__ import annotations

import secrets
import socket

RANGE = range(20_000, 32_768)
"""Below those that Linux gives to sockets without a port of their own, which tests open all the
while: one of these could be taken between the look here and the process that is to have it."""


def free_port() -> int:
    """Return a port of the loopback that nobody has now."""
    while True:
        port = RANGE[secrets.randbelow(len(RANGE))]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


__all__ = ["free_port"]
