"""`penstockd plan`: what a job gives, from the sizes of its samples alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import click

from penstock.server.commands.index_places import places_of
from penstock.server.commands.plan_page import page
from penstock.server.commands.plan_text import render
from penstock.server.commands.plan_windows import Apart
from penstock.server.commands.progress import Progress, Say
from penstock.server.commands.say import say
from penstock.server.commands.set_option import set_option
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.planning.report.index_lookup import IndexLookup
from penstock.server.planning.report.known_sizes import IndexedOutcomes
from penstock.server.planning.report.other_lanes import lanes_table
from penstock.server.planning.report.plan_report import (
    PlanReport,
    global_batch,
    report_of,
    world_sizes,
)
from penstock.server.planning.report.planned_figures import figures_of_planned
from penstock.server.planning.report.simulated import simulate
from penstock.wire.errors import InvalidRequest


class Numbers(click.ParamType):  # type: ignore[type-arg]  # only newer clicks have one
    """Whole numbers of at least 1, between commas."""

    name = "numbers"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return them."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(int(part) for part in value.split(","))
        except ValueError:
            found = ()
        if not found or min(found) < 1:
            self.fail(f"{value!r} is not whole numbers from 1 on, such as 8 or 8,16", param, ctx)
        return found


@click.command(short_help="Say what a job gives, without decoding anything.")
@click.argument("file")
@click.argument("job")
@click.option(
    "--ranks",
    type=Numbers(),
    default=(),
    metavar="W[,W...]",
    help="World sizes to look at; default: those that divide the batches of a step.",
)
@click.option(
    "--batches-per-step",
    type=click.IntRange(min=1),
    metavar="G",
    help="Batches in a step; default: what the job says, else the largest of --ranks.",
)
@click.option(
    "--lanes",
    type=Numbers(),
    default=(),
    metavar="N[,N...]",
    help="Other numbers of lanes to compare; default: a few, as far as 20 s allow.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Epochs to plan; default: all of a finite job, 1 of an endless one.",
)
@click.option(
    "--index",
    "indexes",
    multiple=True,
    metavar="URL",
    help="An index of its sizes, made by `penstockd index`, for a job that is not planned. Of a "
    "joint job NAME=URL, for each set that it is given for.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@click.option(
    "--html",
    "html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a report with plots, in one file that needs nothing else.",
)
@set_option
def plan(
    file: str,
    job: str,
    ranks: tuple[int, ...],
    batches_per_step: int | None,
    lanes: tuple[int, ...],
    epochs: int | None,
    indexes: tuple[str, ...],
    as_json: bool,
    html: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Say what JOB of FILE gives: batches, steps, padding, what is left out, how costs differ.

    The planners of the job run as on a node, with the sizes of its samples alone: no item is
    decoded, nothing is served or stored. What is printed is what a reader of the whole job gets.

    Exits with 2 where sizes are not known before items are decoded, and says what to do.

    \b
    Examples:
      penstockd plan penstock.yaml main
      penstockd plan penstock.yaml main --ranks 8,16 --html plan.html
    """  # noqa: D301 - \b is for click
    config = load(file, assignments=assignments)
    # Its index, if it has one, is opened here: a finite job would count its batches as it is built.
    built = config.jobs.unplanned(job)
    built.check_end()
    step = global_batch(built, batches_per_step, ranks)
    built.check_steps(step[0])
    worlds = world_sizes(step[0], ranks)
    try:
        with Progress() as progress:
            found = report(built, step, worlds, lanes, epochs, indexes, progress.say)
    finally:
        built.close()
    if html is not None:
        now = datetime.now(UTC)
        by = f"penstock {metadata.version('penstock')}"
        _write(html, page(found, f"{by}, job {job} of {file}, {now:%Y-%m-%d %H:%M} UTC"))
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        say(render(found))


def report(
    job: Job,
    step: tuple[int, str],
    worlds: list[int],
    lanes: tuple[int, ...] = (),
    epochs: int | None = None,
    indexes: Sequence[str] = (),
    tell: Say = lambda doing: None,
) -> PlanReport:
    """Return what is to be said of a job.

    Args:
        job: The job.
        step: G, and who says it.
        worlds: World sizes, which divide it.
        lanes: Other numbers of lanes to compare.
        epochs: How many epochs to plan; None = all of a finite job, 1 of an endless one.
        indexes: Where indexes of its sizes lie, for sets of roles that are not planned, as
            `places_of` takes them.
        tell: KnownSizes now and then what is being done.
    """
    if len(job.role_sets) == 1 and job.role_sets[0].planned is not None:
        if indexes or lanes:
            option = "--lanes compares what lanes pack" if lanes else "--index names an index"
            raise InvalidRequest(
                f"{option}, and job {job.name!r} is planned: its batches come from the index in "
                "its plan, whatever its lanes are; leave the option out",
                field="lanes" if lanes else "index",
            )
        figures = figures_of_planned(job, epochs, Apart(job, tell))
        return report_of(job, figures, step, worlds)
    began_s = time.monotonic()
    known = lookups(job, indexes, tell)
    found = simulate(job, known, epochs, tell)
    took_s = time.monotonic() - began_s
    table = lanes_table(job, found, took_s, lanes, known, tell)
    return report_of(job, found, step, worlds, table)


def lookups(job: Job, indexes: Sequence[str], tell: Say) -> dict[int, IndexedOutcomes]:
    """Return what indexes say of a job's items, by the number of the set of roles.

    Raises:
        InvalidRequest: An index is named that cannot be used.
        InvalidJob: One does not fit its set.
    """
    places = places_of(job, "index", indexes, [roles.name for roles in job.role_sets])
    found: dict[int, IndexedOutcomes] = {}
    for roles in job.role_sets:
        index = planned_log(roles).index if roles.planned is not None else None
        if roles.name in places:
            if index is not None:
                raise InvalidRequest(
                    f"--index names an index for set {roles.name!r}, and job {job.name!r} has one "
                    "in the plan of that set: leave the option out",
                    field="index",
                    value=places[roles.name],
                )
            index = SizeIndex.open(places[roles.name])
        if index is not None:
            found[roles.number] = IndexLookup(index, roles, job.seed, job.name, tell)
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"the report cannot be written to {str(path)!r}: {error.strerror or error}; name "
            "another file",
            field="html",
            value=str(path),
        ) from error
