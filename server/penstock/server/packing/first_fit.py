"""First fit: every pack stays open, the oldest with room wins."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.packing.lengths import check_lengths


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return packs where each sample lies in the oldest pack that had room for it.

    This is what LMMS-Engine documents as `first_fit` (its code does `next_fit`). A segment tree
    over the packs holds the largest room below each node, so n samples take O(n log n).

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
    leaves = 1
    while leaves < len(lengths):
        leaves *= 2
    # Packs that are not open yet have all their room, so the leftmost leaf with room is an open
    # pack or the next new one. Node i has children 2i and 2i + 1; the leaves start at `leaves`.
    most_room = [capacity] * (2 * leaves)
    packs: list[list[int]] = []
    for index, length in enumerate(lengths):
        if length > capacity:
            pack, room = len(packs), -1  # nothing may join it, not even length 0
        else:
            node = 1
            while node < leaves:
                node *= 2
                if most_room[node] < length:
                    node += 1
            pack, room = node - leaves, most_room[node] - length
        if pack == len(packs):
            packs.append([])
        packs[pack].append(index)
        _set(most_room, leaves + pack, room)
    return packs


def _set(most_room: list[int], node: int, room: int) -> None:
    most_room[node] = room
    while node > 1:
        node //= 2
        most_room[node] = max(most_room[2 * node], most_room[2 * node + 1])


__all__ = ["first_fit"]
