"""Next fit: only the newest pack is open."""

from __future__ import annotations

from array import array

import numpy as np

from penstock.server.packing.lengths import Lengths, checked
from penstock.server.packing.packs import Packs


def next_fit(lengths: Lengths, capacity: int) -> Packs:
    """Return packs of consecutive samples; a sample that does not fit starts the next pack.

    LMMS-Engine's streaming datasets pack so, and its strategy named `first_fit` does too.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.

    Returns:
        Packs of indices, each index once; a pack's sum is at most `capacity` (`<=`), unless it is
        one sample that is longer. They read as a list of lists and are held as arrays, since
        lists of consecutive numbers would take half as long again as finding where they end;
        `list(packs)` makes them, as `json.dumps` needs.

    Raises:
        ValueError: The capacity is below 1, or a length is negative or not a whole number.
    """
    sizes, capacity = checked(lengths, capacity)
    count = len(sizes)
    bounds = array("q")
    room = -1  # nothing fits before the first pack is open
    for index, length in enumerate(sizes):
        room -= length
        if room < 0:  # also after a sample that is longer than the capacity: it stays alone
            bounds.append(index)
            room = capacity - length
    bounds.append(count)
    return Packs(np.arange(count), np.frombuffer(bounds, dtype=np.int64))
