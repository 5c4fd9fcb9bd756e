"""docs/scale.md: streams are those of the simulation, which moves no unit that need not move."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from virtual_nodes import Setting, Simulation, describe_rate

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
ROW = re.compile(r"^\| (\d+), ([\d,]+), ([\d,]+) \| (.*) \|$", re.M)


def number(text: str) -> int:
    """Return a number with commas."""
    return int(text.replace(",", ""))


def span(least: int, most: int) -> str:
    """Return a span as the page has it."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def test_the_streams_of_the_page_are_simulated() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == 5

    for nodes, ranks, lanes, cells in rows:
        setting = Setting(number(nodes), number(ranks), number(lanes))
        per_rank, per_node = Simulation(setting, 0).streams()
        calls = describe_rate(setting)
        assert cells.split(" | ") == [
            span(per_rank.min(), per_rank.max()),
            span(min(per_node.values()), max(per_node.values())),
            f"{sum(per_node.values()):,}",
            f"{calls:,.0f}",
            f"{calls / setting.nodes:,.0f}",
        ]


@pytest.mark.parametrize("what", ["killed", "killed and back", "joins"])
def test_only_what_must_move_moves(what: str) -> None:
    """Sixteen nodes, and ranks that notice it at different moments."""
    seed = random.randrange(1 << 32)
    setting = Setting(16, 512, 2_048)
    simulation = Simulation(setting, seed)
    simulation.run(100.0)
    held = Counter(simulation.views[0].placement.owners)
    if what == "joins":
        simulation.joins(16)
        least = 2_048 // 17
    else:
        simulation.kills(7)
        least = held["penstock-7"]
    if what == "killed and back":
        simulation.at(125.0, lambda: simulation.comes_back(7))
        least *= 2
    simulation.run(500.0)

    assert simulation.moved == least, f"seed {seed}"
    owners = {view.placement.owners for view in simulation.views}
    assert len(owners) == 1, f"seed {seed}: views do not agree in the end"
