"""What every packing function asks of its arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Lengths = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Lists, tuples, ranges, `array.array`, and NumPy arrays and torch tensors of one dimension."""

LARGEST = 2**62
"""Of a length or a capacity: their sums stay far from where 64 bits end."""


def checked(lengths: Lengths, capacity: int) -> tuple[list[int], int]:
    """Return lengths and capacity as plain integers.

    Raises:
        ValueError: As `checked_array`.
    """
    array, capacity = checked_array(lengths, capacity)
    return array.tolist(), capacity


def checked_array(lengths: Lengths, capacity: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the lengths, int64 (n,), and the capacity; the array may be the caller's own.

    Args:
        lengths: The length of each sample, in one dimension.
        capacity: What one pack holds.

    Raises:
        ValueError: The capacity is below 1, a length is negative, one of both is not a whole number
            or above `LARGEST`, or there is more than one dimension.
    """
    try:
        capacity = operator.index(capacity)
    except TypeError:
        raise ValueError(f"capacity is {capacity!r}: give a whole number") from None
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}: a pack holds at least 1")
    if capacity > LARGEST:
        raise ValueError(f"capacity is {capacity}: it is at most {LARGEST}")
    try:
        array = np.asarray(lengths)
    except ValueError:  # lists of unequal lists
        raise ValueError("lengths holds lists: give one whole number for each sample") from None
    if array.ndim != 1:
        raise ValueError(
            f"lengths has {array.ndim} dimensions: give one whole number for each sample"
        )
    if array.size and (array.dtype.kind not in "iub" or array.min() < 0 or array.max() > LARGEST):
        for index, length in enumerate(array.tolist() if array.dtype.kind in "iu" else lengths):
            _check(index, length)
    return array.astype(np.int64, copy=False), capacity


def _check(index: int, length: Any) -> None:
    try:
        whole = operator.index(length)
    except TypeError:
        raise ValueError(f"lengths[{index}] is {length!r}: give a whole number") from None
    if whole < 0:
        raise ValueError(f"lengths[{index}] is {whole}: a length is 0 or more")
    if whole > LARGEST:
        raise ValueError(f"lengths[{index}] is {whole}: a length is at most {LARGEST}")


def longest_first(lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the indices by falling length, int64 (n,); equal lengths keep their order."""
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


def runs(sorted_lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (length, how often) for each stretch of equal lengths, in order.

    Args:
        sorted_lengths: Equal ones side by side, int64 (n,).
    """
    starts = np.flatnonzero(np.diff(sorted_lengths, prepend=-1))
    counts = np.diff(starts, append=len(sorted_lengths))
    return list(zip(sorted_lengths[starts].tolist(), counts.tolist(), strict=True))


def packs_of(
    order: npt.NDArray[np.int64], pack: Sequence[int] | npt.NDArray[np.int64], packs: int
) -> list[list[int]]:
    """Return the packs as lists of indices.

    Args:
        order: Indices in the order in which they were packed, int64 (n,).
        pack: Which pack each of them went to, n numbers from 0 to `packs` - 1.
        packs: How many packs there are.
    """
    where = np.asarray(pack, dtype=np.int64)
    # Pack and place in one number: NumPy sorts numbers several times as fast as it sorts places.
    bits = len(where).bit_length()
    keys = where << bits | np.arange(len(where))
    keys.sort()
    ends = np.cumsum(np.bincount(where, minlength=packs))
    return cut(order[keys & ((1 << bits) - 1)], np.concatenate(([0], ends)))


CUT = 4096
"""Packs that are cut out of one list of integers. One list of all would be gone through by each of
the collections that so many new lists set off: 0.26 s instead of 0.38 s for 667,000 packs."""


def cut(flat: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> list[list[int]]:
    """Return what lies between each two bounds that follow each other.

    Python's collector of cycles goes on meanwhile, and takes half of the time: to switch it off is
    the caller's to choose, since it is off for all threads then, and in what they fork for good.

    Args:
        flat: Indices, int64 (n,).
        bounds: Places in `flat`, rising, int64 (packs + 1,).
    """
    packs: list[list[int]] = []
    for first in range(0, len(bounds) - 1, CUT):
        some = bounds[first : first + CUT + 1]
        part: list[int] = flat[some[0] : some[-1]].tolist()
        packs += [part[start:end] for start, end in pairwise((some - some[0]).tolist())]
    return packs


__all__ = [
    "LARGEST",
    "Lengths",
    "checked",
    "checked_array",
    "cut",
    "longest_first",
    "packs_of",
    "runs",
]
