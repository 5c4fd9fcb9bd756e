"""How often each whole number came: exact means, medians and histograms of any number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.server.roles.filling import Numbers

DENSE = 1 << 20
"""Numbers below this are counted in an array, 8 MiB of it at most; larger ones one by one."""


class Spread(NamedTuple):
    """How numbers are spread.

    Attributes:
        least: The smallest.
        mean: Their mean.
        median: The middle one, or half of the sum of the two middle ones.
        most: The largest.
    """

    least: int
    mean: float
    median: float
    most: int

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "min": self.least,
            "mean": round(self.mean, 6),
            "median": self.median,
            "max": self.most,
        }


class Bar(NamedTuple):
    """How many numbers lie in `[start, stop)`."""

    start: int
    stop: int
    height: int


class NumberCounts:
    """Counts whole numbers of at least 0.

    Attributes:
        count: How many there were.
        total: Their sum.
    """

    def __init__(self) -> None:
        self.count = self.total = 0
        self._dense = np.zeros(1, np.int64)
        self._large: Counter[int] = Counter()

    def add(self, numbers: Numbers) -> None:
        """Count some: int64 (n,)."""
        if not len(numbers):
            return
        self.count += len(numbers)
        self.total += int(numbers.sum())
        if int(numbers.max()) >= DENSE:
            large = numbers >= DENSE
            values, counts = np.unique(numbers[large], return_counts=True)
            self._large.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            numbers = numbers[~large]
        found = np.bincount(numbers, minlength=len(self._dense))
        found[: len(self._dense)] += self._dense
        self._dense = found

    def spread(self) -> Spread | None:
        """Return how they are spread; None if there were none."""
        if not self.count:
            return None
        values, counts = self._sorted()
        before = np.cumsum(counts)
        middle = [
            int(values[np.searchsorted(before, rank, side="right")])
            for rank in ((self.count - 1) // 2, self.count // 2)
        ]
        return Spread(int(values[0]), self.total / self.count, sum(middle) / 2, int(values[-1]))

    def histogram(self) -> list[Bar]:
        """Return how many lie between powers of two and their halves: 0, 1, 2, 3, 4, 6, 8, 12, ...

        From the first bar that is not empty to the last.
        """
        if not self.count:
            return []
        values, counts = self._sorted()
        edges = list(_edges(int(values[-1])))
        bars = np.searchsorted(np.array(edges), values, side="right") - 1
        heights = np.zeros(len(edges) - 1, np.int64)
        np.add.at(heights, bars, counts)
        filled = np.flatnonzero(heights)
        return [
            Bar(edges[number], edges[number + 1], int(heights[number]))
            for number in range(int(filled[0]), int(filled[-1]) + 1)
        ]

    def _sorted(self) -> tuple[Numbers, Numbers]:
        """Return the numbers that came, ascending, and how often."""
        small = np.flatnonzero(self._dense)
        large = sorted(self._large)
        values = np.concatenate([small, np.array(large, np.int64)])
        often = np.array([self._large[value] for value in large], np.int64)
        return values, np.concatenate([self._dense[small], often])


def _edges(most: int) -> Iterator[int]:
    """Yield the borders of bars up to the first above a number."""
    yield from (0, 1)
    power = 2
    while True:
        for edge in (power, power + power // 2):
            yield edge
            if edge > most:
                return
        power *= 2


__all__ = ["Bar", "NumberCounts", "Spread"]
