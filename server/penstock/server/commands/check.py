"""`penstockd check`: is a job file right, are its roles pure, what does it cost?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from penstock.server.commands.contact_sheet import ContactSheet
from penstock.server.commands.error_text import report
from penstock.server.commands.measure import WINDOWS, JobMeasures, examine
from penstock.server.commands.mixture_shares import part_rows
from penstock.server.commands.progress import Progress
from penstock.server.commands.purity import gather_elsewhere
from penstock.server.commands.say import say
from penstock.server.commands.set_option import set_option
from penstock.server.commands.sheet import Sheet, block, counted
from penstock.server.commands.show import computed_batches
from penstock.server.commands.side_by_side import measure_together
from penstock.server.job.job import Job
from penstock.server.jobs.load import Config, load
from penstock.server.store.recorded import version_warning
from penstock.wire.errors import PastEnd, PenstockError

_SAMPLE_CHARS = 400

NO_ALLOCATOR = "of the system: with jemalloc or mimalloc tokenizing takes a third less time"


@click.command()
@click.argument("file")
@click.argument("job", required=False)
@click.option(
    "--items", type=click.IntRange(min=1), default=32, help="Items to run; default 32.", metavar="N"
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    default=4,
    help="Batches of one lane to make; default 4.",
    metavar="N",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@click.option(
    "--pictures",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a contact sheet, a PNG: pictures and text of the log's first batches.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also how storage is read: groups, blocks, amplification."
)
@set_option
def check(
    file: str,
    job: str | None,
    items: int,
    batches: int,
    as_json: bool,
    pictures: Path | None,
    verbose: bool,
    assignments: tuple[str, ...],
) -> int:
    """Check FILE, or a JOB of it, by running a few items and batches.

    Validates every key, builds every role, runs items and batches of each job twice (again in
    another order, in another process, batches also from snapshots) and names the first value that
    differs. Prints times per role, packing efficiency, one sample, and what one worker gives, and
    as many at once as the node would have; --verbose adds how storage is read. Nothing is served or
    stored.

    Exits with 0 if the job is right, and with 2 if something is wrong; then the key and the reason
    are on stderr, and your own frames where your code raised.

    \b
    Examples:
      penstockd check penstock.yaml
      penstockd check penstock.yaml main --json
    """  # noqa: D301 - \b is for click
    config = load(file, assignments=assignments)
    names = [job] if job is not None else list(config.jobs)
    if pictures is not None and len(names) > 1:
        raise click.UsageError(f"--pictures is of one job: name one of {', '.join(names)}")
    results: list[dict[str, Any]] = []
    failed = False
    for name in names:
        try:
            measured = _examine(config, name, items, batches)
        except PenstockError as caught:
            failed = True
            error = _naming(name, caught)
            results.append(
                {
                    "job": name,
                    "ok": False,
                    "error": {"code": error.code, "message": error.message, **error.fields},
                }
            )
            report(error)
        else:
            results.append({"ok": True, **measured.to_json()})
            if not as_json:
                say(render(measured, verbose=verbose))
            if pictures is not None:
                _draw(config.job(name), batches, pictures)
            if warning := version_warning(config.server.store, config.base, config.job(name)):
                say(f"penstockd: {warning}", error=True)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "jobs": results}, default=str))
    return 2 if failed else 0


def _draw(job: Job, batches: int, file: Path) -> None:
    """Write the contact sheet of a log's first batches, as many as there are of these."""
    sheet = ContactSheet(job)
    with contextlib.suppress(PastEnd):
        for computed in computed_batches(job, range(batches), 1, share=None):
            sheet.add(computed, 1)
    sheet.write(file)
    say(f"penstockd: wrote {file}", error=True)


def _naming(name: str, error: PenstockError) -> PenstockError:
    """Return the error with the job in its sentence: a file may hold many."""
    if f"jobs.{name}" in error.message or repr(name) in error.message:
        return error
    return error.reworded(f"jobs.{name}: {error.message}")


def _examine(config: Config, name: str, items: int, batches: int) -> JobMeasures:
    with Progress() as progress:
        progress.say(f"job {name}: opening its source")
        job, workers = config.job(name), config.server.worker_count
        try:
            job.check_fits(config.server.ready_limit_bytes)
            return examine(
                job,
                partial(gather_elsewhere, config, name, items, batches),
                item_count=items,
                batch_count=batches,
                workers=workers,
                ready_bytes=config.server.ready_limit_bytes,
                together=partial(measure_together, job, workers, progress.say),
                say=progress.say,
            )
        finally:
            job.close()


def render(measured: JobMeasures, *, verbose: bool = False) -> str:
    """Return what was found out about a job, for people; `verbose` = how storage is read, too."""
    return Sheet(
        f"job {measured.job}",
        list(_rows(measured, verbose)),
        more=f"  log id {measured.log_id[:16]}",
        about=(
            f"{_items(measured)} in {counted(measured.lanes, 'lane')}, {_length(measured)}",
            f"{counted(measured.items_run, 'item')} and "
            f"{counted(measured.batches_run, 'batch')} were made twice, in "
            "another order and process: the same",
        ),
        blocks=_sample(measured.sample),
        notes=measured.warnings,
    ).text()


def _items(measured: JobMeasures) -> str:
    if measured.items is None:
        return "a stream"
    drawn = measured.epoch_draws
    of_epoch = "" if drawn is None else f", {counted(drawn, 'draw')} an epoch,"
    return counted(measured.items, "item") + of_epoch


def _length(measured: JobMeasures) -> str:
    if measured.batches is not None:
        return counted(measured.batches, "batch")
    if measured.epochs is None:
        return "endless"
    return f"{counted(measured.epochs, 'epoch')}, whose batches are counted when it is served"


def _rows(measured: JobMeasures, verbose: bool) -> Iterator[tuple[str, str]]:
    for name, share in measured.shares.items():
        yield f"share of {name}", f"{share:.1%} of the batches"
    for stage, ms in measured.ms.items():
        yield stage, f"{ms:.3f} ms"
    yield "bytes per batch", f"{measured.bytes_per_batch:,}"
    if measured.efficiency is not None:
        yield "packing efficiency", f"{measured.efficiency:.4f} ({_measured_on(measured)})"
    for name, rate in measured.per_second.items():
        yield f"{name} per second", _rate(rate, measured, name)
    if verbose and (reading := measured.reading) is not None:
        yield "reading groups", f"{reading.groups}"
        each = " by each worker" if reading.groups == 1 else ""
        held = f"{reading.blocks_in_memory}, about {reading.mib_in_memory:,.1f} MiB"
        yield f"blocks in memory{each}", held
        read = f"{reading.amplification:.2f} ({counted(reading.blocks_read, 'block')})"
        yield "read amplification of a window", read
    yield "allocator of workers", measured.allocator or NO_ALLOCATOR
    if (memory := measured.memory) is not None:
        each = f", {memory.reader:,.1f} more for each reader" if memory.reader >= 1 else ""
        with_all = f"with {counted(memory.workers, 'worker')}{each}"
        yield "memory of a node", f"{memory.keeping_up:,.0f} MiB {with_all}"
        ready = f"{memory.ready:,.0f} MiB of it for ready batches (ready_bytes of the server)"
        yield "memory where readers stall", f"up to {memory.stalled:,.0f} MiB, {ready}"
    yield from part_rows(measured.parts)
    for name, value in measured.measures.items():
        each = f", {value / measured.batches_run:,.1f} each"
        yield f"{name} in {counted(measured.batches_run, 'batch')}", f"{value:,}{each}"
    for name, value in measured.counts.items():
        if measured.measures.get(name) == value:
            continue  # the line above says it already
        yield f"{name} in {counted(measured.batches_run, 'batch')}", f"{value:,}"


def _measured_on(measured: JobMeasures) -> str:
    if not measured.paced_batches:
        return f"{counted(measured.batches_run, 'batch')}, its lane has no more"
    pool = {None: "", True: ", past its pool's first fill", False: ", its pool not full yet"}
    return counted(measured.paced_batches, "batch") + pool[measured.pool_filled]


def _rate(alone: float, measured: JobMeasures, name: str) -> str:
    """Return the rate of one process, after that of as many processes at once as a node has."""
    together = measured.together
    single = f"{alone:,.0f} by one worker"
    noise = ""
    if name in measured.ranges:
        low, high = measured.ranges[name]
        noise = f" ({low:,.0f} to {high:,.0f} in {WINDOWS} windows)"
    if name not in together.per_second:
        return single + noise
    many = f"{together.per_second[name]:,.0f} by {together.processes} workers at once"
    return f"{many}, {single} alone{noise}"


def _sample(text: str) -> list[str]:
    cut = text if len(text) <= _SAMPLE_CHARS else text[:_SAMPLE_CHARS] + " ..."
    return block("first sample", (f"    {line}" for line in cut.splitlines()))
