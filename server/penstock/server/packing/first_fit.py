"""First fit: every pack stays open, the oldest with room wins."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.server.packing.lengths import LARGEST, Lengths, checked_array
from penstock.server.packing.packs import Packs

BITS = 7
BLOCK = 1 << BITS
"""Packs of a block. 64 to 256 were as fast as each other on 10^6 samples: larger blocks have more
packs with room to choose from, smaller ones are more to look through."""

CHUNK = 8192
"""Lengths that are Python's integers at a time: all of them would take the cache from the packs."""

_MASK = BLOCK - 1


def first_fit(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Return packs where each sample lies in the oldest pack that had room for it.

    This is what LMMS-Engine documents as `first_fit` (its code does `next_fit`). A bisection finds
    the first block of packs with room, another one the packs of this block that have it.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What one pack holds, in the unit of `lengths`.

    Returns:
        Packs of indices, each index once; a pack's sum is at most `capacity` (`<=`), unless it is
        one sample that is longer.

    Raises:
        ValueError: The capacity is below 1, or a length is negative or not a whole number.
    """
    sizes, capacity = checked_array(lengths, capacity)
    if not len(sizes):
        return []
    where, packs = _places(sizes, capacity)
    return list(Packs.of(np.arange(len(sizes)), np.frombuffer(where, dtype=np.int64), packs))


def _places(sizes: npt.NDArray[np.int64], capacity: int) -> tuple[array[int], int]:
    """Return the number of each sample's pack, and how many packs there are."""
    # One long function: calls cost half as much again as all that is done here.
    #
    # A pack's key is its room, above BITS bits that are larger the older it is in its block: of
    # equal rooms the oldest has the largest key, and `need`, a length above BITS zeros, is at most
    # the key of each pack with room. Keys of packs that take nothing more are in no block.
    least, full = int(sizes.min()) << BITS, capacity << BITS
    where, keys = array("q"), list[int]()  # by sample, its pack; by pack, its key
    blocks: list[list[int]] = []  # the keys of each BLOCK packs, sorted
    eldest: list[int] = []  # for each block, a pack before which none takes anything
    # For each block the largest key in it and in those before, or more: rooms shrink, and that is
    # noticed only when a sample looks for one in vain.
    most: list[int] = []
    top = -1  # the last of them
    block: list[int] = []
    age = 0  # of the newest pack in the last block; at 0 it is whole
    for need in _needs(sizes):
        at = bisect_left(most, need) if need <= top else len(most)
        while at < len(blocks):
            block = blocks[at]
            if block and block[-1] >= need:
                break
            largest = block[-1] if block else -1
            most[at] = largest if not at or largest > most[at - 1] else most[at - 1]
            at += 1
        else:
            if most:
                top = most[-1]
            if not age:
                age = BLOCK
                blocks.append([])
                most.append(top)
                eldest.append(len(keys))
            age -= 1
            key = (full | age) - need
            where.append(len(keys))
            keys.append(key)
            if key >= least:
                insort(blocks[-1], key)
                if key > top:
                    top = most[-1] = key
            continue
        key = block.pop()
        if block and block[-1] >= need:  # it is not the only one
            first = bisect_left(block, need)
            if block[first] < key & ~_MASK:  # and not all have the same room
                count = len(block) - first
                if count == 1:
                    if block[first] & _MASK > key & _MASK:
                        key, block[first] = block[first], key
                elif count * count > 2 * len(block):  # so many that the oldest packs have room
                    insort(block, key)
                    pack = eldest[at]
                    while keys[pack] < least:
                        pack += 1
                    eldest[at] = pack
                    while keys[pack] < need:
                        pack += 1
                    key = keys[pack]
                    del block[bisect_left(block, key, first)]
                else:
                    block.append(key)
                    oldest = index = len(block) - 1
                    for index in range(first, oldest):
                        if block[index] & _MASK > block[oldest] & _MASK:
                            oldest = index
                    key = block.pop(oldest)
        pack = (at << BITS) + (key & _MASK ^ _MASK)
        where.append(pack)
        key -= need
        keys[pack] = key
        if key >= least:
            insort(block, key)
    return where, len(keys)


def _needs(sizes: npt.NDArray[np.int64]) -> Iterator[int]:
    """Yield each length above BITS zeros."""
    for start in range(0, len(sizes), CHUNK):
        part = sizes[start : start + CHUNK]
        if part.max() <= LARGEST >> BITS:
            yield from (part << BITS).tolist()
        else:
            yield from (length << BITS for length in part.tolist())
