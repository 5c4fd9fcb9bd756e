"""How every command tells of an error: the user's frames where there are any, then one sentence."""

from __future__ import annotations

import click

from penstock.wire.errors import PenstockError


def report(error: PenstockError) -> None:
    """Print an error on stderr: `penstockd: error: SENTENCE [code]`."""
    if frames := error.fields.get("traceback"):
        click.echo(str(frames).rstrip("\n"), err=True)
    click.echo(f"penstockd: error: {error.message} [{error.code}]", err=True)


__all__ = ["report"]
