"""How every command prints for people: lines broken between words where a terminal shows them."""

from __future__ import annotations

import sys

import click

from penstock.common.terminal import columns_of, folded


def say(text: str, *, error: bool = False) -> None:
    """Print lines on stdout, or on stderr; in a pipe or a file they are as long as they are."""
    click.echo(folded(text, columns_of(sys.stderr if error else sys.stdout)), err=error)
