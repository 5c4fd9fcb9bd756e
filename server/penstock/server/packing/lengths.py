"""What every packing function requires of its arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Lengths = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Lists, tuples, ranges, `array.array`, and NumPy arrays and torch tensors of one dimension."""

Histogram = Sequence[int] | npt.NDArray[np.integer[Any]]
"""How many samples there are of each length, from 0, as `np.bincount` of the lengths gives it."""

LARGEST = 2**62
"""Of a length or a capacity: their sums stay far from where 64 bits end."""

CHUNK = 8192
"""Runs that are Python's integers at a time."""


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
    capacity = _checked_capacity(capacity)
    return _checked(lengths, "lengths", "a length", "sample"), capacity


def checked_histogram(histogram: Histogram, capacity: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return how many samples have each length, int64 (longest + 1,), and the capacity.

    Raises:
        ValueError: The capacity is below 1, a count is negative, one of both is not a whole number
            or above `LARGEST`, or there is more than one dimension.
    """
    capacity = _checked_capacity(capacity)
    return _checked(histogram, "histogram", "a count", "length"), capacity


def _checked_capacity(capacity: int) -> int:
    try:
        capacity = operator.index(capacity)
    except TypeError:
        raise ValueError(f"capacity is {capacity!r}: give a whole number") from None
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}: a pack holds at least 1")
    if capacity > LARGEST:
        raise ValueError(f"capacity is {capacity}: it is at most {LARGEST}")
    return capacity


def _checked(numbers: Any, name: str, each: str, of: str) -> npt.NDArray[np.int64]:
    """Return whole numbers of at least 0 as an array.

    Args:
        numbers: The numbers.
        name: What they are called where they are given.
        each: What one of them is.
        of: What there is one of them for.
    """
    try:
        array = np.asarray(numbers)
    except ValueError:  # lists of unequal lists
        raise ValueError(f"{name} holds lists: give one whole number for each {of}") from None
    if array.ndim != 1:
        raise ValueError(f"{name} has {array.ndim} dimensions: give one whole number for each {of}")
    if array.size and (array.dtype.kind not in "iub" or array.min() < 0 or array.max() > LARGEST):
        for index, number in enumerate(array.tolist() if array.dtype.kind in "iu" else numbers):
            _check(f"{name}[{index}]", number, each)
    return array.astype(np.int64, copy=False)


def _check(place: str, number: Any, each: str) -> None:
    try:
        whole = operator.index(number)
    except TypeError:
        raise ValueError(f"{place} is {number!r}: give a whole number") from None
    if whole < 0:
        raise ValueError(f"{place} is {whole}: {each} is 0 or more")
    if whole > LARGEST:
        raise ValueError(f"{place} is {whole}: {each} is at most {LARGEST}")


def longest_first(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the indices by falling length, int64 (n,); equal lengths keep their order."""
    order = np.arange(len(lengths))
    # NumPy sorts 16 bits by counting, several times as fast as it sorts longer numbers: so by the
    # lowest 16 bits, then by the next. Lengths below 65,536 are sorted in one pass.
    for shift in range(0, int(lengths.max(initial=0)).bit_length(), 16):
        digits = ~(lengths >> shift).astype(np.uint16)  # the largest becomes the lowest
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def runs(sorted_lengths: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (length, how often) for each stretch of equal lengths, in order.

    Args:
        sorted_lengths: Equal ones side by side, int64 (n,).
    """
    if not len(sorted_lengths):
        return
    changes = sorted_lengths[1:] != sorted_lengths[:-1]
    bounds = np.flatnonzero(np.concatenate(([True], changes, [True])))
    yield from _pairs(sorted_lengths[bounds[:-1]], bounds[1:] - bounds[:-1])


def runs_of_histogram(histogram: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (length, how often) for each length that there is, the longest first.

    Args:
        histogram: How many samples there are of each length, from 0, int64 (longest + 1,).
    """
    falling = np.flatnonzero(histogram)[::-1]
    yield from _pairs(falling, histogram[falling])


def _pairs(
    lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    for start in range(0, len(lengths), CHUNK):
        some = slice(start, start + CHUNK)
        yield from zip(lengths[some].tolist(), counts[some].tolist(), strict=True)
