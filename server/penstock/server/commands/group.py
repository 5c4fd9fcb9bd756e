"""The commands of `penstockd` in one group."""

from __future__ import annotations

import click

from penstock.server.commands.check import check
from penstock.server.commands.init import init
from penstock.server.commands.schema import schema
from penstock.server.commands.serve import serve
from penstock.server.commands.show import show


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

__all__ = ["cli"]
