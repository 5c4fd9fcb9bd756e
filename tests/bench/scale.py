"""Sixty-four nodes and thousands of ranks: what moves when a node goes, what it costs, what breaks.

In virtual time (`tests/virtual_nodes.py`), and what one call, stream or statement costs, measured
by `scale_costs.py`. docs/scale.md says what follows from both.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path

import scale_costs
from support import SEED, table

sys.path.append(str(Path(__file__).resolve().parents[1]))

from virtual_nodes import Setting, Simulation, describe_rate

RESTART_S, SLOWLY_S = 25.0, 120.0
"""A node that is updated is away for so long: it drains, and starts again. The next one drains as
it is back, or so long after it has drained."""

QUICKLY, SLOWLY = "all are updated", "one every 2 min"

SHOWN_LANES = 10_240
"""Of more lanes it is not shown what happens: it is much the same."""

FAULTS = ("SIGKILL", "a lost machine", "it is back", "one joins", QUICKLY, SLOWLY)


def run() -> None:
    """Print the tables."""
    settings = {
        f"{nodes} nodes, {ranks:,} ranks, {lanes:,} lanes": Setting(nodes, ranks, lanes)
        for nodes, ranks, lanes in (
            (3, 64, 192),
            (16, 512, 2_048),
            (64, 4_096, 10_000),
            (64, 4_096, 10_240),
            (64, 4_096, 12_288),
        )
    }
    rows = []
    for name, setting in settings.items():
        per_rank, per_node = Simulation(setting, SEED).streams()
        calls = describe_rate(setting)
        rows.append(
            (
                name,
                f"{per_rank.min()}-{per_rank.max()}",
                f"{min(per_node.values()):,}-{max(per_node.values()):,}",
                f"{sum(per_node.values()):,}",
                f"{calls:,.0f}",
                f"{calls / setting.nodes:,.0f}",
            )
        )
    table(
        "While nothing happens: streams, and calls of Describe a second",
        ("what", "of a rank", "of a node", "in all", "Describe/s", "at a node"),
        rows,
    )
    print(
        f"\n{Setting.batch_s} s of a worker for a batch, {Setting.workers} workers a node, "
        f"{Setting.step_s:.0f} s a step, snapshots every {Setting.snapshot_every} batches of a "
        f"lane, {Setting.ahead} steps ahead; the worst of 5 moments between two snapshots"
    )
    header = (
        "moved",
        "/ least",
        "opens/s",
        "asks/s",
        "wait, s",
        "made again",
        "planned again",
        "most units",
    )
    for name, setting in settings.items():
        if setting.lanes <= SHOWN_LANES:
            table(
                name, ("what happens", *header), [(what, *_fault(setting, what)) for what in FAULTS]
            )
    scale_costs.run()


def _fault(setting: Setting, what: str) -> tuple[str, ...]:
    """Simulate a fault, over several moments between two snapshots where that matters."""
    found = []
    for number in range(1 if what in (QUICKLY, SLOWLY, "it is back") else 5):
        simulation = Simulation(setting, SEED + number)
        row_s = setting.units.row / setting.ranks * setting.step_s
        begin_s = 100.0 + row_s * (1 + number / 5)
        simulation.run(begin_s)
        one = setting.nodes // 2
        held = Counter(simulation.views[0].placement.owners)[setting.name(one)]
        least, end_s = float(held), begin_s + 60.0
        if what == "SIGKILL":
            simulation.kills(one)
        elif what == "a lost machine":
            simulation.falls_silent(one)
        elif what == "it is back":
            simulation.kills(one)
            simulation.at(begin_s + RESTART_S, partial(simulation.comes_back, one))
            least, end_s = 2.0 * held, begin_s + 200.0 + 3 * row_s
        elif what == "one joins":
            simulation.joins(setting.nodes)
            least = setting.lanes // (setting.nodes + 1)
            end_s = begin_s + 100.0 + 3 * row_s
        else:
            every_s = RESTART_S if what == QUICKLY else SLOWLY_S
            for turn, node in enumerate(reversed(range(setting.nodes))):
                at_s = begin_s + turn * every_s
                simulation.at(at_s, partial(simulation.drains, node))
                simulation.at(at_s + RESTART_S, partial(simulation.comes_back, node))
            least = 2.0 * setting.lanes
            end_s = begin_s + setting.nodes * every_s + 200.0 + 3 * row_s
        before = simulation.position
        simulation.run(end_s)
        found.append(
            {
                "moved": simulation.moved,
                "over": simulation.moved / least,
                "opens": simulation.busiest_opens(),
                "calls": simulation.busiest_calls(),
                "wait": max(simulation.waits_s, default=0.0),
                "again": simulation.recomputed,
                "share": 100 * simulation.recomputed / (simulation.position - before),
                "plans": simulation.replanned,
                "plan share": 100 * simulation.replanned / (simulation.position - before),
                "most": simulation.most_units,
            }
        )
    worst = {key: max(each[key] for each in found) for key in found[0]}
    return (
        f"{worst['moved']:,.0f}",
        f"{worst['over']:.2f}",
        f"{worst['opens']:,}",
        f"{worst['calls']:,}",
        f"{worst['wait']:.1f}",
        f"{worst['again']:,} ({worst['share']:.1f} %)",
        f"{worst['plans']:,} ({worst['plan share']:.1f} %)",
        f"{worst['most']:,}",
    )


if __name__ == "__main__":
    run()
