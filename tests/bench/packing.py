"""Packing: efficiency on the standard library per batcher, and the pure functions at 10^6 lengths.

Efficiency is tokens divided by tokens and padding.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from support import corpus, table, write_job
from text import job

from penstock.server import packing
from penstock.server.jobs.load import load
from penstock.server.packing.best_fit import best_fit_decreasing_packs
from penstock.server.packing.knapsack import knapsack_packs
from penstock.server.pipeline.line import Line

LANES = 2
PARTS = {"rows 1 to 20": range(20), "rows 21 to 100": range(20, 100), "231 to 260": range(230, 260)}
"""A lane's first rows, while its pool grows, and those of a whole pool."""

BATCHERS = {
    "best_fit-pool-64": {"type": "best_fit", "max_tokens": 8192, "pool_size": 64},
    "best_fit-pool-16": {"type": "best_fit", "max_tokens": 8192, "pool_size": 16},
    "sequential": {"type": "sequential", "max_sequence_length": 8193, "lookahead_limit": 10},
}

SAMPLES, ROUNDS, CAPACITY = 1_000_000, 5, 8192
FUNCTIONS: dict[str, tuple[Callable[..., object], str]] = {
    "best_fit_decreasing": (
        lambda lengths, capacity: best_fit_decreasing_packs(lengths, capacity, None, ()),
        "0.2",
    ),
    "count_best_fit_decreasing": (
        lambda lengths, capacity: packing.count_best_fit_decreasing(np.bincount(lengths), capacity),
        "0.1",
    ),
    "first_fit": (packing.first_fit, "1.0"),
    "knapsack": (lambda lengths, capacity: knapsack_packs(lengths, capacity, None, ()), "0.4"),
    "count_knapsack": (
        lambda lengths, capacity: packing.count_knapsack(np.bincount(lengths), capacity),
        "0.1",
    ),
    "next_fit": (packing.next_fit, "0.3"),
    "sequential": (packing.sequential, ""),
    "window of 10": (lambda lengths, capacity: packing.window(lengths, capacity, 10), ""),
    "pool of 16": (packing.pool, ""),
}
WHOLE_WINDOWS = tuple(name for name in FUNCTIONS if name.endswith(("decreasing", "knapsack")))
"""What planned jobs pack windows of so many samples by."""


def run() -> None:
    """Print the tables."""
    data = corpus()
    _efficiency(data)
    _functions(data)


def _functions(data: Path) -> None:
    lengths = windows(document_tokens(data))
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, (function, _goal) in FUNCTIONS.items():
            for kind, given in lengths.items():
                start = time.process_time()
                function(given, CAPACITY)
                took.setdefault((name, kind), []).append(time.process_time() - start)
    rows = [
        (
            name,
            goal,
            *(
                f"{median(times):.2f} ({max(times):.2f})"
                for times in (took[name, kind] for kind in lengths)
            ),
        )
        for name, (_, goal) in FUNCTIONS.items()
    ]
    table(
        f"Packing functions on {SAMPLES:,} lengths in rows of {CAPACITY:,}, CPU seconds: "
        f"medians, and the longest of {ROUNDS} rounds",
        ("function", "goal", *lengths),
        rows,
    )
    table(
        f"Memory of packing {SAMPLES:,} lengths at its peak, with the packs and without the "
        "lengths, bytes a sample (goal: at most 80)",
        ("function", *lengths),
        [
            (name, *(f"{_peak_bytes(FUNCTIONS[name][0], given):.0f}" for given in lengths.values()))
            for name in WHOLE_WINDOWS
        ],
    )


def _peak_bytes(function: Callable[..., object], lengths: npt.NDArray[np.int64]) -> float:
    tracemalloc.start()
    try:
        function(lengths, CAPACITY)
        return tracemalloc.get_traced_memory()[1] / len(lengths)
    finally:
        tracemalloc.stop()


def windows(documents: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the lengths of windows of samples by their distribution; each int64 (`SAMPLES`,).

    Args:
        documents: Tokens of documents to draw from, int64 (documents,).
    """
    draw = np.random.default_rng(0)
    cut = np.minimum(np.exp(draw.normal(6.5, 1, SAMPLES)).astype(np.int64) + 1, CAPACITY)
    return {
        "source files": draw.choice(documents, SAMPLES),
        "log-normal": cut,
        "uniform": draw.integers(1, CAPACITY + 1, SAMPLES),
        "8 distinct": draw.choice(draw.integers(1, CAPACITY // 2, 8), SAMPLES),
    }


def document_tokens(data: Path) -> npt.NDArray[np.int64]:
    """Return the tokens of each document, int64 (documents,)."""
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    texts = (
        text
        for file in sorted((data / "corpus").glob("*.parquet"))
        for text in pq.read_table(file, columns=["text"])["text"].to_pylist()
    )
    return np.array([len(tokenizer.encode_batch_fast([text])[0].ids) + 1 for text in texts])


def _efficiency(data: Path) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = {
            name: {**job(data), "lanes": LANES, "batcher": batcher}
            for name, batcher in BATCHERS.items()
        }
        config = load(str(write_job(Path(folder), jobs)))
        for name in BATCHERS:
            filled: dict[str, list[int]] = {part: [] for part in PARTS}
            dropped = tokens = 0
            start = time.perf_counter()
            for lane in range(LANES):
                line = Line(config.jobs[name], lane)
                for row in range(max(part.stop for part in PARTS.values())):
                    counts = line.make(line.advance()).counts
                    tokens += counts["tokens"]
                    for part, offsets in PARTS.items():
                        if row in offsets:
                            filled[part].append(counts["tokens"])
                dropped += line.planner.batching.batcher.dropped().get("overlong", 0)
            wall = time.perf_counter() - start
            shares = (f"{sum(found) / len(found) / CAPACITY:.4f}" for found in filled.values())
            rows.append((name, *shares, dropped, f"{tokens / wall:,.0f}"))
    table(
        f"Packing efficiency on the standard library: rows of {CAPACITY:,} tokens of {LANES} lanes "
        "(goal: best_fit with a pool of 64 at least 0.99 once the pool is whole)",
        ("batcher", *PARTS, "dropped", "tokens/s, one core"),
        rows,
    )


if __name__ == "__main__":
    run()
