"""Which of several sets of roles makes a batch: decided by its step, in exact shares.

Positions are cut into turns of `together` consecutive ones, and all batches of a turn come from one
set. The turns are dealt to classes, turn s to class `s mod classes`; a class goes through blocks of
turns, in each of which every set has exactly its share, in a random order of that block. There are
as many classes as it takes for the turns that a lane meets to follow a pattern: so how often a lane
has had a set is known from its offset alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd

import numpy as np

from penstock.server.core.permutation import Permutation
from penstock.server.core.shares import largest_remainder, whole_weights

MAX_BLOCK = 1000
"""Turns in a block at most: shares that need more are rounded to thousandths."""

_BLOCKS = 256
"""Blocks kept, each a list of at most `MAX_BLOCK` numbers."""


def shares_in_block(ratios: Sequence[float]) -> list[int]:
    """Return the least whole numbers in the proportion of the ratios, each at least 1.

    Args:
        ratios: Positive numbers; 0.7 is taken as it is written, for 7/10.

    Returns:
        How many turns of a block each has. If their sum were above `MAX_BLOCK` they are rounded,
        by largest remainder, to a sum of `MAX_BLOCK`, or one for each.
    """
    counts = list(_whole(ratios))
    if sum(counts) <= MAX_BLOCK:
        return counts
    return by_largest_remainder(ratios, max(MAX_BLOCK, len(ratios)))


def by_largest_remainder(ratios: Sequence[float], total: int) -> list[int]:
    """Return whole numbers of a sum in the proportion of the ratios, as `largest_remainder`.

    Raises:
        ValueError: There are more ratios than the total.
    """
    if len(ratios) > total:
        raise ValueError(f"{total} cannot be dealt to {len(ratios)}")
    return largest_remainder(_whole(ratios), total)


def _whole(ratios: Sequence[float]) -> tuple[int, ...]:
    """Return the least whole numbers in the proportion of positive ratios, as they are written."""
    return whole_weights([Fraction(str(ratio)) for ratio in ratios], Fraction(1))


class Choices:
    """Which set makes each batch of a job.

    Args:
        shares: How many turns of a block each set has.
        lanes: The job's lanes.
        together: How many consecutive positions are of one set: the batches of a step, or 1.
        seed: The job's seed.
    """

    def __init__(self, shares: Sequence[int], lanes: int, together: int, seed: int) -> None:
        self._shares, self._lanes, self._together, self._seed = shares, lanes, together, seed
        self._sets = np.repeat(np.arange(len(shares)), shares).tolist()
        self._classes = lanes // gcd(lanes, together)
        self._period = together // gcd(lanes, together)  # offsets after which a lane's turns repeat
        self._block = lru_cache(_BLOCKS)(self._make_block)

    def of_turn(self, turn: int) -> int:
        """Return the number of the set that makes the batches of a turn."""
        index, of_class = divmod(turn, self._classes)
        block, place = divmod(index, len(self._sets))
        return self._block(of_class, block)[place]

    def at(self, lane: int, offset: int) -> int:
        """Return the number of the set that makes a batch."""
        return self.of_turn((offset * self._lanes + lane) // self._together)

    def uses(self, lane: int, offset: int) -> list[int]:
        """Return how many batches of a lane before an offset each set has made."""
        found = [0] * len(self._shares)
        periods, rest = divmod(offset, self._period)
        for phase in range(min(self._period, offset)):
            of_class = (phase * self._lanes + lane) // self._together
            for number, count in enumerate(self._counted(of_class, periods + (phase < rest))):
                found[number] += count
        return found

    def _counted(self, of_class: int, turns: int) -> list[int]:
        """Return how many of the first turns of a class each set has."""
        blocks, rest = divmod(turns, len(self._sets))
        part = self._block(of_class, blocks)[:rest]
        return [blocks * share + part.count(number) for number, share in enumerate(self._shares)]

    def offset_of_use(self, lane: int, number: int, use: int) -> int:
        """Return the offset at which a lane has a set for the use-th time, counted from 0."""
        low, high = use, 1 + use
        while self.uses(lane, high)[number] <= use:
            low, high = high, 2 * high
        while low + 1 < high:
            middle = (low + high) // 2
            if self.uses(lane, middle)[number] <= use:
                low = middle
            else:
                high = middle
        return high - 1

    def _make_block(self, of_class: int, block: int) -> list[int]:
        order = Permutation(len(self._sets), self._seed, block, f"sets {of_class}")
        return [self._sets[order[place]] for place in range(len(self._sets))]
