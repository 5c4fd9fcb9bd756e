"""`--set JOB.KEY=VALUE`, an option of every command that reads a job file."""

from __future__ import annotations

import click

from penstock.server.jobs.assign import FLAG

set_option = click.option(
    FLAG,
    "assignments",
    multiple=True,
    metavar="JOB.KEY=VALUE",
    help="Override a key of a job, such as main.batcher.max_tokens=8192; the value is YAML. May be "
    "given several times.",
)
