"""A shuffle for storage in blocks: blocks in random order, dealt to groups, rows mixed in windows.

The blocks of an epoch are dealt to the reading groups in segments (`DealtBlocks`), so that each
group has exactly its own draws of the epoch. Within a segment a window of `window_blocks`
consecutive blocks slides on: every block gives an equal part of its rows to each window that it is
in, and the rows of a window are permuted among themselves.

```
blocks of a segment     b0   b1   b2   b3            window_blocks = 2
window 0                1/2
window 1                1/2  1/2                     a group draws from two blocks at a time,
window 2                     1/2  1/2                and from three where two windows meet
window 3                          1/2  1/2
window 4                               1/2
```
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.core.permutation import Permutation
from penstock.server.roles.distributors.block_segments import DealtBlocks

_WINDOWS = 4
"""Windows kept for each group: lanes of a group draw from one, or from two where they meet."""


class _Segment(NamedTuple):
    """What one group reads in an epoch.

    Attributes:
        items: int64 (blocks,): the first item of each block's part, in the order of reading.
        counts: int64 (blocks,): how many items of the block belong here, from that one on.
        ends: Where each window ends, in draws of the group.
    """

    items: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    ends: list[int]


class BlockOrder:
    """The order of one epoch: `order[position]` is an item, each item at exactly one position.

    Position p is draw `p div groups` of slot `p mod groups`. As a lane's positions in an epoch are
    all alike modulo any divisor of the number of lanes, so a lane has one slot in an epoch. Memory
    is O(blocks), a position is found in O(log blocks).

    Args:
        sizes: int64 (blocks,): how many items each block holds, in index order.
        groups: How many reading groups there are.
        window_blocks: How many blocks are mixed. With one group and a window of all blocks there is
            one window, and the order is a permutation of all items.
        seed: The job's seed.
        epoch: Every epoch has an order of its own.
        purpose: Keeps the orders of several sources of one job apart.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        groups: int,
        window_blocks: int,
        seed: int,
        epoch: int,
        purpose: str,
    ) -> None:
        self._seed, self._epoch, self._purpose = seed, epoch, purpose
        self._groups = groups
        self._dealt = DealtBlocks(sizes, groups, seed, epoch, purpose)
        self._length = self._dealt.items
        whole = groups == 1 and window_blocks >= len(self._dealt)
        # A window of one block gives the whole of it; so does the only window there is.
        self._parts = 1 if whole else window_blocks
        self._whole = whole
        self._segments: list[_Segment | None] = [None] * groups
        self._window = lru_cache(_WINDOWS * groups)(self._make_window)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> int:
        """Return the item at `position`.

        Raises:
            IndexError: The position is not below the number of items.
        """
        if not 0 <= position < self._length:
            raise IndexError(f"position {position} is not in [0, {self._length})")
        index, slot = divmod(position, self._groups)
        ends = (self._segments[slot] or self._segment(slot)).ends
        number = bisect_right(ends, index)
        rows, parts, shifts = self._window(slot, number)
        row = rows[index - (ends[number - 1] if number else 0)]
        return row * self._parts + shifts[bisect_right(parts, row)]

    def take(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the items at many positions, equal to `[self[p] for p in positions]`.

        Raises:
            IndexError: A position is not below the number of items.
        """
        if positions.size and not (positions.min() >= 0 and positions.max() < self._length):
            raise IndexError(
                f"positions {positions.min()} to {positions.max()} are not in [0, {self._length})"
            )
        indices, slots = np.divmod(positions, self._groups)
        found = np.empty(len(positions), np.int64)
        for slot in set(slots.tolist()):
            of_slot = np.flatnonzero(slots == slot)
            ends = (self._segments[slot] or self._segment(slot)).ends
            numbers = np.searchsorted(ends, indices[of_slot], side="right")
            for number in set(numbers.tolist()):
                places = of_slot[numbers == number]
                order, parts, shifts = self._window(slot, number)
                rows = order.take(indices[places] - (ends[number - 1] if number else 0))
                shift = np.asarray(shifts)[np.searchsorted(parts, rows, side="right")]
                found[places] = rows * self._parts + shift
        return found

    def blocks_of(self, slot: int) -> int:
        """Return how many blocks a slot reads, those that it shares among them."""
        return len(self._segment(slot).counts)

    def _segment(self, slot: int) -> _Segment:
        made = self._segments[slot]
        if made is None:
            made = self._segments[slot] = self._make_segment(slot)
        return made

    def _make_segment(self, slot: int) -> _Segment:
        items, counts = self._dealt.piece(slot)
        if self._whole:
            return _Segment(items, counts, [int(counts.sum())])
        width, blocks = self._parts, len(counts)
        windows = np.zeros(blocks + width - 1, dtype=np.int64)
        for ahead in range(width):
            windows[ahead : ahead + blocks] += _rows(counts, np.arange(blocks), ahead, width)
        return _Segment(items, counts, np.cumsum(windows).tolist())

    def _make_window(self, slot: int, number: int) -> tuple[Permutation, list[int], list[int]]:
        """Return a window's row order, where its blocks end, and what makes a row an item."""
        segment, width = self._segment(slot), self._parts
        if self._whole:
            indices = np.arange(len(segment.counts))
        else:
            indices = np.arange(max(0, number - width + 1), min(number + 1, len(segment.counts)))
        counts = _rows(segment.counts[indices], indices, number - indices, width)
        ends = list(accumulate(counts.tolist()))
        starts = np.array([0, *ends[:-1]])
        # Rows of one residue modulo the width: the windows of a block share it evenly.
        first = segment.items[indices] + (number - 2 * indices) % width
        purpose = f"rows {slot} {number} {self._purpose}"
        rows = Permutation(ends[-1], self._seed, self._epoch, purpose)
        return rows, ends, (first - width * starts).tolist()


def _rows(
    counts: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
    ahead: int | npt.NDArray[np.int64],
    width: int,
) -> npt.NDArray[np.int64]:
    """Return how many rows blocks give to the window that is `ahead` of the first they are in.

    These are the rows r with `r mod width == (ahead - index) mod width`, the index being the
    block's number in its segment: so no row number is always among the first.
    """
    found: npt.NDArray[np.int64] = (counts - (ahead - indices) % width + width - 1) // width
    return found
