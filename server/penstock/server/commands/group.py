"""The commands of `penstockd` in one group."""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import click

from penstock.common.programs import COMMANDS, unknown_command


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is asked for.

    A node would import for a fifth of its start what others measure and draw with.
    """

    def __init__(self) -> None:
        self._found: dict[str, click.Command | None] = dict.fromkeys(COMMANDS["penstockd"])

    def __getitem__(self, name: str) -> click.Command:
        command = self._found[name]
        if command is None:
            module = importlib.import_module(f"penstock.server.commands.{name}")
            command = self._found[name] = getattr(module, name)
        assert command is not None
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Commands(click.Group):
    """Commands that end quietly, with status 0, when nothing reads their output any more.

    click and rich would exit with 1 there, which looks as if code of a role had exited.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none, say which program has it, or what was meant."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            ctx.fail(unknown_command("penstockd", args[0], args[1:]))
        return super().resolve_command(ctx, args)

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
    commands=LazyCommands(),
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

    A job file says where the data lies and how it becomes batches; docs/reference.md explains every
    key.
    """  # noqa: D301 - \b is for click
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)
