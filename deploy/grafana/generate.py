"""Write the dashboards beside this file: `python deploy/grafana/generate.py`, or `make dashboards`.

Descriptions and units are those of the table of metrics, `penstock.common.metric_table`. It needs
`grafana-foundation-sdk`, which `make dev` installs. The files are for Grafana 10.1 and newer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

from penstock.common.metric_table import JOB, METRICS, help_of

HERE = Path(__file__).parent
WIDTH, HEIGHT = 24, 8
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

NODES = 'instance=~"$instance"'
RUN = f'{NODES}, {JOB}=~"$penstock_job"'
GROUP = f'{RUN}, group=~"$group"'
TRAINERS = f'{JOB}=~"$penstock_job", group=~"$group"'
RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """A panel of a dashboard.

    Attributes:
        title: What it shows.
        exprs: Expressions with their legends. The first metric of the first one says what is
            described, and in which unit.
        kind: How it is drawn: `lines`, `number`, `bars` or `table`.
        share: Of the row's width.
        unit: Grafana's unit, where it is not that of the metric or of its rate.
        note: A sentence in place of the metric's help text.
    """

    title: str
    exprs: tuple[tuple[str, str], ...]
    kind: str = "lines"
    share: float = 1 / 3
    unit: str = ""
    note: str = ""


def rate(name: str, labels: str, by: str) -> str:
    """Return the sums of a counter's rates."""
    return f"sum by ({by}) (rate({name}{{{labels}}}{RATE}))"


def video_frames(what: str) -> str:
    """Return the rate of frames of a kind, by job."""
    return rate("penstock_video_frames_total", f'{RUN}, what="{what}"', JOB)


def quantile(share: float, name: str, labels: str, by: str = "") -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, f'le{by}')})"


def drawn_share(unit: str) -> str:
    """Return the share of each part among what was drawn in the time that is shown."""
    drawn = f"increase(penstock_part_{unit}_total{{{RUN}}}[$__range])"
    whole = f'increase(penstock_part_{unit}_total{{{RUN}, part!~".*/.*"}}[$__range])'
    return (
        f"sum by ({JOB}, part) ({drawn}) / on ({JOB}) group_left () (sum by ({JOB}) ({whole}) > 0)"
    )


FLEET = (
    "Fleet",
    "Loader nodes: whether they answer, what they send, the memory that they take, and when they "
    "started.",
    ("instance",),
    {
        "Nodes": (
            Panel(
                "Nodes that answer",
                ((f'sum(up{{job="penstock", {NODES}}})', "nodes"),),
                "number",
                1 / 6,
                note="Loader nodes that Prometheus could scrape.",
            ),
            Panel("Readers", ((f"sum(penstock_streams{{{NODES}}})", "readers"),), "number", 1 / 6),
            Panel(
                "Workers ready",
                ((f"sum(penstock_workers_ready{{{NODES}}})", "workers"),),
                "number",
                1 / 6,
            ),
            Panel(
                "Nodes that drain",
                ((f"sum(penstock_draining{{{NODES}}})", "draining"),),
                "number",
                1 / 6,
            ),
            Panel(
                "Versions",
                ((f"sum by (instance, version, python) (penstock_build_info{{{NODES}}})", ""),),
                "table",
            ),
        ),
        "Rate": (
            Panel(
                "Batches sent",
                ((rate("penstock_batches_sent_total", NODES, "instance"), "{{instance}}"),),
            ),
            Panel(
                "Bytes sent",
                ((rate("penstock_sent_bytes_total", NODES, "instance"), "{{instance}}"),),
            ),
            Panel(
                "Tokens sent, by job",
                ((rate("penstock_sent_tokens_total", NODES, JOB), f"{{{{{JOB}}}}}"),),
            ),
            Panel(
                "Batches made",
                ((rate("penstock_batches_produced_total", NODES, "instance"), "{{instance}}"),),
            ),
            Panel(
                "Bytes made",
                ((rate("penstock_produced_bytes_total", NODES, "instance"), "{{instance}}"),),
            ),
            Panel(
                "Share of batches that were lent",
                (
                    (
                        f"{rate('penstock_batches_lent_total', NODES, 'instance')} / "
                        f"({rate('penstock_batches_sent_total', NODES, 'instance')} > 0)",
                        "{{instance}}",
                    ),
                ),
                unit="percentunit",
            ),
        ),
        "Memory": (
            Panel(
                "Memory of the nodes",
                (
                    (
                        f"sum by (instance, part) (penstock_memory_bytes{{{NODES}}})",
                        "{{instance}} {{part}}",
                    ),
                ),
                share=1 / 2,
            ),
            Panel(
                "Ready batches against their bound",
                (
                    (f"sum by (instance) (penstock_ready_bytes{{{NODES}}})", "{{instance}} ready"),
                    (f"sum by (instance) (penstock_lent_bytes{{{NODES}}})", "{{instance}} lent"),
                    (
                        f"sum by (instance) (penstock_ready_bound_bytes{{{NODES}}})",
                        "{{instance}} bound",
                    ),
                ),
                share=1 / 2,
            ),
        ),
        "How many nodes": (
            Panel(
                "Wanted, against those that serve",
                (
                    (f"max by ({JOB}) (penstock_wanted_nodes{{{NODES}}})", f"{{{{{JOB}}}}}"),
                    (f'sum(up{{job="penstock", {NODES}}})', "that answer"),
                ),
                share=1 / 3,
                note="Nodes that each job wants, as the node reckons it that sees most.",
            ),
            Panel(
                "Workers needed",
                (
                    (f"max by ({JOB}) (penstock_needed_workers{{{NODES}}})", f"{{{{{JOB}}}}}"),
                    (f"sum(penstock_workers_ready{{{NODES}}})", "that are ready"),
                ),
                share=1 / 3,
            ),
            Panel(
                "Made again",
                (
                    (
                        f"({rate('penstock_recomputed_batches_total', NODES, JOB)} + "
                        f"{rate('penstock_unread_batches_total', NODES, JOB)}) / "
                        f"({rate('penstock_batches_sent_total', NODES, JOB)} > 0)",
                        f"{{{{{JOB}}}}}",
                    ),
                ),
                share=1 / 3,
                unit="percentunit",
                note="Batches that were made before and again, or let go unread, over those that "
                "readers were given; all nodes together.",
            ),
            Panel(
                "Digests compared, and those that were other ones",
                (
                    (rate("penstock_witnesses_compared_total", NODES, "instance"), "{{instance}}"),
                    (
                        f"sum by (instance) (penstock_witnesses_diverged_total{{{NODES}}})",
                        "other bytes at {{instance}}",
                    ),
                ),
                share=1,
                unit="short",
                note="Recorded or compared in a second, and in all those that differed.",
            ),
            Panel(
                "Units that readers ask for",
                (
                    (
                        f"sum by ({JOB}, instance) (penstock_units_asked{{{NODES}}})",
                        f"{{{{{JOB}}}}} at {{{{instance}}}}",
                    ),
                    (f"max by ({JOB}) (penstock_units{{{NODES}}})", f"all of {{{{{JOB}}}}}"),
                ),
                share=1,
            ),
            Panel(
                "Nodes that readers left",
                (
                    (
                        f"sum by ({JOB}, reason) "
                        f"(increase(penstock_failovers_total{{{NODES}}}[5m]))",
                        f"{{{{{JOB}}}}}: {{{{reason}}}}",
                    ),
                ),
                share=1 / 3,
                note="Within five minutes, by why; each reader counts.",
            ),
            Panel(
                "Jobs that are refused",
                (
                    (
                        f"max by (instance, {JOB}) (penstock_environment_refused{{{NODES}}})",
                        f"{{{{{JOB}}}}} at {{{{instance}}}}",
                    ),
                ),
                share=1 / 3,
            ),
            Panel(
                "Streams opened again",
                (
                    (
                        "sum by (instance) "
                        f"(increase(penstock_stream_restarts_total{{{NODES}}}[5m]))",
                        "{{instance}}",
                    ),
                ),
                share=1 / 3,
                note="Within five minutes; a node that was left and is read again counts for "
                "each rank.",
            ),
        ),
        "Starts": (
            Panel(
                "Up for",
                ((f"time() - penstock_start_time_seconds{{{NODES}}}", "{{instance}}"),),
                "bars",
                1 / 4,
                note="How long each node has run.",
            ),
            Panel(
                "Time until ready",
                ((f"penstock_start_duration_seconds{{{NODES}}}", "{{instance}}"),),
                "bars",
                1 / 4,
            ),
            Panel(
                "Workers that died",
                (
                    (
                        "sum by (instance) (increase("
                        f"penstock_worker_restarts_total{{{NODES}}}[1h]))",
                        "{{instance}}",
                    ),
                ),
                share=1 / 4,
                unit="short",
                note="Worker processes that ended unexpectedly within the hour before.",
            ),
            Panel(
                "Streams opened again",
                ((rate("penstock_stream_restarts_total", NODES, "instance"), "{{instance}}"),),
                share=1 / 4,
            ),
        ),
    },
)

RUNS = (
    "Run",
    "One training run: whether it waits for data, how fast it goes, and what its batches are made "
    "of.",
    ("instance", JOB, "group"),
    {
        "Does training wait for data?": (
            Panel(
                "Share of time that ranks wait (the slowest, as nodes see it)",
                (
                    (
                        f"max by ({JOB}, group, rank) "
                        f"(rate(penstock_group_waiting_seconds{{{GROUP}}}{RATE}))",
                        "{{group}} rank {{rank}}",
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Share of time that ranks wait (as trainers see it)",
                (
                    (
                        rate("penstock_loader_wait_seconds_total", TRAINERS, "group, rank"),
                        "{{group}} rank {{rank}}",
                    ),
                ),
                unit="percentunit",
                note="Of trainers that are scraped: Loader(metrics=...).",
            ),
            Panel(
                "What trainers wait for",
                (
                    (
                        rate("penstock_loader_wait_seconds_total", TRAINERS, "group, stage"),
                        "{{group}} {{stage}}",
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Owed for",
                (
                    (
                        f"max by ({JOB}, group, rank) (penstock_group_stalled_seconds{{{GROUP}}})",
                        "{{group}} rank {{rank}}",
                    ),
                ),
            ),
            Panel(
                "Waits of readers",
                (
                    (quantile(0.5, "penstock_consumer_wait_seconds", RUN), "half are shorter"),
                    (quantile(0.99, "penstock_consumer_wait_seconds", RUN), "99 of 100 are"),
                ),
                unit="s",
            ),
            Panel(
                "Streams that trainers opened again, and nodes that they left",
                (
                    (
                        rate("penstock_loader_reconnects_total", TRAINERS, "group, rank"),
                        "{{group}} rank {{rank}}",
                    ),
                    (
                        rate("penstock_loader_failovers_total", TRAINERS, "group, reason"),
                        "{{group}} left nodes: {{reason}}",
                    ),
                ),
            ),
        ),
        "How fast, and how far": (
            Panel(
                "Tokens",
                (
                    (rate("penstock_sent_tokens_total", RUN, JOB), f"sent of {{{{{JOB}}}}}"),
                    (rate("penstock_tokens_packed_total", RUN, JOB), f"made of {{{{{JOB}}}}}"),
                    (
                        rate("penstock_loader_tokens_total", TRAINERS, "group"),
                        "trained by {{group}}",
                    ),
                ),
            ),
            Panel(
                "Batches",
                (
                    (rate("penstock_batches_produced_total", RUN, JOB), f"made of {{{{{JOB}}}}}"),
                    (
                        rate("penstock_loader_batches_total", TRAINERS, "group"),
                        "trained by {{group}}",
                    ),
                ),
            ),
            Panel(
                "Lag",
                (
                    (
                        f"max by ({JOB}, group, rank) (penstock_consumer_lag_batches{{{GROUP}}})",
                        "{{group}} rank {{rank}}",
                    ),
                ),
            ),
            Panel(
                "Next position",
                (
                    (
                        f"min by ({JOB}, group) (penstock_group_next_position{{{GROUP}}})",
                        "{{group}}",
                    ),
                ),
            ),
            Panel(
                "Readers",
                ((f"sum by ({JOB}, group) (penstock_group_readers{{{GROUP}}})", "{{group}}"),),
            ),
            Panel(
                "Ready batches",
                ((f"sum by ({JOB}) (penstock_ready_batches{{{RUN}}})", f"{{{{{JOB}}}}}"),),
            ),
        ),
        "What batches are made of": (
            Panel(
                "Fill",
                (
                    (
                        f"{rate('penstock_tokens_packed_total', RUN, JOB)} / "
                        f"({rate('penstock_tokens_packed_total', RUN, JOB)} + "
                        f"{rate('penstock_padding_tokens_total', RUN, JOB)} > 0)",
                        f"{{{{{JOB}}}}}",
                    ),
                    (
                        quantile(0.05, "penstock_packing_fill_ratio", RUN, f", {JOB}"),
                        f"one batch in 20 of {{{{{JOB}}}}} has less",
                    ),
                ),
                unit="percentunit",
                share=1 / 4,
                note="Tokens divided by tokens and padding.",
            ),
            Panel(
                "Mixture, items: drawn",
                ((drawn_share("items"), f"{{{{{JOB}}}}} {{{{part}}}}"),),
                "bars",
                1 / 4,
                unit="percentunit",
            ),
            Panel(
                "Mixture, tokens: drawn",
                ((drawn_share("tokens"), f"{{{{{JOB}}}}} {{{{part}}}}"),),
                "bars",
                1 / 4,
                unit="percentunit",
            ),
            Panel(
                "Mixture: target",
                (
                    (
                        f"max by ({JOB}, part, by) (penstock_part_target_ratio{{{RUN}}})",
                        f"{{{{{JOB}}}}} {{{{part}}}}, of {{{{by}}}}",
                    ),
                ),
                "bars",
                1 / 4,
            ),
            Panel(
                "Quarantined items",
                (
                    (
                        f"max by ({JOB}, source, stage, reason) "
                        f"(penstock_quarantined_items{{{RUN}}})",
                        "{{source}} {{stage}}: {{reason}}",
                    ),
                ),
            ),
            Panel(
                "Skipped samples",
                ((rate("penstock_samples_skipped_total", RUN, "reason"), "{{reason}}"),),
            ),
            Panel(
                "Retries, and batches that failed",
                (
                    (rate("penstock_retries_total", RUN, "reason"), "retry: {{reason}}"),
                    (rate("penstock_decode_errors_total", RUN, "reason"), "failed: {{reason}}"),
                ),
            ),
        ),
        "Where the work goes": (
            Panel(
                "Workers by stage",
                ((rate("penstock_decode_duration_seconds_sum", RUN, "stage"), "{{stage}}"),),
                unit="short",
                note="How many workers are busy with each stage, in the mean.",
            ),
            Panel(
                "Items drawn",
                ((rate("penstock_drawn_items_total", RUN, JOB), f"{{{{{JOB}}}}}"),),
            ),
            Panel(
                "Read amplification",
                (
                    (
                        f"{rate('penstock_source_read_bytes_total', RUN, JOB)} / "
                        f"({rate('penstock_source_drawn_bytes_total', RUN, JOB)} > 0)",
                        f"{{{{{JOB}}}}}",
                    ),
                ),
                unit="short",
                note="Bytes read from storage, divided by what the drawn items take there.",
            ),
            Panel(
                "Batches made again, and given from the cache",
                (
                    (rate("penstock_recomputed_batches_total", RUN, JOB), f"again: {{{{{JOB}}}}}"),
                    (rate("penstock_cache_hits_total", RUN, JOB), f"cached: {{{{{JOB}}}}}"),
                ),
            ),
        ),
        "Videos": (
            Panel(
                "Frames decoded for one delivered",
                (
                    (
                        f"{video_frames('decoded')} / ({video_frames('delivered')} > 0)",
                        f"{{{{{JOB}}}}}",
                    ),
                ),
                unit="short",
                note="1 where each frame that is decoded is wanted once; key frames far apart, or "
                "decoders that are closed too early, make it more.",
            ),
            Panel(
                "Videos: open, opened and closed for room",
                ((rate("penstock_video_opens_total", RUN, "result"), "{{result}}"),),
            ),
            Panel(
                "Processor time of videos, by stage",
                ((rate("penstock_video_cpu_seconds_total", RUN, "stage"), "{{stage}}"),),
                unit="short",
                note="Of how many cores: fetching, decoding, converting, and copying into batches.",
            ),
        ),
    },
)

STORE = (
    "Store",
    "The stores of cursors: whether they answer, how fast, and who is refused.",
    ("instance",),
    {
        "Does it answer?": (
            Panel(
                "Away for",
                ((f"max by (instance) (penstock_store_away_seconds{{{NODES}}})", "{{instance}}"),),
            ),
            Panel(
                "Errors",
                (
                    (
                        rate("penstock_store_errors_total", NODES, "instance, reason"),
                        "{{instance}} {{reason}}",
                    ),
                ),
            ),
            Panel(
                "Snapshots that wait",
                ((f"penstock_snapshots_waiting{{{NODES}}}", "{{instance}}"),),
            ),
        ),
        "What nodes hear of each other": (
            Panel(
                "Looks", ((rate("penstock_store_polls_total", NODES, "instance"), "{{instance}}"),)
            ),
            Panel(
                "Attempts that ended elsewhere",
                ((rate("penstock_fenced_elsewhere_total", NODES, "instance"), "{{instance}}"),),
            ),
        ),
        "Commits": (
            Panel(
                "Commits",
                (
                    (
                        rate("penstock_cursor_commit_duration_seconds_count", NODES, "instance"),
                        "{{instance}}",
                    ),
                ),
                unit="si: commits/s",
            ),
            Panel(
                "Time of a commit",
                (
                    (
                        quantile(0.5, "penstock_cursor_commit_duration_seconds", NODES),
                        "half are shorter",
                    ),
                    (
                        quantile(0.99, "penstock_cursor_commit_duration_seconds", NODES),
                        "99 of 100 are",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Refused: a newer attempt has taken over",
                ((rate("penstock_cursor_fenced_total", NODES, "instance"), "{{instance}}"),),
            ),
        ),
        "Other calls": (
            Panel(
                "Calls by method",
                (
                    (
                        rate("penstock_cursor_call_duration_seconds_count", NODES, "method"),
                        "{{method}}",
                    ),
                ),
                share=1 / 2,
                unit="si: calls/s",
            ),
            Panel(
                "Time of a call, 99 of 100 are shorter",
                (
                    (
                        quantile(0.99, "penstock_cursor_call_duration_seconds", NODES, ", method"),
                        "{{method}}",
                    ),
                ),
                share=1 / 2,
                unit="s",
            ),
        ),
    },
)

ALL: dict[str, Any] = {"fleet": FLEET, "run": RUNS, "store": STORE}

VARIABLES = {
    "instance": ("Node", "label_values(penstock_build_info, instance)"),
    JOB: ("Job", f"label_values(penstock_batches_produced_total, {JOB})"),
    "group": (
        "Group",
        f'label_values(penstock_group_readers{{{JOB}=~"$penstock_job"}}, group)',
    ),
}
"""The variables of dashboards: their labels, and where their values come from."""


def metric_of(expr: str) -> str | None:
    """Return the first metric of ours that an expression names."""
    for name in re.findall(r"\bpenstock_\w+(?=\{|\[)", expr):
        for known in (name, re.sub(r"_(sum|count|bucket)$", "", name)):
            if known in METRICS:
                return str(known)
    return None


def unit_of(panel: Panel) -> str:
    """Return Grafana's unit of a panel: the metric's, or that of its rate."""
    expr = panel.exprs[0][0]
    name = metric_of(expr)
    if panel.unit or name is None:
        return panel.unit or "short"
    unit, is_rate = METRICS[name].unit, "rate(" in expr
    if unit in ("", "ratio"):
        return "percentunit" if unit else "short"
    if unit == "seconds":
        return "percentunit" if is_rate else "s"
    if unit == "bytes":
        return "Bps" if is_rate else "bytes"
    return f"si: {unit}/s" if is_rate else "short"


def panel_of(panel: Panel) -> Any:
    """Return the builder of a panel."""
    name = metric_of(panel.exprs[0][0])
    text = panel.note or (help_of(name) if name is not None else "")
    if panel.kind == "lines":
        made: Any = (
            timeseries.Panel()
            .fill_opacity(8)
            .line_width(1)
            .min(0)
            .legend(
                VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(True)
            )
        )
    elif panel.kind == "bars":
        made = (
            bargauge.Panel()
            .orientation(VizOrientation.HORIZONTAL)
            .min(0)
            .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        )
    elif panel.kind == "number":
        made = stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    else:
        made = table.Panel()
    made = (
        made.title(panel.title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit_of(panel))
        .height(HEIGHT if panel.kind in ("lines", "bars") else HEIGHT // 2)
        .span(round(WIDTH * panel.share))
    )
    for number, (expr, legend) in enumerate(panel.exprs):
        query = prometheus.Dataquery().expr(expr).ref_id(chr(ord("A") + number))
        query = query.datasource(SOURCE).legend_format(legend or "__auto")
        is_line = panel.kind == "lines"
        made = made.with_target(query.range() if is_line else query.instant())
    return made


def variables(names: Iterable[str]) -> Iterable[Any]:
    """Return the builders of a dashboard's variables."""
    yield DatasourceVariable("datasource").label("Data source").type("prometheus")
    for name in names:
        label, query = VARIABLES[name]
        made = QueryVariable(name).label(label).datasource(SOURCE).query(query)
        made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        made = made.sort(VariableSort.ALPHABETICAL_ASC)
        yield made.multi(True).include_all(True).all_value(".*")


def dashboard(key: str) -> str:
    """Return a dashboard as JSON."""
    title, text, names, rows = ALL[key]
    made = (
        Dashboard(f"Penstock: {title.lower()}")
        .uid(f"penstock-{key}")
        .description(text)
        .tags(["penstock"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .link(
            DashboardLink("Penstock")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["penstock"])
            .as_dropdown(True)
            .keep_time(True)
        )
    )
    for variable in variables(names):
        made = made.with_variable(variable)
    for row, panels in rows.items():
        made = made.with_row(Row(row))
        for panel in panels:
            made = made.with_panel(panel_of(panel))
    text = JSONEncoder(sort_keys=True, indent=1).encode(made.build())
    return json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


def expressions(key: str) -> list[tuple[str, str]]:
    """Return (title, expression) of all panels of a dashboard."""
    rows = ALL[key][3].values()
    return [(each.title, expr) for row in rows for each in row for expr, _ in each.exprs]


def main() -> None:
    """Write them."""
    for key in ALL:
        (HERE / f"{key}.json").write_text(dashboard(key))


if __name__ == "__main__":
    main()
