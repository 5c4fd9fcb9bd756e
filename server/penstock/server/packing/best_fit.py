"""Best fit decreasing: longest first, each into the tightest pack."""

from __future__ import annotations

from penstock.server.packing.lengths import Lengths, checked_array, longest_first, runs
from penstock.server.packing.packs import Packs

_BITS = 6  # a word of the tree below is 64 bits: one machine word in CPython's integers


def best_fit_decreasing(lengths: Lengths, capacity: int) -> Packs:
    """Return packs where each sample, longest first, went where the least room was left over.

    The packing of "Fewer Truncations Improve Language Modeling" (Ding et al., 2024), which finds
    the tightest pack in a tree over the rooms. Packs of equal room: the oldest one.

    Samples of equal length are packed together: the tightest room that holds one is still the
    tightest after it, as long as it holds another, so its pack takes as many as fit at once, and
    then the other packs of that room do.

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
    order = longest_first(sizes)
    state = _Packs(capacity)
    for length, count in runs(sizes[order]):
        state.add(length, count)
    return Packs.of(order, state.taken_by, state.packs)


class _Packs:
    """The open packs by their room, and which pack took each sample, in the order of packing."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.packs = 0
        self.taken_by: list[int] = []
        self._rooms = _Rooms(capacity)
        self._by_room: dict[int, list[int]] = {}  # packs of a room; sorted when they are taken

    def add(self, length: int, count: int) -> None:
        """Pack `count` samples of one length, none shorter than any before."""
        if length > self.capacity:  # alone, and open to nothing, not even to length 0
            self.taken_by += self._new(count)
            return
        while count and (room := self._rooms.at_least(length)) is not None:
            count = self._into(self._take(room), room, length, count)
        if count:
            each = self.capacity // length if length else count
            packs = self._new(-(-count // each))
            self._into(packs, self.capacity, length, count)

    def _into(self, packs: list[int], room: int, length: int, count: int) -> int:
        """Fill packs of equal room, oldest first; return how many samples are left."""
        each = min(count, room // length) if length else count
        full = min(len(packs), count // each)
        if each == 1:
            self.taken_by += packs[:full]
        else:
            self.taken_by += [pack for pack in packs[:full] for _ in range(each)]
        self._put(room - each * length, packs[:full])
        count -= full * each
        if count and full < len(packs):  # the last samples do not fill the next pack
            self.taken_by += [packs[full]] * count
            self._put(room - count * length, packs[full : full + 1])
            full, count = full + 1, 0
        self._put(room, packs[full:])
        return count

    def _new(self, count: int) -> list[int]:
        self.packs += count
        return list(range(self.packs - count, self.packs))

    def _take(self, room: int) -> list[int]:
        self._rooms.remove(room)
        packs = self._by_room.pop(room)
        packs.sort()
        return packs

    def _put(self, room: int, packs: list[int]) -> None:
        if not packs:
            return
        if (there := self._by_room.get(room)) is not None:
            there += packs
        else:
            self._by_room[room] = packs
            self._rooms.add(room)


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
