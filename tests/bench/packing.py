"""Packing efficiency on the standard library: tokens divided by tokens and padding, per batcher."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from support import corpus, table, write_job
from text import job

from penstock.server.config import load
from penstock.server.pipeline.line import Line

ROWS = 240
BATCHERS = {
    "best_fit-pool-64": {"type": "best_fit", "max_tokens": 8192, "pool_size": 64},
    "best_fit-pool-16": {"type": "best_fit", "max_tokens": 8192, "pool_size": 16},
    "sequential": {"type": "sequential", "max_sequence_length": 8193, "lookahead_limit": 10},
}


def run() -> None:
    """Print the table."""
    data = corpus()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for name, batcher in BATCHERS.items():
            jobs[name] = {**job(data), "lanes": 4, "batcher": batcher}
        config = load(str(write_job(Path(folder), jobs)))
        for name in BATCHERS:
            tokens = places = dropped = 0
            start = time.perf_counter()
            for lane in range(4):
                line = Line(config.jobs[name], lane)
                for _ in range(ROWS // 4):
                    counts = line.make(line.advance()).counts
                    tokens += counts["tokens"]
                    places += counts["tokens"] + counts["padding_tokens"]
                dropped += line.planner.batcher.dropped().get("overlong", 0)
            wall = time.perf_counter() - start
            rows.append((name, f"{tokens / places:.4f}", dropped, f"{tokens / wall:,.0f}"))
    table(
        f"Packing efficiency on the standard library, {ROWS} rows of 8,192 tokens "
        "(goal: best_fit with a pool of 64 at least 0.99)",
        ("batcher", "efficiency", "dropped", "tokens/s, one core"),
        rows,
    )


if __name__ == "__main__":
    run()
