"""`penstockd index`: the sizes of all samples of a job, computed once."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from penstock.server.commands.measured_so_far import Watched
from penstock.server.commands.say import say
from penstock.server.indexing.crew import Crew
from penstock.server.indexing.making import Engine, Made, Making, left_out
from penstock.server.indexing.measuring import Measuring
from penstock.server.indexing.on_ray import ray_engine
from penstock.server.job import Job
from penstock.server.jobs.load import Config, load
from penstock.server.sources.catalog import pack_catalogs
from penstock.wire.errors import InvalidJob
from penstock.wire.terminal import plain

SHOWN_BAD = 10


@click.command()
@click.argument("file")
@click.argument("job")
@click.option(
    "--output",
    metavar="URL",
    help="Where the index shall lie: a path, or a URL; default: where plan.index says.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that read and process items; default: as many as the node's workers.",
)
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    help="Who measures: processes of this machine (default), or Ray Data (penstock[ray]).",
)
@click.option(
    "--force",
    is_flag=True,
    help="Make the index anew if it is there; throw away what is there of another job.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
def index(
    file: str,
    job: str,
    output: str | None,
    workers: int | None,
    engine: str,
    force: bool,
    as_json: bool,
) -> int:
    """Write the index of sizes that a planned JOB of FILE needs.

    Reads and processes every item of the job's sources, in parallel, and writes how many samples it
    gives and of what sizes. Jobs that agree in sources, `where`, processor and what a sample's size
    is share one index, whatever their seed, lanes, batcher and collator are.

    If it is killed, the same command goes on where it was. An index that is there already and fits
    is left as it is.

    \b
    Examples:
      penstockd index penstock.yaml sft
      penstockd index penstock.yaml sft --output s3://bucket/sft.index
      RAY_ADDRESS=auto penstockd index penstock.yaml sft --engine ray
    """  # noqa: D301 - \b is for click
    config = load(file)
    built = config.jobs.unplanned(job)
    try:
        url = _place(built, output)
        made = _make(config, built, url, workers, engine, force=force)
    finally:
        built.close()
    if as_json:
        click.echo(json.dumps(to_json(made)))
    else:
        say(render(made))
    return 0


def _place(job: Job, output: str | None) -> str:
    plan = job.role_sets[0].plan
    if output is None and plan is not None:
        return plan.index
    if output is None:
        raise InvalidJob(
            f"job {job.name!r} does not say where its index of sizes lies: give --output, or "
            "the job a plan",
            key="plan.index",
        )
    return output


def _make(
    config: Config, job: Job, url: str, workers: int | None, engine: str, *, force: bool
) -> Made:
    measuring = Measuring(job)
    told = job.name, job.definition, measuring.inputs
    catalogs = [
        catalog for source in measuring.job.sources.values() for catalog in source.hand_over()
    ]
    files_fd = pack_catalogs(catalogs)
    try:
        count, deadline_s = workers or config.server.worker_count, config.server.item_seconds
        measure: Engine = Crew(*told, count, deadline_s, files_fd).run
        if engine == "ray":
            measure = ray_engine(*told, deadline_s, workers)
        with Watched() as watched:
            plan = job.role_sets[0].plan
            # They are for the place that the job names, and may not suit another.
            options = plan.storage_options if plan is not None and plan.index == url else None
            making = Making(measuring, url, options, watch=watched.watch, warn=watched.warn)
            return making.run(measure, force=force)
    finally:
        os.close(files_fd)


def to_json(made: Made) -> dict[str, Any]:
    """Return what was made, for scripts."""
    found = made.index
    return {
        "index": found.url,
        "made": made.is_new,
        "root": found.root.hex(),
        "items": sum(source.items for source in found.sources.values()),
        "samples": sum(source.samples for source in found.sources.values()),
        "tokens": sum(source.tokens for source in found.sources.values()),
        "left_out": dict(left_out(found)),
        "sources": {
            name: {
                "items": source.items,
                "samples": source.samples,
                "tokens": source.tokens,
                "left_out": dict(source.left_out),
            }
            for name, source in found.sources.items()
        },
        "depends_on_seed": "seed" in found.inputs,
        "bytes": found.nbytes,
        "seconds": round(made.seconds, 3),
        "items_of_earlier_commands": made.done.found,
        "quarantined": [list(each) for each in made.done.bad],
    }


def render(made: Made) -> str:
    """Return what was made, for people."""
    told = to_json(made)
    what = "" if made.is_new else ", is there already and fits"
    rows = [
        ("items", f"{told['items']:,}"),
        ("samples", f"{told['samples']:,}"),
        ("tokens", f"{told['tokens']:,}"),
        *((plain(reason), f"{count:,}") for reason, count in sorted(told["left_out"].items())),
        ("size", f"{told['bytes']:,} bytes"),
    ]
    if len(told["sources"]) > 1:
        rows += [
            (f"source {name}", f"{each['samples']:,} samples, {each['tokens']:,} tokens")
            for name, each in told["sources"].items()
        ]
    if made.is_new:
        earlier = made.done.found
        went_on = f", with {earlier:,} items that an earlier command had measured"
        rows.append(("seconds", f"{made.seconds:.1f}{went_on if earlier else ''}"))
    if told["depends_on_seed"]:
        rows.append(("note", "processing draws random numbers: these are the sizes of epoch 0"))
    width = max(len(name) for name, _ in rows)
    bad = [f"  left out: {plain(item)}: {plain(why)}" for item, why in made.done.bad[:SHOWN_BAD]]
    return "\n".join(
        [
            f"{click.style(f'index {plain(made.index.url)}', bold=True)}{what}",
            f"  {'root':<{width}}  {told['root']}",
            *(f"  {name:<{width}}  {value}" for name, value in rows),
            *bad,
        ]
    )


__all__ = ["index", "render", "to_json"]
