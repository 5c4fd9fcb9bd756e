"""`penstockd`: serve, init, check, show, schema."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from penstock.server.commands.check import check
from penstock.server.commands.init import init
from penstock.server.commands.report import report
from penstock.server.commands.schema import schema
from penstock.server.commands.serve import serve
from penstock.server.commands.show import show
from penstock.wire.errors import PenstockError


@click.group(
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

    A job file says where the data lies and how it becomes batches; docs/jobs.md explains every key.
    """  # noqa: D301 - \b is for click
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


for _command in (serve, init, check, show, schema):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 when it did what was asked, 2 when something is wrong."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="penstockd",
            standalone_mode=False,
        )
    except PenstockError as error:
        report(error)
        return 2
    except click.ClickException as error:
        click.echo(f"penstockd: error: {error.format_message()} [usage]", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"  for help: {error.ctx.command_path} --help", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("penstockd: stopped", err=True)
        return 130
    return result if isinstance(result, int) else 0


__all__ = ["cli", "main", "run"]

if __name__ == "__main__":
    main()
