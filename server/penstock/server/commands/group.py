"""The commands of `penstockd` in one group."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from penstock.server.commands.check import check
from penstock.server.commands.index import index
from penstock.server.commands.init import init
from penstock.server.commands.plan import plan
from penstock.server.commands.schema import schema
from penstock.server.commands.serve import serve
from penstock.server.commands.show import show
from penstock.server.commands.size import size


class Commands(click.Group):
    """Commands that end quietly, with status 0, when nothing reads their output any more.

    click and rich would exit with 1 there, which looks as if code of a role had exited.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments; `--help` and `--version` print here."""
        with quiet_at_closed_output():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        with quiet_at_closed_output():
            return super().invoke(ctx)


@contextmanager
def quiet_at_closed_output() -> Iterator[None]:
    """Turn a broken pipe into the end of the command, where it is stdout that broke.

    Raises:
        click.exceptions.Exit: With status 0.
        BrokenPipeError: Another pipe broke.
    """
    try:
        yield
    except BrokenPipeError:
        if not output_is_closed():
            raise
        # Python flushes at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None


def output_is_closed() -> bool:
    """Tell whether stdout is a pipe that nothing reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="penstock", prog_name="penstockd")
@click.pass_context
def cli(context: click.Context) -> None:
    """Feed GPUs from CPU nodes: the loader node and its job files.

    \b
    A first hour:
      penstockd init corpus/*.parquet     write penstock.yaml for your data
      penstockd check penstock.yaml       is it right, is it pure, how fast is it?
      penstockd show penstock.yaml main --position 0 --text
      penstockd serve penstock.yaml       trainers connect to 127.0.0.1:50051

    \b
    Before a large run:
      penstockd size penstock.yaml main --ranks 64 --tokens-per-s-per-rank 12000

    A job file says where the data lies and how it becomes batches; docs/jobs.md explains every key.
    """  # noqa: D301 - \b is for click
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


for _command in (serve, init, check, show, index, plan, size, schema):
    cli.add_command(_command)

__all__ = ["cli"]
