"""`penstockd serve`: run a loader node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.server.commands.set_option import set_option
from penstock.server.jobs.load import load
from penstock.server.jobs.settings import ServerSettings

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _setting(name: str, metavar: str) -> Callable[[FunctionT], FunctionT]:
    """A flag for a key of `server:`, with the meaning that the reference of job files gives."""
    meaning = ServerSettings.model_fields[name].description
    return click.option(f"--{name.replace('_', '-')}", metavar=metavar, help=meaning)


@click.command()
@click.argument("file")
@_setting("listen", "ADDRESS")
@_setting("insecure", "BOOL")
@_setting("metrics", "ADDRESS")
@_setting("store", "URL")
@_setting("node_id", "NAME")
@_setting("hash_cache", "FOLDER")
@_setting("workers", "N")
@_setting("allocator", "NAME")
@_setting("ready_bytes", "BYTES")
@_setting("log_format", "FORMAT")
@_setting("log_level", "LEVEL")
@click.option(
    "--exit-when-unused",
    metavar="FILE",
    help="End when nobody holds a lock on FILE any more, as a node of `spawn:` does.",
)
@set_option
def serve(
    file: str, exit_when_unused: str | None, assignments: tuple[str, ...], **flags: str | None
) -> int:
    """Serve the jobs of FILE until SIGTERM or Ctrl-C.

    FILE is a job file, or jobs.py:NAME for jobs that are built in Python. The node is ready when it
    logs `ready` with its address. SIGTERM drains it: batches in flight finish, snapshots are
    written, and it exits with 0. Flags win over PENSTOCK_* variables (PENSTOCK_LISTEN, ...), which
    win over the file.

    \b
    Examples:
      penstockd serve penstock.yaml
      penstockd serve penstock.yaml --listen unix:/run/node.sock --workers 16
      PENSTOCK_STORE=sqlite:////data/penstock.db penstockd serve penstock.yaml
    """  # noqa: D301 - \b is for click
    config = load(file, overrides=flags, assignments=assignments)
    # Here and not above: the other commands need none of it, and start faster without. First what
    # workers are forked from, which follows this process's log: it imports while this process does.
    from penstock.server.logs.captured import decide
    from penstock.server.processes.start import COUNT, WORKER, kill_zygote, preload

    decide(config.server.log_format, config.server.log_level)
    # Before gRPC is imported, which reads these once, and before what forks workers is started,
    # which would be started anew in another environment. gRPC would log a line of its own, in a
    # form of its own, for each handshake that fails: a scan of the port would fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if config.server.tls is not None:
        from penstock.server.access.tls import choose_ciphers

        choose_ciphers(config.server.tls)
    with contextlib.suppress(OSError):  # the node tries again, and says what the system said
        preload(WORKER, COUNT)
    try:
        from penstock.server.logs.handlers import configure

        configure(config.server.log_format, config.server.log_level)
        from penstock.server.app import run
        from penstock.server.process.users import Lockers

        users = None if exit_when_unused is None else Lockers(exit_when_unused)
        return run(config, users=users)
    finally:
        kill_zygote()  # it may still do its imports, and look at nothing else
