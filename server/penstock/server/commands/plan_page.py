"""The report of `penstockd plan --html`: one file with plots, which loads nothing from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

from penstock.common.text_table import Table
from penstock.server.commands.plan_text import bar_name, lanes_table, sheet_of
from penstock.server.commands.plots import Axes, PlotSeries, band, columns, line, lying
from penstock.server.planning.report.along import Along
from penstock.server.planning.report.plan_report import PlanReport, RankFigures

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --rule: #d9dce1; --page: #fcfcfd;
  --s0: #3366cc; --s1: #d9730d; --s2: #2a8f5a; --mark: #1c2024; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #a0a5ad; --rule: #363a40;
  --page: #141618; --s0: #7aa2f7; --s1: #f0a35e; --s2: #6ccf97; --mark: #edeef0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem; max-width: 72rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 .75rem; } .dim { color: var(--dim); }
code { overflow-wrap: anywhere; }
.plots { display: grid; gap: 2rem 2.5rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
section { min-width: 0; }
svg { display: block; width: 100%; max-width: 36rem; height: auto; }
svg text { fill: var(--dim); font-size: 11px; font-family: system-ui, sans-serif; }
svg .name { fill: var(--ink); } svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
.grid { stroke: var(--rule); stroke-width: 1; }
.mark { stroke: var(--mark); stroke-width: 2; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); }
.b0 { fill: var(--s0); opacity: .2; }
.l0 { fill: none; stroke: var(--s0); stroke-width: 2; }
.key { display: inline-block; width: .75rem; height: .75rem; margin-right: .35rem; }
.key + span { margin-right: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
.figures td:last-child { text-align: left; width: 99%; }
.figures { width: 100%; }
@media (min-width: 40rem) { .figures td:first-child { white-space: nowrap; } }
"""


def page(report: PlanReport, made: str = "") -> str:
    """Return the report as HTML.

    Args:
        report: The report.
        made: Of which file, by which version, and when.
    """
    title = f"Plan of {report.job}"
    data = json.dumps(report.to_json()).replace("<", "\\u003c")
    sheet = sheet_of(report)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="dim">{escape(" ".join(sheet.about))}.<br>'
        f"Log id <code>{report.log_id}</code>{f'<br>{escape(made)}' if made else ''}</p>\n"
        f"{sheet.html()}\n"
        f'<div class="plots">{"".join(_sections(report))}</div>\n'
        f'<script type="application/json" id="plan">{data}</script>\n'
        "</body>\n</html>\n"
    )


def _sections(report: PlanReport) -> Iterator[str]:
    if report.bars:
        yield _lengths(report)
    if len(report.sources) > 1 and report.packing is not None:
        yield _sources(report)
    skewed = [each for each in report.ranks if any(each.skews.values())]
    if skewed:
        about = (
            "By how much the most expensive batch exceeds the mean; the line is the 95th of 100."
        )
        yield _skews("Cost skew at each micro batch, by ranks", about, skewed, "micro")
        about = "By how much the most expensive rank exceeds the mean, over a whole step."
        yield _skews("Cost skew over a step, by ranks", about, skewed, "step")
    for kind, found in report.along.items():
        if found is not None:
            yield _along(kind, found)
    if len(report.other_lanes) > 1:
        yield _lanes(report)


def _section(title: str, about: str, plot: str, table: Table) -> str:
    return (
        f'<section><h2>{escape(title)}</h2><p class="dim">{escape(about)}</p>{plot}'
        f'<details><summary>Numbers</summary><div class="scroll">{table.html()}</div>'
        "</details></section>"
    )


def _lengths(report: PlanReport) -> str:
    names = [f"{bar.start:,}" for bar in report.bars]
    heights: list[float | None] = [bar.height for bar in report.bars]
    return _section(
        "Samples by their tokens",
        "A piece of a split sample counts as one.",
        columns(
            "How many samples have how many tokens",
            names,
            [PlotSeries("samples", heights)],
            Axes("tokens of a sample, from", "samples"),
        ),
        Table([(bar_name(bar), f"{bar.height:,}") for bar in report.bars], ("tokens", "samples")),
    )


def _sources(report: PlanReport) -> str:
    whole = sum(tokens for _, tokens in report.sources.values())
    names = list(report.sources)
    tokens = [float(found[1]) for found in report.sources.values()]
    said = [f"{each / whole:.1%}" for each in tokens]
    return _section(
        "Tokens by source",
        "Of what is in batches.",
        lying("Tokens by source", names, tokens, said),
        Table(
            [(name, f"{n:,}", f"{each:,}") for name, (n, each) in report.sources.items()],
            ("source", "samples", "tokens"),
        ),
    )


def _skews(title: str, about: str, ranks: Sequence[RankFigures], which: str) -> str:
    names = [f"{each.world_size:,}" for each in ranks]
    kinds = list(ranks[0].skews)
    series, table = [], []
    for kind in kinds:
        found = [getattr(each.skews[kind], which, None) for each in ranks]
        series.append(
            PlotSeries(
                kind,
                [skew and skew.mean for skew in found],
                [skew and skew.p95 for skew in found],
            )
        )
    for each in ranks:
        for kind in kinds:
            skew = getattr(each.skews[kind], which, None)
            if skew is not None:
                figures = (f"{share:.2%}" for share in skew)
                table.append((f"{each.world_size:,} ranks", kind, *figures))
    key = "".join(
        f'<span class="key" style="background:var(--s{number})"></span><span>{escape(kind)}</span>'
        for number, kind in enumerate(kinds)
    )
    plot = columns(title, names, series, Axes("ranks", "cost above the mean"), "%")
    heads = ("ranks", "cost", "mean", "p95", "max")
    return _section(title, about, f"<p>{key}</p>{plot}", Table(table, heads))


def _along(kind: str, found: Along) -> str:
    names = [f"{step:,}" for step in found.firsts]
    return _section(
        f"Cost of a step along the run: {kind}",
        "The mean of neighbouring steps, between the cheapest and the most expensive of them; 100% "
        "is the mean of all.",
        band(
            f"Cost of a step along the run, {kind}",
            names,
            found.mean,
            found.least,
            found.most,
            Axes("step", "cost of a step, by the mean of all"),
        ),
        Table(
            [
                (name, f"{mean:.1%}", f"{least:.1%}", f"{most:.1%}")
                for name, mean, least, most in zip(
                    names, found.mean, found.least, found.most, strict=True
                )
            ],
            ("from step", "mean", "min", "max"),
        ),
    )


def _lanes(report: PlanReport) -> str:
    planned = [row for row in report.other_lanes if row.packing is not None]
    names = [f"{row.lanes:,}" for row in planned]
    heights = [row.packing.efficiency if row.packing else None for row in planned]
    return _section(
        "Packing efficiency by lanes",
        f"The job has {report.lanes:,}; another number is another log.",
        line("Packing efficiency by lanes", names, heights, Axes("lanes", "packing efficiency"))
        if planned
        else "",
        lanes_table(report),
    )
