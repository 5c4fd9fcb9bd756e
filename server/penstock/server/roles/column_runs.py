"""Where a column of items has another value than the item before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ColumnRuns(NamedTuple):
    """Runs of equal values in a column of whole numbers or texts.

    Attributes:
        starts: int64 (n,): the item where each run begins.
        values: The value of each, n of them: whole numbers, or texts.
    """

    starts: NDArray[np.int64]
    values: list[Any]

    @classmethod
    def of(cls, values: Any, first: int) -> ColumnRuns:
        """Return the runs of some items that follow each other.

        Args:
            values: An Arrow array, or a sequence of Python values.
            first: The number of the first of these items.

        Raises:
            ValueError: A value is something else; names the item.
        """
        found = np.asarray(values)  # of an Arrow array, too; one with nulls has floats or objects
        if found.dtype.kind in "iu" and not (found.size and found.max() >= 1 << 63):
            column: NDArray[Any] = found.astype(np.int64)
        else:
            column = np.asarray(values, dtype=object)
            for place, value in enumerate(column.tolist()):
                if not isinstance(value, str):
                    raise ValueError(f"{value!r} in item {first + place}")
        starts = np.flatnonzero(np.concatenate([[len(column) > 0], column[1:] != column[:-1]]))
        return cls(starts + first, column[starts].tolist())

    @classmethod
    def joined(cls, parts: Iterable[ColumnRuns]) -> ColumnRuns:
        """Return the runs of all items, from those of parts of them that follow each other."""
        starts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        values: list[Any] = []
        for part in parts:
            goes_on = bool(values and part.values and values[-1] == part.values[0])
            starts.append(part.starts[goes_on:])
            values += part.values[goes_on:]
        return cls(np.concatenate(starts), values)
