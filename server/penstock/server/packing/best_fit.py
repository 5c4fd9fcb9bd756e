"""Best fit decreasing: longest first, each into the tightest pack."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from penstock.server.packing.lengths import check_lengths, longest_first

_BITS = 6  # a word of the tree below is 64 bits: one machine word in CPython's integers


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return packs where each sample, longest first, went where the least room was left over.

    The packing of "Fewer Truncations Improve Language Modeling" (Ding et al., 2024), which finds
    the tightest pack in a tree over the rooms. Packs of equal room: the oldest one.

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
    packs: list[list[int]] = []
    rooms = _Rooms(capacity)
    by_room: dict[int, list[int]] = {}  # room -> heap of the packs that have exactly this room
    for index in longest_first(lengths):
        length = lengths[index]
        room = rooms.at_least(length)
        if room is None:
            pack, room = len(packs), capacity
            packs.append([])
        else:
            pack = heapq.heappop(by_room[room])
            if not by_room[room]:
                rooms.remove(room)
        packs[pack].append(index)
        room -= length
        if room >= 0:  # a sample longer than the capacity leaves a pack that takes nothing more
            heapq.heappush(by_room.setdefault(room, []), pack)
            rooms.add(room)
    return packs


class _Rooms:
    """A set of integers in `[0, largest]` that answers "the smallest member that is at least n".

    A tree of 64-bit words, kept only where members are: each operation takes as many steps as the
    largest member has groups of six bits, and memory grows with the members, not with the range.
    """

    def __init__(self, largest: int) -> None:
        self.levels: list[dict[int, int]] = [{}]
        while largest >> (_BITS * len(self.levels)):
            self.levels.append({})

    def add(self, value: int) -> None:
        for words in self.levels:
            word, bit = value >> _BITS, 1 << (value & (1 << _BITS) - 1)
            words[word] = words.get(word, 0) | bit
            value = word

    def remove(self, value: int) -> None:
        for words in self.levels:
            word, bit = value >> _BITS, 1 << (value & (1 << _BITS) - 1)
            words[word] &= ~bit
            if words[word]:
                return
            del words[word]
            value = word

    def at_least(self, value: int) -> int | None:
        for level, words in enumerate(self.levels):
            word = value >> _BITS
            # Bits from this one upwards; -1 << n is an endless row of ones above n zeros.
            found = words.get(word, 0) & (-1 << (value & (1 << _BITS) - 1))
            if found:
                value = word << _BITS | (found & -found).bit_length() - 1
                for lower in reversed(self.levels[:level]):
                    bits = lower[value]
                    value = value << _BITS | (bits & -bits).bit_length() - 1
                return value
            value = word + 1
        return None


__all__ = ["best_fit_decreasing"]
