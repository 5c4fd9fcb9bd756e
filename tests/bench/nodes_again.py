"""How many batches three nodes make more than once, while nothing happens and through an update.

Eight ranks read finite jobs to their ends, 16 batches a second in all: so all that was made beyond
their batches was made again, and nothing ahead of readers counts. In an update each node drains,
ends and starts again at its address, one after another; between two of them `BENCH_UPDATE_GAP_S`
(60) seconds pass, or none. `BENCH_QUIET_S` (600) is how long nothing happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from several_nodes import MADE, Nodes, nodes, ranks
from support import HERE, constant, table

READERS, COUNT, STEP_S = 8, 3, 0.5
QUIET_S = float(os.environ.get("BENCH_QUIET_S", "600"))
GAP_S = float(os.environ.get("BENCH_UPDATE_GAP_S", "60"))
START_S = 15.0
"""As long as an update is reckoned to take for each node, but for the time between two."""


def run(url: str) -> None:
    """Print a table for each case."""
    cases: dict[str, tuple[float, Callable[[Nodes], None] | None]] = {
        "nothing happens": (QUIET_S, None),
        f"an update, {GAP_S:.0f} s between nodes": (COUNT * (START_S + GAP_S) + 60, _update(GAP_S)),
        "an update, one at once after another": (COUNT * START_S + 60, _update(0.0)),
    }
    lengths = [round(seconds / STEP_S) * READERS for seconds, _ in cases.values()]
    jobs = {f"job{number}": _job(length) for number, length in enumerate(lengths)}
    with nodes(url, jobs, COUNT, workers=1) as served:
        for (what, (_, happens)), (name, length) in zip(
            cases.items(), zip(jobs, lengths, strict=True), strict=True
        ):
            _print(served, what, name, length, happens)


def _job(batches: int) -> dict[str, Any]:
    items = {"type": f"{HERE / 'roles.py'}:Numbers", "length": batches}
    return constant(4096, lanes=48, source=items, epochs=1)


def _update(gap_s: float) -> Callable[[Nodes], None]:
    def happens(served: Nodes) -> None:
        for number in range(COUNT):
            served.end(number)
            served.start(number)
            time.sleep(gap_s)

    return happens


def _print(
    served: Nodes, what: str, job: str, length: int, happens: Callable[[Nodes], None] | None
) -> None:
    before, began = served.settled()[MADE], time.monotonic()
    with ranks(served.addresses, READERS, job, group="run") as reading:
        reading.begin(length // READERS, STEP_S)
        if happens is not None:
            time.sleep(10 * STEP_S)
            happens(served)
        updated_s = time.monotonic() - began
        taken = reading.wait()
    took_s = time.monotonic() - began
    again = served.settled()[MADE] - before - length
    table(
        f"Made again by {COUNT} nodes, {what} (goals: below 1 %, through an update below 5 %)",
        ("seconds", "of them the update", "delivered", "made again", "share", "longest gap, s"),
        [
            (
                f"{took_s:.0f}",
                f"{updated_s:.0f}" if happens is not None else "-",
                f"{sum(map(len, taken)):,}",
                f"{again:,}",
                f"{again / length:.2%}",
                f"{max(b - a for each in taken for a, b in pairwise(each)):.1f}",
            )
        ],
    )
