"""`penstockd check`: is a job file right, are its roles pure, what does it cost?"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.server.commands.measure import Measured, examine
from penstock.server.commands.progress import Progress
from penstock.server.commands.purity import gather_elsewhere
from penstock.server.commands.report import report
from penstock.server.config import Config, load
from penstock.server.store.recorded import version_warning
from penstock.wire.errors import PenstockError

_SAMPLE_CHARS = 400


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
def check(file: str, job: str | None, items: int, batches: int, as_json: bool) -> int:
    """Check FILE, or one JOB of it, by running a little of everything.

    Validates every key, builds every role, runs items and batches of each job twice (again in
    another order, in another process, batches also from snapshots) and names the first value that
    differs. Prints times per role, packing efficiency, read amplification and one sample. Nothing
    is served or stored.

    Exits with 0 when all is well, with 2 when something is wrong; then the key and the reason are
    on stderr, and your own frames where your code raised.

    \b
    Examples:
      penstockd check penstock.yaml
      penstockd check penstock.yaml main --json
    """  # noqa: D301 - \b is for click
    config = load(file)
    names = [job] if job is not None else list(config.jobs)
    results: list[dict[str, Any]] = []
    console = Output(highlight=False)
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
                render(measured, console)
            if warning := version_warning(config.server.store, config.base, config.job(name)):
                click.echo(f"penstockd: {warning}", err=True)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "jobs": results}, default=str))
    return 2 if failed else 0


def _naming(name: str, error: PenstockError) -> PenstockError:
    """Return the error with the job in its sentence: a file may hold many."""
    if f"jobs.{name}" in error.message or repr(name) in error.message:
        return error
    return type(error)(f"jobs.{name}: {error.message}", **error.fields)


def _examine(config: Config, name: str, items: int, batches: int) -> Measured:
    with Progress() as progress:
        progress.say(f"job {name}: opening its source")
        job = config.job(name)
        try:
            return examine(
                job,
                partial(gather_elsewhere, config.target, name, items, batches),
                item_count=items,
                batch_count=batches,
                say=progress.say,
            )
        finally:
            job.close()


class Output(Console):
    """A console that leaves a broken pipe to the group of commands, as `click.echo` does."""

    def on_broken_pipe(self) -> NoReturn:
        """Pass the error on: called while it is handled."""
        raise


def render(measured: Measured, console: Console) -> None:
    """Print what was found out about a job."""
    length = "endless" if measured.batches is None else f"{measured.batches:,} batches"
    if measured.batches is None and measured.epochs is not None:
        plural = "s" if measured.epochs > 1 else ""
        length = f"{measured.epochs} epoch{plural}, whose batches are counted when it is served"
    console.print(f"[bold]job {measured.job}[/]  log id {measured.log_id[:16]}", soft_wrap=True)
    console.print(
        f"  {measured.items:,} items; lanes: {measured.lanes}; {length}; "
        f"{measured.items_run} items and {measured.batches_run} batches, twice, "
        "in another order and process: the same",
        soft_wrap=True,
    )
    table = Table(box=None, padding=(0, 2), show_header=False)
    for stage, ms in measured.ms.items():
        table.add_row(stage, f"{ms:.3f} ms")
    table.add_row("bytes per batch", f"{measured.bytes_per_batch:,}")
    if measured.efficiency is not None:
        table.add_row("packing efficiency", f"{measured.efficiency:.4f}")
    if (reading := measured.reading) is not None:
        table.add_row("reading groups", f"{reading.groups}")
        each = " by each worker" if reading.groups == 1 else ""
        table.add_row(
            f"blocks in memory{each}",
            f"{reading.blocks_in_memory}, about {reading.mib_in_memory:,.1f} MiB",
        )
        table.add_row(
            "read amplification of a window",
            f"{reading.amplification:.2f} ({reading.blocks_read} blocks)",
        )
    for name, value in measured.counts.items():
        table.add_row(f"{escape(name)} in {measured.batches_run} batches", f"{value:,}")
    console.print(table)
    if measured.sample:
        text = measured.sample
        console.print("  [bold]first sample[/]")
        cut = text if len(text) <= _SAMPLE_CHARS else text[:_SAMPLE_CHARS] + " ..."
        for line in cut.splitlines():
            console.print(f"  | {line}", markup=False, soft_wrap=True)
    for warning in measured.warnings:
        console.print(f"  [yellow]note[/] {escape(warning)}", soft_wrap=True)


__all__ = ["check", "render"]
