"""Sequential packing: nearly the given order, with a short look ahead past what does not fit."""

from __future__ import annotations

from collections import deque

from penstock.server.packing.lengths import Lengths, checked


def sequential(lengths: Lengths, capacity: int, *, lookahead_limit: int = 10) -> list[list[int]]:
    """Return packs in the given order, where up to `lookahead_limit` samples may be overtaken.

    The budget mode of cosmos-framework's `SequentialPackingBatcher`. A sample that does not fit is
    set aside; a pack closes when it holds something and `lookahead_limit` samples are set aside,
    and these lead the queue of the next pack. With a limit of 0 every sample is a pack of its own.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack stays *below*, in the unit of `lengths`.
        lookahead_limit: How many samples may be set aside before a pack closes.

    Returns:
        Packs of indices, each index at most once; every sum is less than `capacity` (`<`,
        strictly). A sample of `capacity` or more is left out when it leads an empty pack.

    Raises:
        ValueError: The capacity is below 1, the limit is negative, or a length is negative or not a
            whole number.
    """
    sizes, capacity = checked(lengths, capacity)
    if lookahead_limit < 0:
        raise ValueError(f"lookahead_limit is {lookahead_limit}: it is 0 or more")
    packs: list[list[int]] = []
    queue = deque(range(len(sizes)))
    while queue:
        pack: list[int] = []
        skipped: list[int] = []
        total = 0
        while queue and not (pack and len(skipped) >= lookahead_limit):
            index = queue.popleft()
            length = sizes[index]
            if total + length < capacity:
                pack.append(index)
                total += length
            elif pack:
                skipped.append(index)
        queue.extendleft(reversed(skipped))
        if pack:
            packs.append(pack)
    return packs
