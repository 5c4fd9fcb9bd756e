"""Whether the packages of the extra `server` are installed, asked before anything imports them.

The wheel brings the code of both halves, and the base install only what a trainer needs. So the
ways into the server half ask here first: `penstockd`, `local:` and `spawn:`.
"""

from __future__ import annotations

import importlib.util

from penstock.wire.errors import MissingExtra

IMPORTED_AT_START = {
    "aiohttp": "aiohttp",
    "click": "click",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "msgspec": "msgspec",
    "prometheus_client": "prometheus-client",
    "pydantic": "pydantic",
    "rich": "rich",
    "structlog": "structlog",
    "typing_extensions": "typing-extensions",
    "yaml": "pyyaml",
}
"""The modules without which no command and no node starts, with the names that pip knows them by.
Others of the extra, such as pyarrow, are imported by the source that needs them, which says so."""

NAMED = 3
"""So many of the missing packages are named."""


def require_server(what: str, *, extras: str = "server") -> None:
    """Refuse to go on where the server half cannot start.

    Args:
        what: What the caller asked for: a command or a target.
        extras: What to install.

    Raises:
        MissingExtra: A package is not installed; says which, and what to install.
    """
    missing = [
        package
        for module, package in IMPORTED_AT_START.items()
        if importlib.util.find_spec(module) is None
    ]
    if not missing:
        return
    named, more = missing[:NAMED], len(missing) - NAMED
    names = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    verb = "is" if len(missing) == 1 else "are"
    raise MissingExtra(
        f"{what} needs the server half of penstock, which is not installed whole ({names} {verb} "
        f"missing): pip install 'penstock[{extras}]'",
        package=missing[0],
        extra="server",
    )
