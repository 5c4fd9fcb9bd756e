"""First fit: every pack stays open, the oldest with room wins."""

from __future__ import annotations

from bisect import bisect_left

from penstock.server.packing.lengths import Lengths, checked, no_collections

LEVELS = 9
LEAVES = 2**LEVELS
"""Packs of a block. 256 to 1,024 were as fast as each other on 10^6 samples."""


def first_fit(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Return packs where each sample lies in the oldest pack that had room for it.

    This is what LMMS-Engine documents as `first_fit` (its code does `next_fit`). A bisection finds
    the first block of packs with room, and a segment tree over its packs the first of these.

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
    with no_collections():
        return _first_fit(sizes, capacity)


def _first_fit(sizes: list[int], capacity: int) -> list[list[int]]:
    # One long function: calls cost half as much again as all that is done here.
    packs: list[list[int]] = []
    # A segment tree for each LEAVES packs: the room of pack i is at LEAVES + i, and node n holds
    # the most room of the nodes 2n and 2n + 1. Where there is no pack yet, or one that is too long
    # and takes nothing more, the room is -1.
    trees: list[list[int]] = []
    # For each tree the most room in it and in those before, or more: rooms shrink, and that is
    # noticed only when somebody looks for one in vain.
    most: list[int] = []
    levels = range(LEVELS)
    for index, length in enumerate(sizes):
        at = bisect_left(most, length)
        while at < len(trees) and trees[at][1] < length:
            most[at] = max(trees[at][1], most[at - 1] if at else -1)
            at = bisect_left(most, length, at + 1)
        if at == len(trees):
            room = capacity - length
            leaf = len(packs) % LEAVES
            if not leaf:
                trees.append([-1] * (2 * LEAVES))
                most.append(most[-1] if most else -1)
            if room > most[-1]:
                most[-1] = room
            packs.append([index])
            tree, node = trees[-1], LEAVES + leaf
            while node and tree[node] < room:
                tree[node] = room
                node >>= 1
            continue
        tree, node = trees[at], 1
        for _ in levels:
            node += node
            if tree[node] < length:
                node += 1
        packs[at * LEAVES + node - LEAVES].append(index)
        room = tree[node] = tree[node] - length
        while node > 1:
            beside = tree[node ^ 1]
            node >>= 1
            if beside > room:
                room = beside
            if tree[node] == room:  # another pack below has as much: nothing changes above
                break
            tree[node] = room
    return packs


__all__ = ["first_fit"]
