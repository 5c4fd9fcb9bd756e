"""Best fit decreasing: longest first, each into the tightest pack."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from penstock.server.packing.lengths import (
    Histogram,
    Lengths,
    checked_array,
    checked_histogram,
    longest_first,
    runs,
    runs_of_histogram,
)
from penstock.server.packing.moves import CLOSED, NEW, Move, numbered, packs_of
from penstock.server.packing.packs import Packs
from penstock.server.packing.vectors import Counts, checked_counts, place


def best_fit_decreasing(
    lengths: Lengths, capacity: int, counts: Counts | None = None, most: Sequence[int] = ()
) -> list[list[int]]:
    """Return packs where each sample, longest first, went where the least room was left over.

    The packing of "Fewer Truncations Improve Language Modeling" (Ding et al., 2024), which finds
    the tightest pack in a tree over the rooms. Packs of equal room: the oldest one.

    Samples of equal length are packed together: the tightest room that holds one is still the
    tightest after it, as long as it holds another, so its pack takes as many as fit at once, and
    then the other packs of that room do.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.
        counts: What each sample counts beside its length, where that is limited, too: then it joins
            the tightest of the packs that have room for all of it.
        most: What a pack may count of each.

    Returns:
        Packs of indices, each index once; a pack's sum is at most `capacity` (`<=`), and every
        count within its limit, unless it is one sample that is above by itself.

    Raises:
        ValueError: The capacity is below 1, or a length is negative or not a whole number.
    """
    return list(best_fit_decreasing_packs(lengths, capacity, counts, most))


def best_fit_decreasing_packs(
    lengths: Lengths, capacity: int, counts: Counts | None, most: Sequence[int]
) -> Packs:
    """Return the packs of `best_fit_decreasing` as arrays: windows of millions need no lists.

    Raises:
        ValueError: As of `best_fit_decreasing`.
    """
    sizes, capacity = checked_array(lengths, capacity)
    order = longest_first(sizes)
    if len(most):
        of_each, limits = checked_counts(counts, most, len(sizes))
        return Packs.of(order, *place(order, sizes, capacity, of_each, limits, tightest=True))
    return Packs.of(order, *numbered(_moves(runs(sizes[order]), capacity), len(order)))


def count_best_fit_decreasing(histogram: Histogram, capacity: int) -> int:
    """Return how many packs `best_fit_decreasing` makes, from the histogram of the lengths alone.

    Args:
        histogram: How many samples there are of each length, from 0, as `np.bincount(lengths)`
            gives it.
        capacity: What one pack holds.

    Raises:
        ValueError: The capacity is below 1, or a count is negative or not a whole number.
    """
    counts, capacity = checked_histogram(histogram, capacity)
    return packs_of(_moves(runs_of_histogram(counts), capacity))


def _moves(falling: Iterable[tuple[int, int]], capacity: int) -> Iterator[Move]:
    """Yield what runs of equal lengths, longest first, do to packs; their state is their room."""
    # Rooms that hold the length, the tightest last, and how many packs have each. Lengths fall, so
    # what comes to hold them is tighter than all that did before: rooms are added at the end.
    rooms: list[int] = []
    packs: list[int] = []
    small: dict[int, int] = {}  # packs of each room that is too small as yet
    largest: list[int] = []  # heap of these rooms, negative
    for length, count in falling:
        if length > capacity:
            yield NEW, CLOSED, count, 1, 1
            continue
        while largest and -largest[0] >= length:
            rooms.append(-heapq.heappop(largest))
            packs.append(small.pop(rooms[-1]))
        while count:
            if rooms:
                before, room, there = rooms[-1], rooms[-1], packs[-1]
            else:
                before, room, there = NEW, capacity, count
            each = min(count, room // length) if length else count
            taking = min(there, count // each)
            left = room - each * length
            yield before, left, taking, each, 1
            count -= taking * each
            if rooms:
                packs[-1] -= taking
                if not packs[-1]:
                    rooms.pop()
                    packs.pop()
            if left >= length:  # a pack that the last samples do not fill
                rooms.append(left)
                packs.append(taking)
            elif left in small:
                small[left] += taking
            else:
                small[left] = taking
                heapq.heappush(largest, -left)
