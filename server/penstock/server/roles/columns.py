"""Rows of numbers that lie in columns: how long they are, and many of them at once, as arrays.

A job whose items are nothing but such rows, token ids for example, is planned from their lengths
and made by copying them into the batch: no item becomes a Python object of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class SequenceColumns(ABC):
    """What an `IndexedSource` offers beside, if columns of its items are rows of numbers."""

    @abstractmethod
    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of a column's numbers; None = it is not a column of rows of numbers."""

    @abstractmethod
    def lengths(self, column: str, indices: Indices) -> Indices:
        """Return how many numbers the rows of some items have: int64 (k,).

        Args:
            column: One that has a `sequence_dtype`.
            indices: Which items, int64 (k,).

        Returns:
            The lengths; -1 where an item has no such row, or one with missing numbers.

        Raises:
            SourceUnavailable, SourceChanged, BadItem: As `IndexedSource.fetch`.
        """

    @abstractmethod
    def gather(
        self, column: str, indices: Indices, starts: Indices, stops: Indices, out: npt.NDArray[Any]
    ) -> None:
        """Write numbers `[start, stop)` of the rows of some items one after another into `out`.

        Args:
            column: One that has a `sequence_dtype`.
            indices: Which items, int64 (k,).
            starts: The first number of each, int64 (k,).
            stops: Where each ends, int64 (k,), at most its length.
            out: As many numbers as these are together; another dtype is cast to.

        Raises:
            SourceUnavailable, SourceChanged, BadItem: As `IndexedSource.fetch`.
        """


__all__ = ["Indices", "SequenceColumns"]
