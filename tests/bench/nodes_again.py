"""How many batches three nodes make more than once, while nothing happens and through an update.

Eight ranks read small documents, packed, 32 batches a second in all. What was made beyond what was
delivered, between two moments at which ranks have taken the same step and nothing more is made, was
made again: ranks accept as far ahead at both. In an update each node drains, ends and starts again
at its address, one after another; between two of them `BENCH_UPDATE_GAP_S` seconds pass, or none.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise

from several_nodes import MADE, Nodes, Ranks, nodes, ranks
from support import HERE, table

READERS, COUNT, WARM = 8, 3, 40
STEP_S = 0.25
QUIET_S = float(os.environ.get("BENCH_QUIET_S", "600"))
GAP_S = float(os.environ.get("BENCH_UPDATE_GAP_S", "60"))

JOB = {
    "lanes": 48,
    "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
    "function": f"{HERE / 'cheap.py'}:document",
    "batcher": {"type": "best_fit", "max_tokens": 2048},
    "collator": {"type": "packed", "pad_to": 2048},
}


def run(url: str) -> None:
    """Print the table."""
    rows = []
    with (
        nodes(url, {"main": JOB}, COUNT, workers=1) as served,
        ranks(served.addresses, READERS, group="run") as reading,
    ):
        reading.read(WARM)
        rows.append(_measured("nothing", served, reading, None))
        rows.append(_measured(f"an update, {GAP_S:.0f} s between nodes", served, reading, GAP_S))
        rows.append(_measured("an update, at once", served, reading, 0.0))
    table(
        f"Made again by {COUNT} nodes (goals: below 1 %, through an update below 5 %)",
        ("what happens", "seconds", "delivered", "made again", "share", "longest gap, s"),
        rows,
    )


def _measured(what: str, served: Nodes, reading: Ranks, gap_s: float | None) -> list[str]:
    before = served.settled()[MADE]
    began = time.monotonic()
    if gap_s is None:
        taken = reading.read(round(QUIET_S / STEP_S), STEP_S)
    else:
        # Units are back after 30 s and some steps: until then the last node's update lasts.
        expected_s = COUNT * (gap_s + 15) + GAP_S
        reading.begin(round(expected_s / STEP_S), STEP_S)
        for number in range(COUNT):
            served.end(number)
            served.start(number)
            time.sleep(gap_s)
        taken = reading.wait()
    longest_s = max(b - a for each in taken for a, b in pairwise(each))
    delivered = sum(map(len, taken))
    made = served.settled()[MADE] - before
    again = made - delivered
    return [
        what,
        f"{time.monotonic() - began:.0f}",
        f"{delivered:,}",
        f"{again:,}",
        f"{again / delivered:.2%}",
        f"{longest_s:.1f}",
    ]
