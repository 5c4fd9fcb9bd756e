"""What a second node costs on a machine of two cores, in CPU for each batch that is delivered.

The same ranks read the same job of text, packed. CPU is that of all nodes' processes, of the ranks
and of PostgreSQL, from the first batch after `WARM` steps on.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from several_nodes import ROUNDS, cpu_s, database_processes, nodes, ranks
from support import around, compare, corpus, interleaved, ratio, table

READERS, WARM, STEPS = 8, 20, 80

ONE, TWO, TWICE = (
    "1 node of 2 workers",
    "2 nodes of 1 worker",
    "2 nodes of 2 workers, as by default",
)


def text(lanes: int = 48) -> dict[str, Any]:
    """Return a job that tokenizes and packs the standard library."""
    files = corpus()
    return {
        "lanes": lanes,
        "source": {"type": "parquet", "files": f"{files}/corpus/*.parquet", "columns": ["text"]},
        "processor": {
            "type": "tokenize",
            "tokenizer": f"{files}/tokenizer.json",
            "column": "text",
        },
        "batcher": {"type": "best_fit", "max_tokens": 8192, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 8192},
    }


def run(url: str) -> None:
    """Print the table."""
    job = text()
    results = interleaved(
        {
            ONE: partial(_round, url, job, 1, 2),
            TWO: partial(_round, url, job, 2, 1),
            TWICE: partial(_round, url, job, 2, 2),
        },
        ROUNDS,
    )
    compare(
        f"CPU for each batch of 8,192 tokens, {READERS} ranks, ms; {ROUNDS} rounds",
        "what",
        results,
        around("in all", "all", ".1f"),
        around("nodes", "nodes", ".1f"),
        around("ranks", "ranks", ".1f"),
        around("database", "database", ".2f"),
    )
    table(
        f"The same as ratios to {ONE}, medians over the rounds (goal: at most 1.05)",
        ("what", "in all", "nodes"),
        [
            (way, ratio(results, way, ONE, "all"), ratio(results, way, ONE, "nodes"))
            for way in (TWO, TWICE)
        ],
    )


def _round(url: str, job: dict[str, Any], count: int, workers: int) -> dict[str, float]:
    with (
        nodes(url, {"main": job}, count, workers=workers) as served,
        ranks(served.addresses, READERS, group="run") as reading,
    ):
        reading.read(WARM)
        before = served.cpu_s(), time.process_time(), cpu_s(database_processes(url))
        reading.read(STEPS)
        after = served.cpu_s(), time.process_time(), cpu_s(database_processes(url))
        of_nodes, of_ranks, of_database = (
            (b - a) / STEPS / READERS * 1e3 for a, b in zip(before, after, strict=True)
        )
        return {
            "all": of_nodes + of_ranks + of_database,
            "nodes": of_nodes,
            "ranks": of_ranks,
            "database": of_database,
        }
