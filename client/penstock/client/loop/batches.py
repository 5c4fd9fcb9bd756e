"""The iterator of a Loader, batch by batch. It is an object, not a generator.

A generator that has raised an exception is exhausted, which a loop would take for the end of the
data.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.loop.passes import Passes
from penstock.client.loop.reader import LoopReader
from penstock.client.loop.steps import Batch


class Batches:
    """Iterates a Loader, or one step of it. It can be used again after any exception.

    Args:
        reader: Of the Loader.
        passes: Begins and ends the iteration; None = this is one of a step.
        index: The step; None = all.
    """

    def __init__(self, reader: LoopReader, passes: Passes | None, index: int | None = None) -> None:
        self._reader, self._passes, self._index = reader, passes, index
        self._is_begun = self._is_over = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        reader = self._reader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            if self._passes is not None:
                self._passes.begin()
            self._is_begun = True
        offered = reader.offer(self._index)
        if offered is None:
            if self._passes is not None:
                self._passes.end()
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
