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
        if int(numbers.max()) >= DENSE:
            large = numbers >= DENSE
            self.add_counted(*np.unique(numbers[large], return_counts=True))
            numbers = numbers[~large]
        counts = np.bincount(numbers)
        values = np.flatnonzero(counts)
        self.add_counted(values, counts[values])

    def add_counted(self, values: Numbers, counts: Numbers) -> None:
        """Count numbers that came so many times each: int64 (n,) both, no value twice."""
        self.count += int(counts.sum())
        self.total += int((values * counts).sum())
        is_large = values >= DENSE
        pairs = zip(values[is_large].tolist(), counts[is_large].tolist(), strict=True)
        for value, count in pairs:
            self._large[value] += count
        small = values[~is_large]
        most = int(small.max(initial=-1)) + 1
        if most > len(self._dense):
            grown = np.zeros(most, np.int64)
            grown[: len(self._dense)] = self._dense
            self._dense = grown
        self._dense[small] += counts[~is_large]

    def merge(self, other: NumberCounts, times: int = 1) -> None:
        """Take in what another has counted, so many times."""
        values, counts = other.to_arrays()
        self.add_counted(values, counts * times)

    def to_arrays(self) -> tuple[Numbers, Numbers]:
        """Return the numbers that came, ascending, and how often: int64 (n,) both."""
        small = np.flatnonzero(self._dense)
        large = sorted(self._large)
        often = np.array([self._large[value] for value in large], np.int64)
        values = np.concatenate([small, np.array(large, np.int64)])
        return values, np.concatenate([self._dense[small], often])

    def spread(self) -> Spread | None:
        """Return how they are spread; None if there were none."""
        if not self.count:
            return None
        values, counts = self.to_arrays()
        before = np.cumsum(counts)
        middle = [
            int(values[np.searchsorted(before, rank, side="right")])
            for rank in ((self.count - 1) // 2, self.count // 2)
        ]
        return Spread(int(values[0]), self.total / self.count, sum(middle) / 2, int(values[-1]))

    def histogram(self) -> list[Bar]:
        """Return how many lie between powers of two and their halves: 0, 1, 2, 3, 4, 6, 8, 12, ...

        From the first bar that is not empty to the last, which ends after the largest number.
        """
        if not self.count:
            return []
        values, counts = self.to_arrays()
        most = int(values[-1])
        edges = list(_edges(most))
        bars = np.searchsorted(np.array(edges), values, side="right") - 1
        heights = np.zeros(len(edges) - 1, np.int64)
        np.add.at(heights, bars, counts)
        filled = np.flatnonzero(heights)
        return [
            Bar(edges[number], min(edges[number + 1], most + 1), int(heights[number]))
            for number in range(int(filled[0]), int(filled[-1]) + 1)
        ]


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
