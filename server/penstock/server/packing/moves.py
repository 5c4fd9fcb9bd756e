"""Packing runs of equal lengths: which packs take them, first by counts and then by number.

What the longest-first packings decide depends on how full packs are, and on nothing else: of packs
that are equally full the oldest ones are taken. So a packing says in moves how many packs of a
state take samples and which state they are in afterwards; for that it needs a histogram of the
lengths. Which packs these are is found here, with arrays of pack numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Move = tuple[int, int, int, int, int]
"""What the next samples, longest first, do to packs of one state.

* the state before: what a packing chooses by, such as the room of a pack; `NEW` = they are opened
* the state after it
* how many packs: the oldest ones of the state
* how many samples in a row each of them takes when it is its turn
* how often each of them has its turn: after the last pack comes the first one again
"""

NEW = -1
"""The state of packs that a move opens."""

CLOSED = -2
"""The state of packs that take nothing more."""


def packs_of(moves: Iterable[Move]) -> int:
    """Return how many packs moves open."""
    return sum(packs for before, _, packs, _, _ in moves if before == NEW)


def numbered(moves: Iterable[Move], samples: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return which pack takes each sample, int64 (samples,), and how many packs there are.

    Packs are numbered as they are opened, samples in the order in which they are packed.

    Args:
        moves: What happens, in order, to all of the samples.
        samples: How many there are.
    """
    taken_by = np.empty(samples, dtype=np.int64)
    numbers = np.arange(samples)  # of packs: there are at most as many
    groups: dict[int, npt.NDArray[np.int64]] = {}  # packs of each state, rising
    joining: dict[int, list[npt.NDArray[np.int64]]] = {}  # what is to be merged with these
    opened = start = 0
    for before, after, packs, each, turns in moves:
        if before == NEW:
            taking = numbers[opened : opened + packs]
            opened += packs
        else:
            taking = groups.pop(before)
            # Both packings empty a state before packs come into it again, so this is done once.
            if before in joining:
                taking = np.concatenate([taking, *joining.pop(before)])
                taking.sort()
            if packs < len(taking):
                groups[before] = taking[packs:]
                taking = taking[:packs]
        end = start + packs * each * turns
        if each == turns == 1:
            taken_by[start:end] = taking
        else:
            taken_by[start:end].reshape(turns, packs, each)[:] = taking[:, np.newaxis]
        start = end
        if after in groups:
            joining.setdefault(after, []).append(taking)
        elif after != CLOSED:
            groups[after] = taking
    return taken_by, opened
