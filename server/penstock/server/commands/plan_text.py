"""What `penstockd plan` prints for people: at most 80 columns wide, so that no table breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.common.text_table import Table
from penstock.server.commands.sheet import Sheet, block, counted
from penstock.server.planning.report.histograms import Bar, Spread
from penstock.server.planning.report.plan_report import LanesRow, PlanReport, RankFigures
from penstock.server.planning.report.skew import Skew

BAR_COLUMNS = 40
"""Of the longest bar of the histogram."""

SAID_BY = {
    "option": "--batches-per-step",
    "job": "the job says so",
    "ranks": "the largest of --ranks",
    "lanes": "one per lane: nothing says another number",
}

SIZES_FROM = {
    "source": "told by the source",
    "size": "told by the processor's size()",
    "index": "those of the index",
    "none": "not known, nor looked at",
}


def render(report: PlanReport) -> str:
    """Return what a plan says, for people."""
    return sheet_of(report).text()


def sheet_of(report: PlanReport) -> Sheet:
    """Return what a plan says, for a terminal or a page."""
    return Sheet(
        f"job {report.job}",
        list(_rows(report)),
        more=f"  log id {report.log_id[:16]}",
        about=[_headline(report)],
        blocks=[*_histogram(report.bars), *_ranks(report.ranks), *_lanes(report)],
        notes=report.notes,
    )


def _headline(report: PlanReport) -> str:
    """Return what these figures are of."""
    whole = "all of the job: " if report.is_all else ""
    epochs = counted(report.epochs, "epoch")
    return (
        f"{whole}{epochs}, {counted(report.items, 'item')} drawn by {counted(report.lanes, 'lane')}"
    )


def _rows(report: PlanReport) -> Iterator[tuple[str, str]]:
    """Yield the figures, each with its name."""
    yield "sizes", SIZES_FROM[report.sizes_from]
    yield "batches", _batches(report)
    yield "rows, samples", f"{report.rows:,} rows, {report.samples:,} samples"
    if (packing := report.packing) is not None:
        yield "tokens", f"{packing.tokens:,}"
        yield "padding", f"{packing.padding:,} tokens, {_padded_to(packing.by_collator)}"
        yield "packing efficiency", _share(packing.efficiency)
    for name, spread in spreads(report):
        yield name, _spread(spread)
    for name, (total, spread) in report.measured.items():
        yield name, f"{total:,}; per batch {_spread(spread)}"
    size = report.batches_per_step
    yield "batches per step", f"{size:,} ({SAID_BY[report.step_from]})"
    yield "steps", _steps(report)
    if report.is_all:
        yield from _tail(report)
    for kind, what in (("filtered", "item"), ("quarantined", "item"), ("dropped", "sample")):
        for reason, number in report.counted(kind).items():
            if number:
                yield f"{kind}: {reason}", counted(number, what)
    for reason, number in report.counted("batcher").items():
        if number:
            yield f"batcher: {reason}", f"{number:,}"
    if (processing := report.processing) is not None:
        kept = f"lanes keep up to {processing.kept:,} tokens for it"
        yield "samples processed", f"{processing.times:.2f} times; {kept}"
    if report.held:
        yield "held at the end", counted(report.held, "sample")
    whole = sum(tokens for _, tokens in report.sources.values())
    for name, (samples, tokens) in report.sources.items():
        share = f", {tokens:,} tokens ({tokens / whole:.1%})" if whole else ""
        yield f"source {name}", f"{samples:,} samples{share}"


def spreads(report: PlanReport) -> list[tuple[str, Spread]]:
    """Return how numbers are spread, each with its name; those that are known."""
    found = [
        ("samples per row", report.of_rows),
        ("samples per batch", report.of_batches),
        ("episodes per batch", report.of_episodes),
        ("tokens per row", report.row_tokens),
        ("tokens per sample", report.lengths),
    ]
    return [(name, spread) for name, spread in found if spread is not None]


def _batches(report: PlanReport) -> str:
    if report.epochs == 1:
        return f"{report.batches:,}"
    return f"{report.batches:,}, {report.batches / report.epochs:,.1f} per epoch"


def _padded_to(by_collator: bool) -> str:
    return "as the collator pads" if by_collator else "if rows are padded to the longest of a batch"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.4f}"


def _spread(spread: Spread) -> str:
    return (
        f"mean {spread.mean:,.2f}, median {spread.median:,.10g}, "
        f"from {spread.least:,} to {spread.most:,}"
    )


def _steps(report: PlanReport) -> str:
    per_epoch = report.batches / report.epochs / report.batches_per_step
    return f"{report.steps:,} whole ones, {per_epoch:,.2f} per epoch"


def _tail(report: PlanReport) -> Iterator[tuple[str, str]]:
    left = report.batches % report.batches_per_step
    if not left:
        yield "last step", "full"
        return
    tail = report.tail
    added = counted(tail.end - report.batches, "padding batch")
    yield "tail: pad", f"{counted(tail.steps, 'step')}, the last with {added}"
    yield "tail: drop", f"{counted(report.steps, 'step')}, {counted(left, 'batch')} left out"


def _histogram(bars: Sequence[Bar]) -> list[str]:
    highest = max((bar.height for bar in bars), default=1)
    drawn = [
        (bar_name(bar), f"{bar.height:,}", "#" * -(-bar.height * BAR_COLUMNS // highest))
        for bar in bars
    ]
    return block("samples by their tokens", Table(drawn, right=frozenset((0, 1))).lines(4))


def bar_name(bar: Bar) -> str:
    """Return `8 - 11`, or the only number of a bar."""
    last = bar.stop - 1
    return f"{bar.start:,}" if bar.start == last else f"{bar.start:,} - {last:,}"


def _ranks(ranks: Sequence[RankFigures]) -> list[str]:
    shares = f"{'mean':>7} {'p95':>7} {'max':>7}"
    heads = [
        f"    {'':>6} {'micro':>8}  {'':8}  {'at each micro batch':^23}  {'over a step':^23}",
        f"    {'ranks':>6} {'batches':>8}  {'cost':8}  {shares}  {shares}",
    ]
    lines = []
    for each in ranks:
        numbers = f"{each.world_size:>6,} {each.micro_batches:>8,}"
        for name, found in each.skews.items():
            if found is not None:
                lines.append(f"    {numbers}  {name:8}  {_skew(found.micro)}  {_skew(found.step)}")
                numbers = f"{'':>6} {'':>8}"
    title = "cost of the batches that ranks train on at the same time: largest above mean"
    return block(title, [*(head.rstrip() for head in heads), *lines] if lines else [])


def _skew(skew: Skew) -> str:
    return " ".join(f"{share:>7.1%}" for share in skew)


def lanes_table(report: PlanReport) -> Table:
    """Return what other numbers of lanes give; no rows where nothing else was looked at."""
    found = [_lanes_row(row) for row in report.other_lanes]
    heads = ("lanes", "batches", "efficiency", "padding")
    return Table(found if len(found) > 1 else [], heads, frozenset(range(4)))


def _lanes_row(row: LanesRow) -> list[str]:
    if row.why_not:
        return [f"{row.lanes:,}", f"not planned: {row.why_not}"]
    packing = row.packing
    figures = [] if packing is None else [_share(packing.efficiency), f"{packing.padding:,}"]
    return [f"{row.lanes:,}", f"{row.batches:,}", *figures]


def _lanes(report: PlanReport) -> list[str]:
    table = lanes_table(report)
    lines = table.lines(indent=4) if table.rows else []
    return block("the same with other numbers of lanes", lines)
