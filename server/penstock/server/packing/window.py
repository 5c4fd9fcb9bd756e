"""Window packing: a pack is filled by one scan over a window of samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import le, sub

import numpy as np

from penstock.server.packing.lengths import Lengths, checked, longest_first
from penstock.server.packing.vectors import Counts, checked_counts


def window(
    lengths: Lengths,
    capacity: int,
    size: int,
    *,
    sort: bool = False,
    counts: Counts | None = None,
    most: Sequence[int] = (),
) -> list[list[int]]:
    """Return packs that are each filled by one scan over a window of `size` samples.

    LMMS-Engine's `window_XX`, in both its forms. Unsorted, as its code does it, the window rolls:
    after each pack it is refilled with the next samples. Sorted, as its guide describes it, all
    samples are ordered longest first and cut into windows of `size`, each of which is used up
    before the next is looked at; that puts the longest together and wastes room, so it is not the
    default.

    A scan goes through the window once, in order, and takes every sample that still fits. A sample
    that is longer than the capacity is taken when it is the first, alone.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.
        size: How many samples the window shows.
        sort: True takes the guide's form.
        counts: What each sample counts beside its length, where that is limited, too.
        most: What a pack may count of each.

    Returns:
        Packs of indices, each index once; a pack's sum is at most `capacity` (`<=`), and every
        count within its limit, unless it is one sample that is above by itself.

    Raises:
        ValueError: The capacity or the size is below 1, or a length is negative or not a whole
            number.
    """
    sizes, capacity = checked(lengths, capacity)
    if size < 1:
        raise ValueError(f"size is {size}: a window shows at least 1 sample")
    of_each, limits = checked_counts(counts, most, len(sizes))
    needs = [(length, *beside) for length, beside in zip(sizes, of_each.tolist(), strict=True)]
    whole = (capacity, *limits.tolist())
    if not sort:
        return _roll(needs, whole, size, range(len(sizes)))
    order: list[int] = longest_first(np.asarray(sizes, dtype=np.int64)).tolist()
    packs: list[list[int]] = []
    for start in range(0, len(order), size):
        packs += _roll(needs, whole, size, order[start : start + size])
    return packs


def _roll(
    needs: Sequence[tuple[int, ...]], whole: tuple[int, ...], size: int, order: Sequence[int]
) -> list[list[int]]:
    packs: list[list[int]] = []
    coming = iter(order)
    shown = list(islice(coming, size))
    while shown:
        pack = [shown[0]]
        rooms = list(map(sub, whole, needs[shown[0]]))
        left: list[int] = []
        for index in shown[1:]:
            if all(map(le, needs[index], rooms)):
                pack.append(index)
                rooms = list(map(sub, rooms, needs[index]))
            else:
                left.append(index)
        packs.append(pack)
        shown = left + list(islice(coming, size - len(left)))
    return packs
