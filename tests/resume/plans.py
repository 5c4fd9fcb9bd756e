"""The jobs that resume is proven on: every batcher, shuffle and kind of processor, on tiny data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from penstock.server.job import Job
from penstock.server.roles import (
    BestFitPackingBatcher,
    Blocks,
    IdentityProcessor,
    MapDistributor,
    PackedCollator,
    PaddedCollator,
    PoolPackingBatcher,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
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


BATCHERS: dict[str, SampleBatcher] = {
    "simple": SimpleBatcher(3),
    "sequential": SequentialPackingBatcher(max_sequence_length=33, lookahead_limit=3),
    "sequential_rows": SequentialPackingBatcher(33, lookahead_limit=3, rows=3),
    "sequential_count": SequentialPackingBatcher(max_samples_per_batch=4, lookahead_limit=2),
    "pool": PoolPackingBatcher(max_tokens=64, pool_size=5, max_batch_size=3),
    "best_fit_split": BestFitPackingBatcher(32, pool_size=6, rows=2, overlong="split"),
    "best_fit_truncate": BestFitPackingBatcher(32, pool_size=11, overlong="truncate"),
    "best_fit_drop": BestFitPackingBatcher(32, pool_size=4, rows=2, overlong="drop"),
}

PROCESSORS: dict[str, type[RawItemProcessor]] = {
    "identity": IdentityProcessor,
    "sized": SizedProcessor,
    "choosy": ChoosyProcessor,
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
    packs = batcher.startswith(("best", "sequential"))
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
    So each batcher and each processor meets every shuffle in 1 and in 3 lanes, but not each pair.
    """
    ways = list(itertools.product(SHUFFLES, (1, 3)))
    for b, batcher in enumerate(BATCHERS):
        for p, processor in enumerate(PROCESSORS):
            for way in (2 * p + b, 2 * p + b + 1):
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
