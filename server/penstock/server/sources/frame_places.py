"""Where the frames of episodes lie in row groups, however these were cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class FramePlaces:
    """The frames of some episodes, numbered in their order, and the row group and row of each.

    A block is what consecutive frames have in one row group. Where row groups hold an episode each,
    it is that episode; where one holds many, all of these that follow one another.

    Args:
        shards: int64 (n,): of each episode the number of the file that holds it.
        rows: int64 (n,): its first row in the file.
        lengths: int64 (n,): how many frames it has.
        groups: Of each file how many rows its row groups hold.

    Attributes:
        places: Of each block the number of its file, and of the row group in it.
        block_items: How many frames each block has.
        starts: int64 (n + 1,): the first frame of each episode, then the number of all frames.
        parts: How many pieces the episodes lie in: as many as there are episodes where none is cut.
    """

    def __init__(
        self, shards: Ints, rows: Ints, lengths: Ints, groups: Sequence[Sequence[int]]
    ) -> None:
        ends = [np.array(list(accumulate(counts)), np.int64) for counts in groups]
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.places: list[tuple[int, int]] = []
        self.block_items: list[int] = []
        first: list[int] = []  # of each piece: its first frame, its block, its first row there
        block: list[int] = []
        row: list[int] = []
        item = 0
        for shard, at, length in zip(shards.tolist(), rows.tolist(), lengths.tolist(), strict=True):
            stop = at + length
            group = int(np.searchsorted(ends[shard], at, side="right"))
            while at < stop:
                end = int(ends[shard][group])
                if not self.places or self.places[-1] != (shard, group):
                    self.places.append((shard, group))
                    self.block_items.append(0)
                count = min(stop, end) - at
                first.append(item)
                block.append(len(self.places) - 1)
                row.append(at - (end - groups[shard][group]))
                self.block_items[-1] += count
                item, at, group = item + count, at + count, group + 1
        self.parts = len(first)
        self._first, self._block, self._row = (np.array(x, np.int64) for x in (first, block, row))

    def find(self, items: Ints) -> tuple[Ints, Ints]:
        """Return the block of each frame, and its row in the row group: int64, as `items`."""
        part = np.searchsorted(self._first, items, side="right") - 1
        return self._block[part], self._row[part] + items - self._first[part]

    def rows_of(self, block: int) -> Ints:
        """Return the rows of the row group that a block's frames are: int64 (frames,)."""
        start = sum(self.block_items[:block])
        return self.find(np.arange(start, start + self.block_items[block]))[1]

    def episode_of(self, item: int) -> tuple[int, int]:
        """Return the episode of a frame, from 0 on, and which of its frames it is."""
        episode = int(np.searchsorted(self.starts, item, side="right")) - 1
        return episode, item - int(self.starts[episode])
