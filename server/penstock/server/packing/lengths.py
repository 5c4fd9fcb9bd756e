"""What every packing function requires of its arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
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


def longest_first(lengths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the indices by falling length, int64 (n,); equal lengths keep their order."""
    values = np.asarray(lengths, dtype=np.int64)
    most = int(values.max(initial=0))
    # NumPy sorts numbers of 16 bits by radix, six times as fast.
    falling = (most - values).astype(np.uint16) if most < 1 << 16 else -values
    return np.argsort(falling, kind="stable")


def runs(sorted_lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (length, how often) for each stretch of equal lengths, in order.

    Args:
        sorted_lengths: Equal ones side by side, int64 (n,).
    """
    starts = np.flatnonzero(np.diff(sorted_lengths, prepend=-1))
    counts = np.diff(starts, append=len(sorted_lengths))
    return list(zip(sorted_lengths[starts].tolist(), counts.tolist(), strict=True))


__all__ = [
    "LARGEST",
    "Lengths",
    "checked",
    "checked_array",
    "longest_first",
    "runs",
]
