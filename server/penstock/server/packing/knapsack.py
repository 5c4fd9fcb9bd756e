"""The greedy knapsack of neat packing: longest first, each into the emptiest pack."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from penstock.server.packing.lengths import (
    Histogram,
    Lengths,
    checked_array,
    checked_histogram,
    longest_first,
    runs,
    runs_of_histogram,
)
from penstock.server.packing.moves import NEW, Move, numbered, packs_of
from penstock.server.packing.packs import Packs
from penstock.server.packing.vectors import Counts, checked_counts, place


def knapsack(
    lengths: Lengths, capacity: int, counts: Counts | None = None, most: Sequence[int] = ()
) -> list[list[int]]:
    """Return packs that are filled evenly: each sample, longest first, joins the emptiest pack.

    NeMo Automodel's `greedy_knapsack` (neat packing). Its name there says first-fit decreasing, its
    code is worst-fit decreasing, and the results of the code are kept. If the emptiest pack has no
    room no other has. Packs of equal fill: the oldest one.

    Samples of equal length are packed together: each of the packs of the least fill takes one, and
    then they are as full as each other again. Where no pack has room, a new one is the emptiest
    until it has no room either. A heap holds the fills that there are.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.
        counts: What each sample counts beside its length, where that is limited, too: then it joins
            the emptiest of the packs that have room for all of it.
        most: What a pack may count of each.

    Returns:
        Packs of indices, each index at most once; every sum is at most `capacity` (`<=`), and every
        count within its limit. Samples longer than `capacity`, or above a limit, are left out.

    Raises:
        ValueError: The capacity is below 1, or a length is negative or not a whole number.
    """
    return list(knapsack_packs(lengths, capacity, counts, most))


def knapsack_packs(
    lengths: Lengths, capacity: int, counts: Counts | None, most: Sequence[int]
) -> Packs:
    """Return the packs of `knapsack` as arrays: windows of millions need no lists.

    Raises:
        ValueError: As of `knapsack`.
    """
    sizes, capacity = checked_array(lengths, capacity)
    order = longest_first(sizes)
    if len(most):
        of_each, limits = checked_counts(counts, most, len(sizes))
        fits = (sizes <= capacity) & (of_each <= limits).all(axis=1)
        order = order[fits[order]]
        return Packs.of(order, *place(order, sizes, capacity, of_each, limits, tightest=False))
    order = order[np.count_nonzero(sizes > capacity) :]
    return Packs.of(order, *numbered(_moves(runs(sizes[order]), capacity), len(order)))


def count_knapsack(histogram: Histogram, capacity: int) -> int:
    """Return how many packs `knapsack` makes, from the histogram of the lengths alone.

    Args:
        histogram: How many samples there are of each length, from 0, as `np.bincount(lengths)`
            gives it.
        capacity: What one pack holds.

    Raises:
        ValueError: The capacity is below 1, or a count is negative or not a whole number.
    """
    counts, capacity = checked_histogram(histogram, capacity)
    return packs_of(_moves(runs_of_histogram(counts[: capacity + 1]), capacity))


def _moves(falling: Iterable[tuple[int, int]], capacity: int) -> Iterator[Move]:
    """Yield what runs of equal lengths, longest first, do to packs; their state is their fill."""
    packs: dict[int, int] = {}  # how many there are of each fill
    fills: list[int] = []  # heap of these fills
    for length, count in falling:
        while count:
            before, each, turns = NEW, 1, 1
            if not fills or fills[0] + length > capacity:
                fill, each = 0, min(count, capacity // length) if length else count
                taking = count // each
            else:
                before = fill = fills[0]
                taking = min(count, packs[fill])
                if not length:  # the oldest of the emptiest stays the emptiest
                    taking, each = 1, count
                elif count >= 2 * taking:
                    following = min(fills[1:3], default=capacity)  # the second least of the heap
                    until = -(-(following - fill) // length)
                    turns = min(count // taking, until, (capacity - fill) // length)
                packs[fill] -= taking
                if not packs[fill]:
                    heapq.heappop(fills)
                    del packs[fill]
            fill += each * turns * length
            yield before, fill, taking, each, turns
            count -= taking * each * turns
            if fill in packs:
                packs[fill] += taking
            else:
                packs[fill] = taking
                heapq.heappush(fills, fill)
