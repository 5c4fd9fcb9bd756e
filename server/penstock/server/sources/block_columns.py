"""Columns of numbers in sources that decode blocks: lengths and spans of many rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.server.roles.number_columns import Indices, SequenceColumns
from penstock.server.sources.cache import BlockRows
from penstock.server.sources.file_blocks import FileBlocks
from penstock.server.sources.requirements import check_indices


class ListRows(Protocol):
    """The decoded rows of a block, as far as columns of numbers are concerned."""

    def length(self, column: str, row: int) -> int:
        """Return how many numbers a row has; -1 where it, or one of them, is missing."""
        ...

    def numbers(self, column: str, row: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return numbers `[start, stop)` of a row that has a length: not to be kept."""
        ...


class BlockColumns(FileBlocks, SequenceColumns):
    """What a source offers that decodes a block for all rows that are wanted of it."""

    def waits(self) -> bool:
        """Tell whether files lie at URLs."""
        return not self.file_set.is_local

    def list_block(self, rows: BlockRows) -> ListRows:
        """Return the columns of a block as they are stored."""
        return cast(ListRows, rows)

    def alone(self, number: int, row: int, index: int) -> ListRows | None:
        """Return a row that is read by itself, as the only one of its columns.

        Args:
            number: Its block.
            row: Which row of the block it is.
            index: Its index, for messages.

        Returns:
            It; None = by default the whole block is read.
        """
        return None

    def list_rows(self, indices: Sequence[int]) -> Iterator[tuple[ListRows, int]]:
        """Yield the block of each item, and the item's row in it; the lock is held."""
        blocks: dict[int, ListRows] = {}
        for index in indices:
            number, row = self.block_of(index)
            if number not in blocks:
                if (alone := self.alone(number, row, index)) is not None:
                    yield alone, 0
                    continue
                blocks[number] = self.list_block(self.rows(number, index))
            yield blocks[number], row

    def lengths(self, column: str, indices: Indices) -> Indices:
        """Return how many numbers rows have; each block is decoded once.

        Raises:
            IndexError, SourceUnavailable, SourceChanged, BadItem: As `fetch`.
        """
        numbers = indices.tolist()
        check_indices(numbers, len(self))
        with self._lock:
            found = [rows.length(column, row) for rows, row in self.list_rows(numbers)]
        return np.array(found, np.int64)

    def gather(
        self, column: str, indices: Indices, starts: Indices, stops: Indices, out: npt.NDArray[Any]
    ) -> None:
        """Write spans of many rows one after another; each block is decoded once.

        Raises:
            IndexError, SourceUnavailable, SourceChanged, BadItem: As `fetch`.
        """
        numbers = indices.tolist()
        check_indices(numbers, len(self))
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        with self._lock:
            found = [
                rows.numbers(column, row, start, stop)
                for (rows, row), (start, stop) in zip(self.list_rows(numbers), spans, strict=True)
            ]
            if found:
                np.concatenate(found, out=out, casting="unsafe")
