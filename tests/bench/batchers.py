"""Batchers beside each other: how full their rows are, what they cost, and how steadily rows come.

The samples are the documents of the standard library, in rows of 8,192 tokens: one lane of several
epochs, each in an order of its own. Only the batcher is at work, so nothing else is in its time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from packing import document_tokens
from support import corpus, table

from penstock.server.core.refs import ItemRef, SampleRef
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import (
    BalancedPackingBatcher,
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    ConcatPackingBatcher,
    FirstFitPackingBatcher,
    KnapsackPackingBatcher,
    NextFitPackingBatcher,
    OpenBestFitPackingBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    WindowPackingBatcher,
)

CAPACITY, EPOCHS, ROUNDS, FIRST_ROWS = 8192, 6, 5, 20

BATCHERS: dict[str, SampleBatcher] = {
    "concat": ConcatPackingBatcher(CAPACITY),
    "best_fit, 64": BestFitPackingBatcher(CAPACITY),
    "best_fit, 16": BestFitPackingBatcher(CAPACITY, 16),
    "open_best_fit, 16 rows": OpenBestFitPackingBatcher(CAPACITY),
    "first_fit, 16 rows": FirstFitPackingBatcher(CAPACITY),
    "first_fit, 4 rows": FirstFitPackingBatcher(CAPACITY, 4),
    "best_fit_decreasing, 256": BestFitDecreasingPackingBatcher(CAPACITY),
    "best_fit_decreasing, 1024": BestFitDecreasingPackingBatcher(CAPACITY, 1024),
    "knapsack, 256": KnapsackPackingBatcher(CAPACITY),
    "knapsack, 1024": KnapsackPackingBatcher(CAPACITY, 1024),
    "window_10": WindowPackingBatcher(CAPACITY, 10),
    "window_64": WindowPackingBatcher(CAPACITY, 64),
    "window_10, sort": WindowPackingBatcher(CAPACITY, 10, sort=True),
    "balanced, 16 rows": BalancedPackingBatcher(CAPACITY),
    "sequential, 10 ahead": SequentialPackingBatcher(CAPACITY + 1),
    "next_fit": NextFitPackingBatcher(CAPACITY),
    "pool, 8 like rows": PoolPackingBatcher(
        8 * CAPACITY, max_batch_size=8, apply_long_sample_halving=False, long_threshold=8 * CAPACITY
    ),
}


def run() -> None:
    """Print the table."""
    tokens = document_tokens(corpus())
    draws = [np.random.default_rng(epoch).permutation(len(tokens)) for epoch in range(EPOCHS)]
    refs = [
        SampleRef(ItemRef("main", index, epoch), size=int(tokens[index]))
        for epoch, order in enumerate(draws)
        for index in order.tolist()
    ]
    times: dict[str, list[float]] = {name: [] for name in BATCHERS}
    for _ in range(ROUNDS):
        for name, batcher in BATCHERS.items():
            times[name].append(cost(batcher.clone(), refs))
    found = {name: Measured(batcher.clone(), refs) for name, batcher in BATCHERS.items()}
    table(
        f"Batchers on the standard library, {EPOCHS} epochs of {len(tokens):,} documents as one "
        "lane: how full rows of 8,192 tokens are",
        (
            "batcher",
            f"rows 1 to {FIRST_ROWS}",
            "all after",
            "differ by",
            "left out",
            "cut",
        ),
        [(name, *how_full(measured)) for name, measured in found.items()],
    )
    table(
        "Samples that come from one batch to the next, batches that a sample waits for, and CPU "
        f"time of the batcher alone, medians and ranges of {ROUNDS} rounds",
        ("batcher", "gap p50, p99, most", "waits p50, p99, most", "us a sample"),
        [(name, *how_steady(measured, times[name])) for name, measured in found.items()],
    )


def cost(batcher: SampleBatcher, refs: Sequence[SampleRef]) -> float:
    """Return microseconds of CPU a sample."""
    sample = {"input_ids": ()}
    start = time.process_time()
    for ref in refs:
        batcher.add(ref, sample)
    return 1e6 * (time.process_time() - start) / len(refs)


class Measured:
    """What a batcher made of a lane.

    Attributes:
        fills: Tokens divided by tokens and padding, of each batch.
        gaps: Samples that came from one batch to the next; a sample may finish several.
        waits: For each sample, batches that left after it came, up to its own.
        left_out: The part of the tokens that no batch holds.
        cut: The part of the samples that is in pieces, or truncated.
    """

    def __init__(self, batcher: SampleBatcher, refs: Sequence[SampleRef]) -> None:
        self.fills: list[float] = []
        gaps, waits, given = [0], [], 0
        came: dict[ItemRef, int] = {}
        cut: set[ItemRef] = set()
        for ref in refs:
            gaps[-1] += 1
            came[ref.item] = len(self.fills)
            for rows in batcher.add(ref, {"input_ids": ()}):
                sizes = [sum(held.size for held in row) for row in rows]
                width = max(sizes) if isinstance(batcher, PoolPackingBatcher) else CAPACITY
                self.fills.append(sum(sizes) / (width * len(rows)))
                given += sum(sizes)
                gaps.append(0)
                for held in (held for row in rows for held in row):
                    waits.append(len(self.fills) - 1 - came[held.item])
                    if held.span is not None:
                        cut.add(held.item)
        self.gaps: npt.NDArray[np.int64] = np.array(gaps[1:-1])
        self.waits: npt.NDArray[np.int64] = np.array(waits)
        held_now = sum(ref.size for ref in batcher.pending)
        self.left_out = 1 - (given + held_now) / sum(ref.size for ref in refs)
        self.cut = len(cut) / len(refs)


def how_full(found: Measured) -> tuple[str, ...]:
    """Return a row of the first table."""
    first, after = found.fills[:FIRST_ROWS], found.fills[FIRST_ROWS:]
    filled = (f"{value:.4f}" for value in (np.mean(first), np.mean(after), np.std(after)))
    return (*filled, f"{found.left_out:.3f}", f"{found.cut:.3f}")


def how_steady(found: Measured, times: Sequence[float]) -> tuple[str, ...]:
    """Return a row of the second table."""
    gaps, waits = (
        ", ".join(f"{np.percentile(values, at):.0f}" for at in (50, 99, 100))
        for values in (found.gaps, found.waits)
    )
    return gaps, waits, f"{median(times):.1f} ({min(times):.1f} to {max(times):.1f})"


if __name__ == "__main__":
    run()
