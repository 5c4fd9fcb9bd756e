"""What a packing function returns: the indices of each pack, cut out on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

CUT = 4096
"""Packs that are cut out of one list of integers."""


class Packs(Sequence[list[int]]):
    """Packs of indices: reads as a list of lists does, and is held as two arrays.

    A million lists of Python's would take more memory than time to pack them, and Python's
    collector of cycles would go through them again and again while they become more.

    Args:
        indices: What is packed, pack by pack, int64 (n,).
        bounds: Where in it each pack begins, and n, rising, int64 (packs + 1,).
    """

    def __init__(self, indices: Indices, bounds: Indices) -> None:
        self.indices, self.bounds = indices, bounds

    @classmethod
    def of(cls, order: Indices, pack: Sequence[int] | Indices, packs: int) -> Packs:
        """Return packs, given where each sample went.

        Args:
            order: Indices in the order in which they were packed, int64 (n,).
            pack: Which pack each of them went to, n numbers from 0 to `packs` - 1.
            packs: How many packs there are.
        """
        where = np.asarray(pack, dtype=np.int64)
        ends = np.cumsum(np.bincount(where, minlength=packs))
        bounds = np.concatenate(([0], ends))
        if packs <= 1 << 16:  # NumPy sorts numbers of 16 bits by radix
            return cls(order[np.argsort(where.astype(np.uint16), kind="stable")], bounds)
        # Pack and index in one number: NumPy sorts numbers several times as fast as pairs.
        bits = len(where).bit_length()
        keys = where << bits | np.arange(len(where))
        keys.sort()
        return cls(order[keys & ((1 << bits) - 1)], bounds)

    def __len__(self) -> int:
        """Return how many packs there are."""
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, number: int) -> list[int]: ...
    @overload
    def __getitem__(self, number: slice) -> list[list[int]]: ...
    def __getitem__(self, number: int | slice) -> list[int] | list[list[int]]:
        """Return a pack, or several."""
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        pack = range(len(self))[number]  # so an index below 0, or too high, means what it does
        found: list[int] = self.indices[self.bounds[pack] : self.bounds[pack + 1]].tolist()
        return found

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the packs."""
        for first in range(0, len(self), CUT):
            bounds = self.bounds[first : first + CUT + 1]
            part = self.indices[bounds[0] : bounds[-1]].tolist()
            for start, end in pairwise((bounds - bounds[0]).tolist()):
                yield part[start:end]

    def __eq__(self, other: object) -> bool:
        """Tell whether another sequence holds the same packs in the same order."""
        if isinstance(other, Packs):
            return np.array_equal(self.bounds, other.bounds) and np.array_equal(
                self.indices, other.indices
            )
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(list.__eq__, self, map(list, other)))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        """Return the packs as a list shows them; of many, the first."""
        return repr(list(self)) if len(self) <= 8 else f"<{len(self)} packs: {self[:8]}...>"
