"""What `penstockd plan` prints for people: at most 80 columns wide, so that no table breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from penstock.common.terminal import plain
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
    return "\n".join(
        [
            f"{click.style(f'job {plain(report.job)}', bold=True)}  log id {report.log_id[:16]}",
            f"  {headline(report)}",
            *_aligned([(name, value) for name, value in rows(report)]),
            *_histogram(report.bars),
            *_ranks(report.ranks),
            *_lanes(report),
            *(f"  {click.style('note', fg='yellow')} {plain(note)}" for note in report.notes),
        ]
    )


def headline(report: PlanReport) -> str:
    """Return what these figures are of."""
    whole = "all of the job: " if report.is_all else ""
    epochs = counted(report.epochs, "epoch")
    return (
        f"{whole}{epochs}, {counted(report.items, 'item')} drawn by {counted(report.lanes, 'lane')}"
    )


def rows(report: PlanReport) -> Iterator[tuple[str, str]]:
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
    size = report.batches_per_step
    yield "batches per step", f"{size:,} ({SAID_BY[report.step_from]})"
    yield "steps", _steps(report)
    if report.is_all:
        yield from _tail(report)
    for kind, what in (("filtered", "item"), ("quarantined", "item"), ("dropped", "sample")):
        for reason, number in report.counted(kind).items():
            if number:
                yield f"{kind}: {plain(reason)}", counted(number, what)
    for reason, number in report.counted("batcher").items():
        if number:
            yield f"batcher: {plain(reason)}", f"{number:,}"
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
        ("tokens per row", report.row_tokens),
        ("tokens per sample", report.lengths),
    ]
    return [(name, spread) for name, spread in found if spread is not None]


def counted(number: int, noun: str) -> str:
    """Return `1 lane`, `4 batches`."""
    plural = "" if number == 1 else "es" if noun.endswith("batch") else "s"
    return f"{number:,} {noun}{plural}"


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


def _aligned(found: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in found)
    return (f"  {name:<{width}}  {value}" for name, value in found)


def _histogram(bars: Sequence[Bar]) -> Iterator[str]:
    if not bars:
        return
    yield click.style("  samples by their tokens", bold=True)
    names = [bar_name(bar) for bar in bars]
    width, highest = max(map(len, names)), max(bar.height for bar in bars)
    heights = max(len(f"{bar.height:,}") for bar in bars)
    for name, bar in zip(names, bars, strict=True):
        drawn = "#" * -(-bar.height * BAR_COLUMNS // highest)
        yield f"    {name:>{width}}  {bar.height:>{heights},}  {drawn}".rstrip()


def bar_name(bar: Bar) -> str:
    """Return `8 - 11`, or the only number of a bar."""
    last = bar.stop - 1
    return f"{bar.start:,}" if bar.start == last else f"{bar.start:,} - {last:,}"


def _ranks(ranks: Sequence[RankFigures]) -> Iterator[str]:
    if not any(found is not None for each in ranks for found in each.skews.values()):
        return
    title = "  cost of the batches that ranks train on at the same time: largest above mean"
    yield click.style(title, bold=True)
    heads = f"    {'':>6} {'micro':>8}  {'':8}  {'at each micro batch':^23}  {'over a step':^23}"
    yield heads.rstrip()
    shares = f"{'mean':>7} {'p95':>7} {'max':>7}"
    yield f"    {'ranks':>6} {'batches':>8}  {'cost':8}  {shares}  {shares}"
    for each in ranks:
        numbers = f"{each.world_size:>6,} {each.micro_batches:>8,}"
        for name, found in each.skews.items():
            if found is not None:
                yield f"    {numbers}  {name:8}  {_skew(found.micro)}  {_skew(found.step)}"
                numbers = f"{'':>6} {'':>8}"


def _skew(skew: Skew) -> str:
    return " ".join(f"{share:>7.1%}" for share in skew)


def _lanes(report: PlanReport) -> Iterator[str]:
    if len(report.other_lanes) < 2:
        return
    yield click.style("  the same with other numbers of lanes", bold=True)
    yield f"    {'lanes':>6}  {'batches':>12}  {'efficiency':>10}  {'padding':>15}"
    for row in report.other_lanes:
        yield f"    {row.lanes:>6,}  {_lanes_row(row)}".rstrip()


def _lanes_row(row: LanesRow) -> str:
    if row.why_not:
        return f"not planned: {plain(row.why_not)}"
    found = f"{row.batches:>12,}"
    if row.packing is not None:
        found += f"  {_share(row.packing.efficiency):>10}  {row.packing.padding:>15,}"
    return found


__all__ = ["bar_name", "counted", "headline", "render", "rows", "spreads"]
