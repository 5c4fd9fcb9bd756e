"""A shuffle for storage in blocks: blocks in random order, rows mixed within a window of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from penstock.server.core.permutation import Permutation

_WINDOWS = 8  # kept at hand: lanes draw from one window, or from two where it ends


class BlockOrder:
    """The order of one epoch: `order[position]` is an item, each item at exactly one position.

    Blocks are permuted; every `window_blocks` consecutive ones of that order form a window, and the
    rows of a window are permuted among themselves. So whoever reads on in this order needs the
    blocks of one window at a time, and each block in one window only. Memory is O(blocks), a
    position is found in O(log blocks).

    Args:
        sizes: int64 (blocks,): how many items each block holds, in index order.
        window_blocks: How many blocks are mixed.
        seed: The job's seed.
        epoch: Every epoch has an order of its own.
        purpose: Keeps the orders of several sources of one job apart.
    """

    def __init__(
        self, sizes: Sequence[int], window_blocks: int, seed: int, epoch: int, purpose: str
    ) -> None:
        self._seed, self._epoch, self._purpose = seed, epoch, purpose
        self._window_blocks = window_blocks
        self._sizes = np.asarray(sizes, dtype=np.int64)
        self._first = np.concatenate([[0], np.cumsum(self._sizes)])
        blocks = Permutation(len(sizes), seed, epoch, f"blocks {purpose}")
        self._blocks = blocks.take(np.arange(len(sizes)))
        ends = np.cumsum(self._sizes[self._blocks])
        last = np.minimum(
            np.arange(window_blocks, len(sizes) + window_blocks, window_blocks), len(sizes)
        )
        self._ends: list[int] = ends[last - 1].tolist()
        self._window = lru_cache(_WINDOWS)(self._make_window)

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, position: int) -> int:
        """Return the item at `position`.

        Raises:
            IndexError: The position is not below the number of items.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is not in [0, {len(self)})")
        number = bisect_right(self._ends, position)
        start = self._ends[number - 1] if number else 0
        rows, ends, shifts = self._window(number)
        row = rows[position - start]
        return row + shifts[bisect_right(ends, row)]

    def _make_window(self, number: int) -> tuple[Permutation, list[int], list[int]]:
        """Return a window's row order, where its blocks end, and what makes a row an item."""
        start = number * self._window_blocks
        blocks = self._blocks[start : start + self._window_blocks]
        ends = list(accumulate(self._sizes[blocks].tolist()))
        first = self._first[blocks].tolist()
        shifts = [item - before for item, before in zip(first, [0, *ends], strict=False)]
        purpose = f"rows {number} {self._purpose}"
        return Permutation(ends[-1], self._seed, self._epoch, purpose), ends, shifts


__all__ = ["BlockOrder"]
