"""Sizes that are told wrong: which samples come all the same, and what that costs.

The samples are the documents of the standard library, cut at rows of 8,192 tokens, as one lane of
several epochs; of each only a number of zeros is made. What a size is told as is off at random, by
up to a tenth, or for one sample of 50 alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any, ClassVar

import numpy as np
from packing import document_tokens
from support import ROUNDS, SEED, corpus, table

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import (
    BestFitPackingBatcher,
    KnapsackPackingBatcher,
    MapDistributor,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import PastEnd

CAPACITY, EPOCHS, COST_BATCHES = 8192, 2, 400

BATCHERS: dict[str, SampleBatcher] = {
    "best_fit": BestFitPackingBatcher(CAPACITY),
    "best_fit, rows: 8": BestFitPackingBatcher(CAPACITY, rows=8),
    "knapsack, packing_ratio: 0.95": KnapsackPackingBatcher(CAPACITY, packing_ratio=0.95),
}

WITHIN = (0, 1, 4, 8, 16)


class Told(RawItemProcessor):
    """Gives so many zeros, and says another number before."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True
    uses_global_rng: ClassVar[bool] = False

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens."""
        return {"input_ids": np.zeros(raw[1], np.int32)}

    def size(self, raw: Any) -> int:
        """Return the size as it is told."""
        return int(raw[0])


def make_job(items: Sequence[tuple[int, int]], batcher: SampleBatcher, within: int) -> Job:
    """Return the job of items, each with the size that it is told to have, and its own."""
    return Job(
        ItemsSource(items),
        MapDistributor(),
        Told(),
        batcher.clone(),
        PackedCollator(pad_to=CAPACITY),
        lanes=1,
        epochs=EPOCHS,
        on_item_error="quarantine",
        max_quarantined=10**9,
        later_within=within,
    )


def run() -> None:
    """Print the tables."""
    sizes = np.minimum(document_tokens(corpus()), CAPACITY)
    draw = np.random.default_rng(SEED)
    off = draw.uniform(-0.1, 0.1, len(sizes))
    few = np.where(draw.random(len(sizes)) < 0.02, off, 0)
    for title, error in (("by up to a tenth", off), ("of one sample in 50", few)):
        told = np.clip(np.rint(sizes * (1 + error)), 1, CAPACITY).astype(int)
        items = list(zip(told.tolist(), sizes.tolist(), strict=True))
        table(
            f"Sizes told wrong {title}, {EPOCHS} epochs of {len(items):,} documents as one lane",
            ("batcher", "later_within", "left out", "came later", "tokens in rows"),
            [
                (name, str(within), *outcome(make_job(items, batcher, within)))
                for name, batcher in BATCHERS.items()
                for within in WITHIN
            ],
        )
    exact = [(size, size) for size in sizes.tolist()]
    times: dict[int, list[float]] = {within: [] for within in (0, 8)}
    for _ in range(ROUNDS):
        for within, found in times.items():
            found.append(cost(make_job(exact, BATCHERS["best_fit"], within)))
    table(
        f"CPU time of a line whose sizes are exact, of {COST_BATCHES} batches; medians and ranges "
        f"of {ROUNDS} rounds",
        ("later_within", "ms a batch"),
        [
            (str(within), f"{median(found):.3f} ({min(found):.3f} to {max(found):.3f})")
            for within, found in times.items()
        ],
    )


def outcome(job: Job) -> tuple[str, str, str]:
    """Return which parts of the samples are left out, and come later, and how full rows are."""
    line, told, given, rows = Line(job, 0), Counter[str](), 0, 0
    while True:
        try:
            made = line.make(line.advance())
        except PastEnd:
            break
        told.update(made.accounting)
        given += made.counts["tokens"]
        rows += len(made.plan.rows)
    drawn = told["drawn"]
    shares = told["quarantined:size"] / drawn, told["size:later"] / drawn
    return f"{shares[0]:.2%}", f"{shares[1]:.2%}", f"{given / (rows * CAPACITY):.4f}"


def cost(job: Job) -> float:
    """Return milliseconds of CPU a batch."""
    line = Line(job, 0)
    line.make(line.advance())
    start = time.process_time()
    for _ in range(COST_BATCHES):
        line.make(line.advance())
    return 1e3 * (time.process_time() - start) / COST_BATCHES
