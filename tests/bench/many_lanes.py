"""What it costs a node to number a finite log whose ends are not known yet, by its lanes.

Decision 0025: while an owed position is not known, the node looks at every lane; and each end that
is found makes a new order of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from support import ROUNDS, interleaved, median, table

from penstock.wire.numbering import Numbering

LANES = (48, 1024, 65_536)
"""The default, a large job, and the most that a job may have."""

REPEATED_S = 0.05


def run() -> None:
    """Print the table."""
    ways = {
        (name, lanes): make(lanes)
        for name, make in {"looks": _looks, "asks": _asks, "learns": _learns}.items()
        for lanes in LANES
    }
    results = interleaved({str(key): _timed(way) for key, way in ways.items()})
    labels = {
        "looks": "looks at all lanes, and lacks nothing",
        "asks": "looks at all lanes, and lacks a batch of each",
        "learns": "learns where one ends",
    }
    table(
        f"A finite log whose lanes' ends are not known: CPU us, median of {ROUNDS} rounds",
        ("what the node does", *(f"{lanes:,} lanes" for lanes in LANES)),
        [
            (
                label,
                *(f"{median(results[str((name, lanes))], 'us'):,.1f}" for lanes in LANES),
            )
            for name, label in labels.items()
        ],
    )


def _reached(lanes: int, rows: int) -> Numbering:
    numbering = Numbering(lanes, [None] * lanes)
    for lane in range(lanes):
        numbering.reach(lane, rows)
    return numbering


def _looks(lanes: int) -> Callable[[], object]:
    numbering = _reached(lanes, 2)
    return lambda: list(numbering.missing(lanes))


def _asks(lanes: int) -> Callable[[], object]:
    numbering = _reached(lanes, 1)
    return lambda: list(numbering.missing(2 * lanes - 1))


def _learns(lanes: int) -> Callable[[], object]:
    numbering = _reached(lanes, 1)
    ends = iter(range(lanes))
    return lambda: numbering.end(next(ends), 3)


def _timed(way: Callable[[], object]) -> Callable[[], dict[str, float]]:
    def timed() -> dict[str, float]:
        calls, start = 0, time.process_time()
        while calls < 4 or (calls < 8 and time.process_time() - start < REPEATED_S):
            way()
            calls += 1
        return {"us": (time.process_time() - start) / calls * 1e6}

    return timed


if __name__ == "__main__":
    run()
