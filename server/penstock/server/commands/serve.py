"""`penstockd serve`: run a loader node."""

from __future__ import annotations

import click

from penstock.server.jobs.load import load


@click.command()
@click.argument("file")
@click.option(
    "--listen", metavar="ADDRESS", help="host:port or unix:/path that trainers connect to."
)
@click.option("--metrics", metavar="ADDRESS", help="host:port of /metrics and /readyz, or off.")
@click.option("--store", metavar="URL", help="Where cursors live, such as sqlite:///penstock.db.")
@click.option(
    "--hash-cache", metavar="FOLDER", help="Where hashes of data files are kept; off: nowhere."
)
@click.option("--workers", metavar="N", help="Processes that make batches, or auto.")
@click.option("--ready-bytes", metavar="BYTES", help="Bound on ready batches, such as '2 GiB'.")
@click.option("--log-format", metavar="FORMAT", help="auto, console or json.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option(
    "--exit-when-unused",
    metavar="FILE",
    help="End when nobody holds a lock on FILE any more, as a node of `spawn:` does.",
)
def serve(file: str, exit_when_unused: str | None, **flags: str | None) -> int:
    """Serve the jobs of FILE until SIGTERM or Ctrl-C.

    FILE is a job file, or jobs.py:NAME for jobs that are built in Python. The node is ready when it
    logs `ready` with its address. SIGTERM drains it: batches in flight finish, snapshots are
    written, and it exits with 0. Flags win over PENSTOCK_* variables (PENSTOCK_LISTEN, ...), which
    win over the file.

    \b
    Examples:
      penstockd serve penstock.yaml
      penstockd serve penstock.yaml --listen 0.0.0.0:50051 --workers 16
      PENSTOCK_STORE=sqlite:////data/penstock.db penstockd serve penstock.yaml
    """  # noqa: D301 - \b is for click
    config = load(file, overrides=flags)
    # Here and not above: the other commands need no gRPC, and start faster without.
    from penstock.server.app import run

    return run(config, exit_when_unused=exit_when_unused)


__all__ = ["serve"]
