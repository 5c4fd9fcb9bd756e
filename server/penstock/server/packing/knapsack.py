"""The greedy knapsack of neat packing: longest first, each into the emptiest pack."""

from __future__ import annotations

import heapq

import numpy as np

from penstock.server.packing.lengths import Lengths, checked, longest_first, runs
from penstock.server.packing.packs import Packs


def knapsack(lengths: Lengths, capacity: int) -> Packs:
    """Return packs that are filled evenly: each sample, longest first, joins the emptiest pack.

    NeMo Automodel's `greedy_knapsack` (neat packing). Its name there says first-fit decreasing, its
    code is worst-fit decreasing, and the results of the code are kept. If the emptiest pack has no
    room no other has. Packs of equal fill: the oldest one.

    Samples of equal length are packed together: each of the packs of the least fill takes one, and
    then they are as full as each other again. A heap holds the fills that there are.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.

    Returns:
        Packs of indices, each index at most once; every sum is at most `capacity` (`<=`). Samples
        longer than `capacity` are left out.

    Raises:
        ValueError: The capacity is below 1, or a length is negative or not a whole number.
    """
    sizes, capacity = checked(lengths, capacity)
    order = longest_first(sizes)
    falling = np.asarray(sizes, dtype=np.int64)[order]
    overlong = int(np.count_nonzero(falling > capacity))
    order, falling = order[overlong:], falling[overlong:]
    taken_by: list[int] = []
    by_fill: dict[int, list[int]] = {}  # packs of a fill; sorted when they are taken
    fills: list[int] = []  # heap of its keys
    packs = 0

    def put(fill: int, some: list[int]) -> None:
        if (there := by_fill.get(fill)) is not None:
            there += some
        else:
            by_fill[fill] = some
            heapq.heappush(fills, fill)

    for length, count in runs(falling):
        while count:
            if not fills or fills[0] + length > capacity:
                # Where two samples do not fit into a pack, each of these needs a new one.
                new = count if 2 * length > capacity else 1
                fill, some = 0, list(range(packs, packs + new))
                packs += new
            else:
                fill = heapq.heappop(fills)
                some = by_fill.pop(fill)
                some.sort()
            if not length:  # it stays the emptiest
                taken_by += [some[0]] * count
                put(fill, some)
                break
            taken_by += some[:count]
            put(fill + length, some[:count])
            if count < len(some):
                put(fill, some[count:])
            count -= min(count, len(some))
    return Packs.of(order, taken_by, packs)


__all__ = ["knapsack"]
