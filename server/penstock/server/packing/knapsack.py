"""The greedy knapsack of neat packing: longest first, each into the emptiest pack."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from penstock.server.packing.lengths import check_lengths, longest_first


def knapsack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return packs that are filled evenly: each sample, longest first, joins the emptiest pack.

    NeMo Automodel's `greedy_knapsack` (neat packing). Its name there says first-fit decreasing, its
    code is worst-fit decreasing, and the results of the code are kept. If the emptiest pack has no
    room no other has, so a heap decides in O(log n). Packs of equal fill: the oldest one.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.

    Returns:
        Packs of indices, each index at most once; every sum is at most `capacity` (`<=`). Samples
        longer than `capacity` are left out.

    Raises:
        ValueError: The capacity is below 1, or a length is negative.
    """
    check_lengths(lengths, capacity)
    packs: list[list[int]] = []
    emptiest: list[tuple[int, int]] = []  # heap of (fill, pack)
    for index in longest_first(lengths):
        length = lengths[index]
        if length > capacity:
            continue
        if emptiest and emptiest[0][0] + length <= capacity:
            fill, pack = emptiest[0]
            packs[pack].append(index)
            heapq.heapreplace(emptiest, (fill + length, pack))
        else:
            heapq.heappush(emptiest, (length, len(packs)))
            packs.append([index])
    return packs


__all__ = ["knapsack"]
