"""Next fit: only the newest pack is open."""

from __future__ import annotations

from itertools import pairwise

from penstock.server.packing.lengths import Lengths, checked


def next_fit(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Return packs of consecutive samples; a sample that does not fit starts the next pack.

    LMMS-Engine's streaming datasets pack so, and its strategy named `first_fit` does too.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.

    Returns:
        Packs of indices, each index once; a pack's sum is at most `capacity` (`<=`), unless it is
        one sample that is longer.

    Raises:
        ValueError: The capacity is below 1, or a length is negative or not a whole number.
    """
    sizes, capacity = checked(lengths, capacity)
    bounds: list[int] = []
    room = -1  # nothing fits before the first pack is open
    for index, length in enumerate(sizes):
        room -= length
        if room < 0:  # also after a sample that is longer than the capacity: it stays alone
            bounds.append(index)
            room = capacity - length
    bounds.append(len(sizes))
    return [list(range(start, stop)) for start, stop in pairwise(bounds)]
