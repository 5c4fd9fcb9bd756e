"""The iterator of a Loader, batch by batch. It is an object, not a generator.

A generator that has raised an exception is exhausted, which a loop would take for the end of the
data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.client.steps import Batch

if TYPE_CHECKING:
    from penstock.client.reader import Reader


class Batches:
    """Iterates a Loader, or one step of it. It can be used again after any exception.

    Attributes:
        reader: The Loader's reader.
        index: The step; None = all.
    """

    def __init__(self, reader: Reader, index: int | None) -> None:
        self._reader, self._index = reader, index
        self._is_begun = index is not None
        self._is_over = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        reader = self._reader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            reader.begin_pass()
            self._is_begun = True
        offered = reader.offer(self._index)
        if offered is None:
            if self._index is None:
                reader.end_pass()
            self._is_over = True
            raise StopIteration
        # The batch is given by one assignment, and nothing comes after it but the return: CPython
        # runs signal handlers after calls and backward jumps, so not between the two.
        batch, after = offered
        before = reader.at
        try:
            reader.at = after
            return batch
        except BaseException:
            reader.at = before
            raise


__all__ = ["Batches"]
