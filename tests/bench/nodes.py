"""What several nodes cost beside one: gaps, CPU, what is read from storage, and what is made twice.

All nodes share a PostgreSQL that is started for this run. `BENCH_LEG_S` (15), `BENCH_QUIET_S` (600)
and `BENCH_UPDATE_GAP_S` (60) say how long parts take; `BENCH_PARTS=gaps,cost` takes some of them.
"""

from __future__ import annotations

import os

import nodes_again
import nodes_cost
import nodes_gaps
import nodes_storage
from support import postgresql

PARTS = {
    "gaps": nodes_gaps.run,
    "cost": nodes_cost.run,
    "storage": nodes_storage.run,
    "again": nodes_again.run,
}


def run() -> None:
    """Print the tables."""
    with postgresql() as url:
        if url is not None:
            for name in os.environ.get("BENCH_PARTS", ",".join(PARTS)).split(","):
                PARTS[name](url)
