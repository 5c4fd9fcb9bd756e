"""`penstockd schema`: the JSON Schema of job files, and the tables of the docs."""

from __future__ import annotations

import json

import click

from penstock.server.jobs.reference import json_schema, markdown


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print tables for people instead.")
def schema(as_markdown: bool) -> None:
    """Print the JSON Schema of job files, for editors.

    \b
    With it, an editor completes keys and underlines mistakes:
      penstockd schema > penstock.schema.json
    and, as the first line of the job file:
      # yaml-language-server: $schema=penstock.schema.json
    """  # noqa: D301 - \b is for click
    if as_markdown:
        click.echo(markdown(), nl=False)
    else:
        click.echo(json.dumps(json_schema(), indent=2))
