"""What a processor and a collator get beside their data, and their random generators."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import Medium


class ProcessContext:
    """What a processor gets beside the raw item.

    Attributes:
        item: Which item, in which epoch.
        rng: A generator seeded from (seed, epoch, item); made when first used.
        skipped: The reason that `skip` was given, or None.
        media: What the item refers to, in the order of `MediaProcessor.references`.
    """

    def __init__(self, item: ItemRef, seed: int, media: Sequence[Medium] = ()) -> None:
        self.item = item
        self.seed = seed
        self.media = media
        self.skipped: str | None = None
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Return this item's own random generator: the same on every node and in every order."""
        if self._rng is None:
            self._rng = np.random.Generator(np.random.Philox(key=item_key(self.seed, self.item)))
        return self._rng

    @property
    def drew(self) -> bool:
        """Tell whether `rng` was used."""
        return self._rng is not None

    def skip(self, reason: str) -> None:
        """Filter this item with a counted reason: `return context.skip("too short")`."""
        self.skipped = reason


def item_key(seed: int, item: ItemRef) -> int:
    """Return 128 bits that decide everything random about one item in one epoch."""
    text = f"item\0{seed}\0{item.source}\0{item.index}\0{item.epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def batch_key(seed: int, lane: int, offset: int) -> int:
    """Return 128 bits that decide everything random about collating one batch."""
    text = f"batch\0{seed}\0{lane}\0{offset}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


class CollateContext:
    """What a collator gets beside the rows.

    Attributes:
        lane: The lane of the batch.
        offset: Its offset.
        rng: A generator seeded from (seed, lane, offset); made when first used.
        counts: Integers that travel in the header: see `count`.
    """

    def __init__(self, seed: int, lane: int, offset: int) -> None:
        self.seed, self.lane, self.offset = seed, lane, offset
        self.counts: dict[str, int] = {}
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Return this batch's own random generator."""
        if self._rng is None:
            key = batch_key(self.seed, self.lane, self.offset)
            self._rng = np.random.Generator(np.random.Philox(key=key))
        return self._rng

    def count(self, name: str, value: int) -> None:
        """Set an integer that travels with the batch: tokens, loss_tokens, or one of your own."""
        self.counts[name] = int(value)
