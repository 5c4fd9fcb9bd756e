"""The jobs that resume is proven on: every batcher, shuffle and kind of processor, on tiny data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from penstock.server.job.job import Job
from penstock.server.roles import (
    BalancedPackingBatcher,
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    Blocks,
    ConcatPackingBatcher,
    FirstFitPackingBatcher,
    IdentityProcessor,
    KnapsackPackingBatcher,
    MapDistributor,
    NextFitPackingBatcher,
    OpenBestFitPackingBatcher,
    PackedCollator,
    PaddedCollator,
    PoolPackingBatcher,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
    WindowPackingBatcher,
)
from penstock.server.sources import ItemsSource

LENGTHS = (3, 17, 8, 1, 40, 12, 25, 5, 9, 31, 2, 70, 14, 6, 22, 11, 4, 19, 28, 7, 10, 16, 13)
"""Sizes of the 23 items: some longer than a row of 32, one longer than two."""

BLOCKS = Blocks((5, 7, 4, 7))


class BlockedSource(ItemsSource):
    """Items that lie in storage blocks, as rows of a Parquet file do."""

    version: ClassVar[int | str | None] = 1

    def blocks(self) -> Blocks:
        """Return the blocks' lengths."""
        return BLOCKS


class SizedProcessor(RawItemProcessor):
    """Knows sizes without processing: batches are planned from refs and decoded on exit."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens, shifted by a number of the item's own."""
        shift = int(context.rng.integers(1000))
        return {"input_ids": [token + shift for token in raw["input_ids"]]}

    def size(self, raw: Any) -> int:
        """Return the number of tokens."""
        return len(raw["input_ids"])


class ChoosyProcessor(RawItemProcessor):
    """A user's processor: filters some items, makes several samples of others, fails on one."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample | list[Sample] | None:
        """Return zero to three samples, by the item's number."""
        number, tokens = raw["number"], raw["input_ids"]
        if number % 7 == 3:
            context.skip("every seventh")
            return None
        if number == 11:
            raise ValueError("a damaged record")
        shift = int(context.rng.integers(1000))
        parts = 1 + number % 3
        return [{"input_ids": [token + shift + part for token in tokens]} for part in range(parts)]


class LyingProcessor(SizedProcessor):
    """Told sizes are not those of the samples, and two items fail when they leave the pool."""

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return as many tokens, or some more, or fewer; or fail."""
        number, tokens = raw["number"], raw["input_ids"]
        if number % 11 == 4:
            raise ValueError("a damaged record")
        return {"input_ids": [*tokens, 7, 7, 7][: len(tokens) + (0, 0, 1, -1, 3)[number % 5]]}


BATCHERS: dict[str, SampleBatcher] = {
    "simple": SimpleBatcher(3),
    "sequential": SequentialPackingBatcher(max_sequence_length=33, lookahead_limit=3),
    "sequential_rows": SequentialPackingBatcher(33, lookahead_limit=3, rows=3),
    "sequential_count": SequentialPackingBatcher(max_samples_per_batch=4, lookahead_limit=2),
    "pool": PoolPackingBatcher(max_tokens=64, pool_size=5, max_batch_size=3),
    "best_fit_split": BestFitPackingBatcher(32, pool_size=6, rows=2, overlong="split"),
    "best_fit_truncate": BestFitPackingBatcher(32, pool_size=11, overlong="truncate"),
    "best_fit_drop": BestFitPackingBatcher(32, pool_size=4, rows=2, overlong="drop"),
    "first_fit": FirstFitPackingBatcher(32, open_rows=3, rows=2),
    "next_fit": NextFitPackingBatcher(32),
    "open_best_fit": OpenBestFitPackingBatcher(32, open_rows=4, overlong="truncate"),
    "balanced": BalancedPackingBatcher(32, open_rows=3),
    "knapsack": KnapsackPackingBatcher(32, window=9, packing_ratio=0.9),
    "knapsack_max_packs": KnapsackPackingBatcher(32, 9, drop_long_samples=True, max_packs=3),
    "best_fit_decreasing": BestFitDecreasingPackingBatcher(32, window=12, rows=2),
    "window": WindowPackingBatcher(32, window=5),
    "window_sorted": WindowPackingBatcher(32, window=4, sort=True, sort_over=10),
    "concat": ConcatPackingBatcher(32, rows=2),
}

PROCESSORS: dict[str, type[RawItemProcessor]] = {
    "identity": IdentityProcessor,
    "sized": SizedProcessor,
    "choosy": ChoosyProcessor,
    "lying": LyingProcessor,
}

SHUFFLES = ("full", "blocks", "none")


def raw_items() -> list[dict[str, Any]]:
    """Return the items: token k of item n is 100 * n + k."""
    return [
        {"number": number, "input_ids": [100 * number + k for k in range(length)]}
        for number, length in enumerate(LENGTHS)
    ]


def make_job(
    batcher: str,
    shuffle: str,
    processor: str,
    lanes: int,
    *,
    epochs: int | None = None,
    snapshot_every: int = 4,
) -> Job:
    """Return a job of these roles."""
    packs = not batcher.startswith(("simple", "pool"))
    return Job(
        BlockedSource(raw_items()) if shuffle == "blocks" else ItemsSource(raw_items()),
        MapDistributor(shuffle=shuffle, window_blocks=2 if shuffle == "blocks" else None),
        PROCESSORS[processor](),
        BATCHERS[batcher].clone(),
        PackedCollator() if packs else PaddedCollator(),
        seed=5,
        lanes=lanes,
        epochs=epochs,
        on_item_error="quarantine",
        snapshot_every=snapshot_every,
    )


def every_plan() -> Iterator[tuple[str, str, str, int]]:
    """Yield (batcher, shuffle, processor, lanes): every pair of roles, with two ways to draw.

    A snapshot holds the state of the draws beside that of the batcher, and neither knows the other.
    So the first batchers and each processor meet every shuffle in 1 and in 3 lanes, but not each
    pair; the others meet two of these ways, and batches planned with and without processing.
    """
    ways = list(itertools.product(SHUFFLES, (1, 3)))
    for b, batcher in enumerate(BATCHERS):
        for p, processor in enumerate(PROCESSORS):
            if b >= 4 and processor not in ("sized", "choosy"):
                continue
            for way in (2 * p + b, 2 * p + b + 1)[: 2 if b < 4 else 1]:
                shuffle, lanes = ways[way % len(ways)]
                yield batcher, shuffle, processor, lanes


__all__ = [
    "BATCHERS",
    "LENGTHS",
    "PROCESSORS",
    "SHUFFLES",
    "BlockedSource",
    "ChoosyProcessor",
    "SizedProcessor",
    "every_plan",
    "make_job",
    "raw_items",
]
