"""Rows of numbers that lie in columns: how long they are, and many of them at once, as arrays.

A job whose items are nothing but such rows, token ids for example, is planned from their lengths
and made by copying them into the batch: no item becomes a Python object of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from penstock.server.roles.context import CollateContext

Indices = npt.NDArray[np.int64]


class SequenceColumns(ABC):
    """What an `IndexedSource` offers beside, if columns of its items are rows of numbers."""

    @abstractmethod
    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of a column's numbers; None = it is not a column of rows of numbers."""

    def waits(self) -> bool:
        """Tell whether reading waits for a network: then it is done ahead, by another thread."""
        return False

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


def tells_lengths(source: object, column: str | None) -> TypeGuard[SequenceColumns]:
    """Tell whether a source has such a column, whose lengths may be the sizes of samples."""
    if column is None or not isinstance(source, SequenceColumns):
        return False
    return source.sequence_dtype(column) is not None


def why_no_length(column: str | None) -> str:
    """Return why an item has no size, where `lengths` gives -1 for it."""
    return f"its {column!r} is missing, or one of the numbers in it"


class ColumnRows(ABC):
    """The rows of a batch, whose samples are still in their columns.

    Attributes:
        lengths: int64 (samples,) for each row: how many numbers its samples have.
        dtypes: The dtype of each column.
    """

    lengths: Sequence[Indices]
    dtypes: Mapping[str, np.dtype[Any]]

    @abstractmethod
    def write(self, column: str, row: int, out: npt.NDArray[Any]) -> None:
        """Write the samples of a row one after another into `out`, which has just that size."""

    def documents(self) -> Sequence[Indices]:
        """Return the lengths of the samples of each row that have any numbers."""
        return [row[row > 0] for row in self.lengths]

    def write_apart(self, column: str, row: int, outs: Iterator[npt.NDArray[Any]]) -> None:
        """Write each sample of a row that has any numbers to a place of its own, the next one."""
        whole = np.empty(int(self.lengths[row].sum()), self.dtypes[column])
        self.write(column, row, whole)
        spread(whole, outs)


def spread(values: npt.NDArray[Any], outs: Iterator[npt.NDArray[Any]]) -> None:
    """Write values to the next places, each as much as it holds; none of these is empty."""
    end = 0
    while end < len(values):
        out = next(outs)
        begin, end = end, end + len(out)
        out[:] = values[begin:end]


class ColumnCollator(ABC):
    """What a `BatchCollator` offers beside, if it needs no sample as an object."""

    @abstractmethod
    def takes_columns(self, columns: Mapping[str, np.dtype[Any] | None]) -> Sequence[str] | None:
        """Return the columns that `collate_columns` needs; None = it cannot do with these.

        Args:
            columns: What samples have, by name: the dtype where it is a row of numbers, else None.
        """

    @abstractmethod
    def collate_columns(self, rows: ColumnRows, context: CollateContext) -> dict[str, Any]:
        """Return what `collate_to_send` of the collator returns for these samples, to the byte.

        Args:
            rows: The rows; all of their columns have the same lengths.
            context: Of the batch.
        """
