"""Which batches were made in this process: a bit for each of the latest millions."""

from __future__ import annotations

from collections import OrderedDict

BITS, KEPT = 1024, 8192
"""Offsets in one mask, and masks kept: 8 million batches in a few megabytes."""


class MadeOffsets:
    """Remembers batches of one log; forgets the masks that were begun first when there are many.

    What is forgotten reads as not made.
    """

    def __init__(self) -> None:
        self._masks: OrderedDict[tuple[int, int], int] = OrderedDict()

    def add(self, lane: int, offset: int) -> None:
        """Note that a batch was made, by lane and offset."""
        place, bit = (lane, offset // BITS), 1 << offset % BITS
        self._masks[place] = self._masks.get(place, 0) | bit
        if len(self._masks) > KEPT:
            self._masks.popitem(last=False)

    def __contains__(self, batch: tuple[int, int]) -> bool:
        """Tell whether the batch at (lane, offset) was made, as far as that is remembered."""
        lane, offset = batch
        return bool(self._masks.get((lane, offset // BITS), 0) >> offset % BITS & 1)


__all__ = ["BITS", "KEPT", "MadeOffsets"]
