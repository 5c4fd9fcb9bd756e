"""What a draw costs: of one source, of mixtures of several, and of chosen items.

A draw is what a planner does for each item before it asks for its size: it keeps the state, draws,
and tells what was taken. Nothing is read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from support import Rounds, interleaved, median, spread, table

from penstock.server.roles import (
    DataDistributor,
    IndexedSource,
    MapDistributor,
    MixtureDistributor,
)

DRAWS, LANES = 20_000, 48


class Numbers(IndexedSource):
    """Items that are their numbers."""

    version = 1

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers."""
        return list(indices)


def run() -> None:
    """Print the table."""
    ways: dict[str, tuple[DataDistributor, int]] = {
        "map": (MapDistributor(), 1),
        "map, sample_ratio: 1.5": (MapDistributor(sample_ratio=1.5), 1),
    }
    for parts in (2, 10, 60):
        for by in ("items", "tokens"):
            weights = {f"part_{number}": 1 + number for number in range(parts)}
            ways[f"mixture of {parts} by {by}"] = MixtureDistributor(weights, by), parts
    results = interleaved({name: partial(_draw, *way) for name, way in ways.items()})
    table(
        "A draw of a lane, of sources of a million items each",
        ("distributor", "us", "range"),
        [(name, *_us(rounds)) for name, rounds in results.items()],
    )


def _us(rounds: Rounds) -> tuple[str, str]:
    return f"{median(rounds, 'us'):.1f}", spread(rounds, "us", ".1f")


def _draw(distributor: DataDistributor, parts: int) -> dict[str, float]:
    sources = {f"part_{number}": Numbers(10**6) for number in range(parts)}
    distributor.bind(sources, 7, None, LANES)
    draws = distributor.open(3, LANES)
    begin = time.process_time()
    for number in range(DRAWS):
        draws.state()
        item = draws.next()
        assert item is not None
        draws.took(item, 1 + number % 999)
    return {"us": (time.process_time() - begin) / DRAWS * 1e6}
