"""Best fit decreasing and knapsack with a heap and one sample after another: fast enough for many.

The rules are those of `penstock.server.packing`; nothing is packed by runs here.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

Packs = list[list[int]]


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> Packs:
    """Put each sample, longest first, into the oldest pack of the least room that holds it."""
    packs: Packs = []
    rooms: list[tuple[int, int]] = []  # of open packs, with their numbers, sorted
    for index in longest_first(lengths):
        length = lengths[index]
        at = bisect_left(rooms, (length, 0))
        if at < len(rooms):
            room, pack = rooms.pop(at)
        else:
            room, pack = capacity, len(packs)
            packs.append([])
        packs[pack].append(index)
        if room >= length:
            insort(rooms, (room - length, pack))
    return packs


def knapsack(lengths: Sequence[int], capacity: int) -> Packs:
    """Put each sample, longest first, into the oldest of the emptiest packs."""
    packs: Packs = []
    fills: list[tuple[int, int]] = []  # heap of fills with the packs' numbers
    for index in longest_first(lengths):
        length = lengths[index]
        if length > capacity:
            continue
        if fills and fills[0][0] + length <= capacity:
            fill, pack = heapq.heappop(fills)
        else:
            fill, pack = 0, len(packs)
            packs.append([])
        packs[pack].append(index)
        heapq.heappush(fills, (fill + length, pack))
    return packs


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return the indices by falling length, equal ones in their order."""
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])
