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
        self._masks: OrderedDict[tuple[int, bool, int], int] = OrderedDict()

    def add(self, lane: int, offset: int, *, blank: bool = False) -> bool:
        """Note that a batch was made, or the padding of its shapes; tell whether it was before."""
        place, bit = (lane, blank, offset // BITS), 1 << offset % BITS
        mask = self._masks.get(place, 0)
        self._masks[place] = mask | bit
        if len(self._masks) > KEPT:
            self._masks.popitem(last=False)
        return bool(mask & bit)

    def __contains__(self, batch: tuple[int, int]) -> bool:
        """Tell whether the batch at (lane, offset) was made, as far as that is remembered.

        Or the padding of its shapes: for that it was planned, too.
        """
        lane, offset = batch
        masks = (self._masks.get((lane, blank, offset // BITS), 0) for blank in (False, True))
        return any(mask >> offset % BITS & 1 for mask in masks)
