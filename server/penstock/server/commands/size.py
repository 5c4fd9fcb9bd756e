"""`penstockd size`: how large must it be for a run?"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from typing import Any

import click

from penstock.common.resources import usable_cpus, usable_memory_bytes
from penstock.server.commands.core_rate import measure_core
from penstock.server.commands.memory_formula import node_memory
from penstock.server.commands.meter import Metered
from penstock.server.commands.progress import Progress, Say
from penstock.server.commands.say import say
from penstock.server.commands.set_option import set_option
from penstock.server.commands.side_by_side import SideBySide, measure_together
from penstock.server.commands.size_report import Found, notes_of, notes_of_units, render
from penstock.server.commands.sizing import (
    BUSY,
    Lanes,
    Machine,
    Needed,
    OneCore,
    size_of,
    store_writes,
)
from penstock.server.job.job import Job
from penstock.server.jobs.load import Config, load
from penstock.wire.errors import InvalidRequest


class Finite(click.FloatRange):
    """A number above 0: click takes `nan` and `inf` for one."""

    def __init__(self, most: float | None = None) -> None:
        super().__init__(min=0, min_open=True, max=most)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number above 0.", param, ctx)
        return found


@click.command(short_help="Say how large nodes must be for a run.")
@click.argument("file")
@click.argument("job")
@click.option(
    "--ranks",
    type=click.IntRange(1, 1_000_000),
    required=True,
    help="Data-parallel ranks of the run: those that read batches of their own.",
    metavar="N",
)
@click.option(
    "--tokens-per-s-per-rank",
    type=Finite(),
    help="Tokens that each rank trains in a second, without padding.",
    metavar="X",
)
@click.option(
    "--samples-per-s-per-rank",
    type=Finite(),
    help="Samples, for jobs whose batches count no tokens.",
    metavar="X",
)
@click.option(
    "--seconds",
    type=Finite(3600),
    default=20.0,
    help="How long to measure; default 20.",
    metavar="S",
)
@click.option(
    "--cores-per-node",
    type=click.IntRange(1, 4096),
    help="Cores of a node; default: those of this machine.",
    metavar="N",
)
@click.option(
    "--gib-per-node",
    type=Finite(1 << 20),
    help="Memory of a node in GiB; default: that of this machine.",
    metavar="G",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 4096),
    help="Nodes that there are to be; default: as many as are needed.",
    metavar="N",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@set_option
def size(
    file: str,
    job: str,
    ranks: int,
    tokens_per_s_per_rank: float | None,
    samples_per_s_per_rank: float | None,
    seconds: float,
    cores_per_node: int | None,
    gib_per_node: float | None,
    nodes: int | None,
    as_json: bool,
    assignments: tuple[str, ...],
) -> int:
    """Say how many cores, nodes and lanes a run of JOB needs, and what it sends and stores.

    Makes batches of the job on one core, once its pools are full, then in as many processes as the
    node would have workers. From these rates, from the size of the batches and from the rules of
    docs/operate.md it works out what so many ranks need. Nothing is served or stored.

    What is measured holds for this machine: run it on a core like those of the nodes.

    \b
    Examples:
      penstockd size penstock.yaml main --ranks 64 --tokens-per-s-per-rank 12000
      penstockd size penstock.yaml main --ranks 8 --tokens-per-s-per-rank 90000 \\
          --cores-per-node 32 --gib-per-node 128 --json
      penstockd size images.yaml main --ranks 16 --samples-per-s-per-rank 400
    """  # noqa: D301 - \b is for click
    needed = _needed(ranks, tokens_per_s_per_rank, samples_per_s_per_rank)
    memory_bytes = usable_memory_bytes() if gib_per_node is None else int(gib_per_node * 2**30)
    machine = Machine(cores_per_node or usable_cpus(), memory_bytes)
    config = load(file, assignments=assignments)
    built = config.job(job)
    try:
        with Progress() as progress:
            found = _find(config, built, needed, machine, seconds, nodes, progress.say)
    finally:
        built.close()
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        say(render(found))
    return 0


def _needed(ranks: int, tokens: float | None, samples: float | None) -> Needed:
    if (tokens is None) == (samples is None):
        raise click.UsageError(
            "Give --tokens-per-s-per-rank, or --samples-per-s-per-rank for jobs that count no "
            "tokens" + (", and not both." if tokens is not None else ".")
        )
    if tokens is not None:
        return Needed("tokens", ranks, tokens)
    assert samples is not None
    return Needed("samples", ranks, samples)


def _find(
    config: Config,
    job: Job,
    needed: Needed,
    machine: Machine,
    seconds: float,
    nodes: int | None,
    tell: Say,
) -> Found:
    measured = measure_core(job, seconds, tell)
    metered = measured.metered
    if not metered.counts[needed.unit]:
        counted = ", ".join(sorted(name for name, count in metered.counts.items() if count))
        raise InvalidRequest(
            f"the batches of job {job.name!r} count no {needed.unit} (they count {counted}): give "
            f"--{'samples' if needed.unit == 'tokens' else 'tokens'}-per-s-per-rank",
            field=f"--{needed.unit}-per-s-per-rank",
            value=needed.per_rank,
        )
    rate = metered.rate(needed.unit)
    cores = metered.cpu_s / metered.seconds
    cores = cores if cores > BUSY else 1.0
    workers = max(1, int(config.server.worker_count / cores))
    together = measure_together(job, workers, tell)
    total = metered.counts[needed.unit]
    core = OneCore(
        rate=rate.safe,
        low=rate.low,
        high=rate.high,
        planned=metered.planned_per_s(needed.unit),
        together=_share(together, needed.unit, rate.safe),
        cores=cores,
        batches=metered.batches / total,
        wire_bytes=metered.wire_bytes / total,
    )
    grouped = any(group is not None for group in job.reading_groups)
    has = Lanes(job.lanes, len(job.lanes_together()) if grouped else None)
    ready_bytes = config.server.ready_limit_with(machine.memory_bytes)
    memory = partial(
        _memory, job, measured=metered, ready_bytes=ready_bytes, imported=frozenset(sys.modules)
    )
    size = size_of(needed, core, machine, has, memory)
    writes = store_writes(
        needed.per_s * core.batches,
        size.lanes.lanes,
        metered.snapshot_bytes,
        job.snapshot_every,
        config.server.snapshot_seconds,
    )
    found = Found(
        job=job.name,
        log_id=job.log_id.hex(),
        needed=needed,
        machine=machine,
        measured=measured,
        rate=rate,
        core=core,
        together=together,
        has=has,
        size=size,
        ready_bytes=ready_bytes,
        writes=writes,
        notes=[],
    )
    found.notes.extend(notes_of(found))
    found.notes.extend(notes_of_units(has, nodes or size.nodes))
    return found


def _share(together: SideBySide, unit: str, alone: float) -> float:
    """Return how much of its rate alone a process had beside others: at most all of it."""
    if unit not in together.per_second:
        return 1.0
    return min(1.0, together.per_second[unit] / together.processes / alone)


def _memory(
    job: Job,
    workers: int,
    lanes: float,
    groups: float,
    *,
    measured: Metered,
    ready_bytes: int,
    imported: frozenset[str],
) -> Any:
    return node_memory(
        job,
        workers=workers,
        ready_bytes=ready_bytes,
        imported=imported,
        sample_bytes=measured.sample_bytes,
        batch_bytes=measured.body_bytes / measured.batches,
        lanes=lanes,
        groups=groups or None,
    )
