"""`penstockd show`: exactly the batches at a position or of a step, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from penstock.common.batch_text import batch_text, headline, value_text
from penstock.server.commands.contact_sheet import ContactSheet
from penstock.server.commands.progress import Progress
from penstock.server.commands.say import say
from penstock.server.commands.set_option import set_option
from penstock.server.commands.token_text import decoder
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.line import (
    Computed,
    Line,
    check_reachable,
    compute,
    nearest_line,
    replay_cost,
)
from penstock.server.store.recorded import Recorded, version_warning
from penstock.wire.describe import batch_record
from penstock.wire.errors import PastEnd
from penstock.wire.frame import decode_values, read_header
from penstock.wire.item_numbers import number_text
from penstock.wire.order import Cut, Share

SHOWN_ITEMS = 8


@click.command(short_help="Show batches of a job, computed here without a server.")
@click.argument("file")
@click.argument("job")
@click.option("--position", type=click.IntRange(min=0), help="The batch at this position.")
@click.option("--step", type=click.IntRange(min=0), help="The batches of this step.")
@click.option(
    "--batches-per-step",
    type=click.IntRange(min=1),
    metavar="G",
    help="Batches in a step; default: what the job says, else the world size.",
)
@click.option("--rank", type=click.IntRange(min=0), default=0, help="Whose batches; default 0.")
@click.option(
    "--world-size", type=click.IntRange(min=1), default=1, help="How many ranks read; default 1."
)
@click.option(
    "--uneven",
    is_flag=True,
    help="With --step: the world size need not divide G; a rank with fewer batches gets a filler.",
)
@click.option(
    "--store",
    metavar="URL",
    help="Where snapshots are looked for, such as sqlite:///penstock.db; default: the file's.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per batch, for scripts.")
@click.option("--text", "as_text", is_flag=True, help="The documents, with their seams.")
@click.option(
    "--pictures",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a contact sheet, a PNG: pictures and text of the batches, with their seams.",
)
@set_option
def show(
    file: str,
    job: str,
    position: int | None,
    step: int | None,
    batches_per_step: int | None,
    rank: int,
    world_size: int,
    uneven: bool,
    store: str | None,
    as_json: bool,
    as_text: bool,
    pictures: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Show batches of JOB in FILE, computed here: no server, no cursor, no trace.

    What is shown is byte for byte what any loader node sends for that position, unless its store
    holds verdicts about items that work here: they are not looked at. From the store come
    snapshots alone, read beside a running node: far positions are near one, or every batch of the
    lane before them is planned again. `--json` prints what `penstock cat --json` prints.

    \b
    Examples:
      penstockd show penstock.yaml main --position 41 --text
      penstockd show penstock.yaml main --position 0 --pictures sheet.png
      penstockd show penstock.yaml main --step 12000 --batches-per-step 64 \\
          --rank 3 --world-size 8
    """  # noqa: D301 - \b is for click
    if (position is None) == (step is None):
        raise click.UsageError("give either --position or --step, for example --position 0")
    if as_json and as_text:
        raise click.UsageError("give --json or --text, not both")
    config = load(file, overrides={"store": store}, assignments=assignments)
    built = config.job(job)
    size = batches_per_step or built.batches_per_step or world_size
    if step is not None:
        built.check_steps(size)
    share = Share(size, rank, world_size, uneven=uneven)
    positions = [position] if position is not None else share.positions(step or 0)
    recorded = Recorded(config.server.store, config.base)
    sheet = None if pictures is None else ContactSheet(built)
    for computed in computed_batches(
        built, positions, size, share=None if step is None else share, recorded=recorded
    ):
        if sheet is not None:
            sheet.add(computed, size)
        if as_json:
            click.echo(json.dumps(_record(computed, size)))
        else:
            say(_readable(built, computed, size, as_text))
    if sheet is not None and pictures is not None:
        sheet.write(pictures)
        say(f"penstockd: wrote {pictures}", error=True)
    warning = version_warning(config.server.store, config.base, built)
    for sentence in [*built.remarks(), *([warning] if warning else [])]:
        say(f"penstockd: {sentence}", error=True)


def computed_batches(
    job: Job,
    positions: Sequence[int],
    batches_per_step: int,
    *,
    share: Share | None,
    recorded: Recorded | None = None,
) -> Iterator[Computed]:
    """Yield the batches at ascending positions; one line per lane goes on from batch to batch.

    Args:
        job: The job.
        positions: Which.
        batches_per_step: G.
        share: As that rank gets them: a finite log's last step is filled up with padding batches,
            and an uneven one with fillers. None = the log's own batches.
        recorded: Where snapshots are found; None = every lane is planned from its beginning.

    Raises:
        PastEnd: The log holds no such position or step.
        PositionFar: Too many batches would have to be planned first.
    """
    # Where items are quarantined a node has counted by verdicts, which are not looked at here.
    if recorded is not None and job.needs_counting and job.on_item_error == "stop":
        ends = recorded.lane_ends(job.log_id, job.lanes)
        if ends is not None:
            job.set_lane_ends(ends)
    items = Items(job)
    order = KnownOrder(job, items)
    cut = None if share is None else Cut(batches_per_step)
    if cut is not None:
        _check_step(order, positions[0], cut)
    lines: dict[int, Line] = {}
    replay = Replay(job, recorded)
    for position in positions:
        located = order.locate(position, cut)
        line = replay.line(located.lane, located.offset, items, lines.get(located.lane))
        lines[located.lane] = line
        filler = share is not None and share.is_filler(position)
        yield compute(job, position, located, line, filler=filler)


def _check_step(order: KnownOrder, position: int, cut: Cut) -> None:
    """Refuse a step past the end, in the words of steps."""
    try:
        order.locate(position, cut)
    except PastEnd as error:
        tail = order.numbering.tail(cut)
        if tail is None:
            raise
        raise PastEnd(
            f"step {position // cut.batches_per_step} lies past the end: the log holds "
            f"{tail.batches} batches, {tail.steps} steps of {cut.batches_per_step}",
            steps=tail.steps,
            batches=tail.batches,
        ) from error


class Replay:
    """Brings lines to far offsets, from snapshots where there are any, and says what it takes.

    Args:
        job: The job.
        recorded: Where snapshots are found; None = nowhere.
    """

    def __init__(self, job: Job, recorded: Recorded | None) -> None:
        self._job, self._recorded = job, recorded
        self._has_reported = False

    def line(self, lane: int, offset: int, items: Items, line: Line | None) -> Line:
        """Return a line that stands at an offset; `line` may go on.

        Raises:
            PositionFar: Too many batches would have to be planned first.
        """
        line = nearest_line(self._job, lane, offset, items, line, self._nearest)
        check_reachable(self._job, line, offset)
        can_seek = line.planner.can_seek()
        if not can_seek and (cost := replay_cost(lane, line.offset, offset, self._why())):
            if not self._has_reported:
                self._has_reported = True
                click.echo(f"penstockd: {cost}", err=True)
            with Progress() as progress:
                line.skip_to(offset, lambda left: progress.say(f"{left:,} batches left to plan"))
        return line

    def _nearest(self, lane: int, offset: int) -> bytes | None:
        if self._recorded is None:
            return None
        found = self._recorded.snapshot(self._job.log_id, lane, offset)
        return None if found is None else found.data

    def _why(self) -> str:
        return self._recorded.why_none() if self._recorded is not None else "no store is read"


def _record(computed: Computed, batches_per_step: int) -> dict[str, Any]:
    header = read_header(computed.header)
    return batch_record(header, computed.body, header.position // batches_per_step)


def _readable(job: Job, computed: Computed, batches_per_step: int, as_text: bool) -> str:
    header, record = read_header(computed.header), _record(computed, batches_per_step)
    head = headline(record, padding=header.padding)
    if as_text:
        values = decode_values(header, computed.body)
        # Whichever set has made it: no two have a source of one name.
        made_by = job.roles_of(header.samples[0].source) if header.samples else job.role_sets[0]
        decode = decoder(made_by)
        return f"{head}\n{batch_text(values, decode)}"
    lines = [head, f"  digest {record['digest']}, {record['bytes']:,} bytes"]
    lines += [f"  {value_text(name, value)}" for name, value in record["values"].items()]
    drawn = [f"{name}[{number_text(n)}]@{epoch}" for name, n, epoch in record["items"]]
    more = f" and {len(drawn) - SHOWN_ITEMS} more" if len(drawn) > SHOWN_ITEMS else ""
    lines.append(f"  items (source[index]@epoch): {', '.join(drawn[:SHOWN_ITEMS])}{more}")
    return "\n".join(lines)
