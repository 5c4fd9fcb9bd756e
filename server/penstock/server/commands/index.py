"""`penstockd index`: the sizes of all samples of a job, computed once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from penstock.server.commands.index_data_sets import DataSets, data_sets
from penstock.server.commands.index_places import Wanted, check_apart, indexes_of
from penstock.server.commands.measured_so_far import Watched
from penstock.server.commands.say import say
from penstock.server.commands.set_option import set_option
from penstock.server.commands.sheet import Sheet
from penstock.server.files.catalog import pack_catalogs
from penstock.server.job.job import Job
from penstock.server.jobs.load import Config, load
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.make.making import Engine, MadeIndex, Making, left_out, make
from penstock.server.planning.make.measuring import Measuring
from penstock.server.planning.make.measuring_pool import MeasuringPool
from penstock.server.planning.make.on_ray import ray_engine
from penstock.wire.plain import plain

SHOWN_BAD = 10


@click.command()
@click.argument("file")
@click.argument("job")
@click.option(
    "--role-set",
    "sets",
    multiple=True,
    metavar="NAME",
    help="A set of roles of a joint job, may be repeated; default: all that have a plan.",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="URL",
    help="Where the index shall lie: a path, or a URL; default: where plan.index says. Of a joint "
    "job NAME=URL, for each set that it is given for.",
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
@set_option
def index(
    file: str,
    job: str,
    sets: tuple[str, ...],
    outputs: tuple[str, ...],
    workers: int | None,
    engine: str,
    force: bool,
    as_json: bool,
    assignments: tuple[str, ...],
) -> int:
    """Write the index of sizes that a planned JOB of FILE needs.

    Reads and processes every item of the job's sources, in parallel, and writes how many samples it
    gives and of what sizes. Jobs that agree in sources, `where`, processor and what a sample's size
    is share one index, whatever their seed, lanes, batcher and collator are.

    A joint job has an index for each set of roles with a plan; all of them are made side by side.

    If it is killed, the same command goes on where it was. An index that is there already and fits
    is left as it is.

    \b
    Examples:
      penstockd index penstock.yaml sft
      penstockd index penstock.yaml sft --output s3://bucket/sft.index
      penstockd index penstock.yaml mixed --role-set chat
      RAY_ADDRESS=auto penstockd index penstock.yaml sft --engine ray
    """  # noqa: D301 - \b is for click
    config = load(file, assignments=assignments)
    built = config.jobs.unplanned(job)
    try:
        wanted = indexes_of(built, sets, outputs)
        made = _make(config, built, wanted, workers, engine, force=force)
        counted = {roles.name: data_sets(made[roles.name].index, roles) for roles, *_ in wanted}
    finally:
        built.close()
    if as_json:
        found = {name: to_json(each, counted[name]) for name, each in made.items()}
        click.echo(json.dumps(found.get("", {"sets": found})))
    else:
        say("\n".join(render(each, counted[name], name) for name, each in made.items()))
    return 0


def _make(
    config: Config,
    job: Job,
    wanted: Sequence[Wanted],
    workers: int | None,
    engine: str,
    *,
    force: bool,
) -> dict[str, MadeIndex]:
    """Return what was made for each set of roles, by its name."""
    each = {roles.number: Measuring(job, role_set=roles.number) for roles, *_ in wanted}
    makings = [Making(each[roles.number], url, options) for roles, url, options in wanted]
    check_apart(job, wanted, makings)
    told = job.name, job.definition, {number: found.inputs for number, found in each.items()}
    known = [catalog for found in each.values() for catalog in found.job.hand_over()]
    files_fd = pack_catalogs(known)
    try:
        count, deadline_s = workers or config.server.worker_count, config.server.item_seconds
        measure: Engine = MeasuringPool(*told, count, deadline_s, files_fd).run
        if engine == "ray":
            measure = ray_engine(*told, deadline_s, workers)
        with Watched() as watched:
            made = make(makings, measure, force=force, watch=watched.watch, warn=watched.warn)
    finally:
        os.close(files_fd)
    return {roles.name: found for (roles, *_), found in zip(wanted, made, strict=True)}


def to_json(made: MadeIndex, counted: DataSets) -> dict[str, Any]:
    """Return what was made, for scripts.

    Args:
        made: It.
        counted: What it holds of each data set of a meta file.
    """
    found = made.index
    return {
        "index": found.url,
        "made": made.is_new,
        "root": found.root.hex(),
        "items": sum(source.items for source in found.sources.values()),
        "samples": sum(source.samples for source in found.sources.values()),
        "tokens": sum(source.tokens for source in found.sources.values()),
        **({"measures": counted_in(found)} if found.measures else {}),
        "left_out": dict(left_out(found)),
        "sources": {
            name: {
                "items": source.items,
                "samples": source.samples,
                "tokens": source.tokens,
                **({"measures": dict(source.counted)} if found.measures else {}),
                "left_out": dict(source.left_out),
                **({"data_sets": counted[name]} if name in counted else {}),
            }
            for name, source in found.sources.items()
        },
        "depends_on_seed": "seed" in found.inputs,
        "bytes": found.nbytes,
        "seconds": round(made.seconds, 3),
        "items_of_earlier_commands": made.done.found,
        "quarantined": [list(each) for each in made.done.bad],
    }


def counted_in(index: SizeIndex) -> dict[str, int]:
    """Return what all samples of an index count beside their sizes, by measure."""
    sources = index.sources.values()
    return {name: sum(source.counted[name] for source in sources) for name in index.measures}


def render(made: MadeIndex, counted: DataSets, role_set: str = "") -> str:
    """Return what was made, for people.

    Args:
        made: It.
        counted: What it holds of each data set of a meta file.
        role_set: The name of the set of roles that it is for; "" = the job has one.
    """
    told = to_json(made, counted)
    whose = f", of set {plain(role_set)}" if role_set else ""
    what = "" if made.is_new else ", is there already and fits"
    rows = [
        ("items", f"{told['items']:,}"),
        ("samples", f"{told['samples']:,}"),
        ("tokens", f"{told['tokens']:,}"),
        *((name, f"{count:,}") for name, count in told.get("measures", {}).items()),
        *((reason, f"{count:,}") for reason, count in sorted(told["left_out"].items())),
        ("size", f"{told['bytes']:,} bytes"),
    ]
    if len(told["sources"]) > 1:
        rows += [
            (f"source {name}", f"{each['samples']:,} samples, {each['tokens']:,} tokens")
            for name, each in told["sources"].items()
        ]
    rows += [
        (f"data set {name}", f"{each['samples']:,} samples, {each['tokens']:,} tokens")
        for sets in counted.values()
        for name, each in sets.items()
    ]
    if made.is_new:
        earlier = made.done.found
        went_on = f", with {earlier:,} items that an earlier command had measured"
        seconds = f"{made.seconds:.1f}{' for all sets' if role_set else ''}"
        rows.append(("seconds", seconds + (went_on if earlier else "")))
    if told["depends_on_seed"]:
        rows.append(("note", "processing draws random numbers: these are the sizes of epoch 0"))
    bad = [f"  left out: {plain(item)}: {plain(why)}" for item, why in made.done.bad[:SHOWN_BAD]]
    title = f"index {made.index.url}"
    return Sheet(title, [("root", told["root"]), *rows], f"{whose}{what}", blocks=bad).text()
