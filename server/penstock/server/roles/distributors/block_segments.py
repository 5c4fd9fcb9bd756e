"""Blocks of items in random order, dealt to groups so that each has exactly its part of the items.

The blocks of an epoch are permuted and laid in a line, which is cut into as many segments as there
are groups, all of the same number of items to within one. A cut mostly falls into a block, and two
groups have a piece of it. Every other segment runs backwards, so that both come to it at the same
time: at their beginning, or at their end. Where neighbouring groups are read by one process it is
decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.permutation import Permutation


class Piece(NamedTuple):
    """What one group has of the blocks.

    Attributes:
        items: int64 (blocks,): the first item of each block's part, in the order of reading.
        counts: int64 (blocks,): how many items of the block belong here, from that one on.
    """

    items: NDArray[np.int64]
    counts: NDArray[np.int64]


class DealtBlocks:
    """The blocks of one epoch, and the segment of each group.

    Args:
        sizes: How many items each block holds, in index order; those of none are left out.
        groups: How many groups there are.
        seed: The job's seed.
        epoch: Every epoch has an order of its own.
        purpose: Keeps the orders of several sources of one job apart.

    Attributes:
        items: How many items there are.
        groups: How many groups there are.
    """

    def __init__(
        self, sizes: Sequence[int], groups: int, seed: int, epoch: int, purpose: str
    ) -> None:
        self.groups = groups
        every = np.asarray(sizes, dtype=np.int64)
        held = np.flatnonzero(every)  # no group reads an empty block
        blocks = Permutation(len(held), seed, epoch, f"blocks {purpose}")
        order = held[blocks.take(np.arange(len(held)))]
        self._sizes = every[order]
        self._items = (np.cumsum(every) - every)[order]
        self._ends = np.cumsum(self._sizes)
        self.items = int(every.sum())

    def __len__(self) -> int:
        """Return how many blocks there are that are not empty."""
        return len(self._sizes)

    def items_of(self, slot: int) -> int:
        """Return how many items a group has."""
        share, more = divmod(self.items, self.groups)
        return share + (slot < more)

    def piece(self, slot: int) -> Piece:
        """Return the segment of a group."""
        share, more = divmod(self.items, self.groups)
        start = slot * share + min(slot, more)
        stop = start + self.items_of(slot)
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        if stop == start:
            last = first - 1
        ends, sizes = self._ends[first : last + 1], self._sizes[first : last + 1]
        begins = ends - sizes
        counts = np.minimum(ends, stop) - np.maximum(begins, start)
        items = self._items[first : last + 1] + np.maximum(begins, start) - begins
        return Piece(items[::-1], counts[::-1]) if slot % 2 else Piece(items, counts)
