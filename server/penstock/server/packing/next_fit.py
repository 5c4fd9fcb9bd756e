"""Next fit: only the newest pack is open."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.packing.lengths import check_lengths


def next_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return packs of consecutive samples; a sample that does not fit starts the next pack.

    LMMS-Engine's streaming datasets pack so, and its strategy named `first_fit` does too.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.

    Returns:
        Packs of indices, each index once; a pack's sum is at most `capacity` (`<=`), unless it is
        one sample that is longer.

    Raises:
        ValueError: The capacity is below 1, or a length is negative.
    """
    check_lengths(lengths, capacity)
    packs: list[list[int]] = []
    room = -1  # nothing fits before the first pack is open
    for index, length in enumerate(lengths):
        if length > room:
            packs.append([])
            room = capacity
        packs[-1].append(index)
        room -= length
    return packs


__all__ = ["next_fit"]
