"""What several nodes cost beside one: gaps, CPU, what is read from storage, and what is made twice.

All nodes share a PostgreSQL that is started for this run. `BENCH_LEG_S` (6), `BENCH_QUIET_S` (600)
and `BENCH_UPDATE_GAP_S` (60) say how long parts take; `BENCH_PARTS=gaps,again` takes some of them.
Without it `again`, which takes a quarter of an hour, is left out.
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
BY_DEFAULT = "gaps,cost,storage"


def run() -> None:
    """Print the tables."""
    with postgresql() as url:
        if url is not None:
            for name in os.environ.get("BENCH_PARTS", BY_DEFAULT).split(","):
                PARTS[name](url)
