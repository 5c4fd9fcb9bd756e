"""Which parts of a piece of memory are free: the first that is long enough is taken."""

from __future__ import annotations

from bisect import bisect_left


class FreeSpans:
    """The free spans of one piece of memory; neighbours grow together.

    Args:
        nbytes: How long the piece is.

    Attributes:
        free_bytes: The sum of their lengths.
    """

    def __init__(self, nbytes: int) -> None:
        self._free = [(0, nbytes)]  # (start, length), by start
        self.free_bytes = nbytes

    def take(self, nbytes: int) -> int | None:
        """Return where a span of `nbytes` starts, which is not free from now on; None = nowhere."""
        for index, (start, length) in enumerate(self._free):
            if length >= nbytes:
                rest = [(start + nbytes, length - nbytes)] if length > nbytes else []
                self._free[index : index + 1] = rest
                self.free_bytes -= nbytes
                return start
        return None

    def give_back(self, start: int, nbytes: int) -> None:
        """Free what `take` returned."""
        index = bisect_left(self._free, (start, 0))
        first, stop = start, start + nbytes
        last = index
        if index < len(self._free) and self._free[index][0] == stop:
            stop, last = stop + self._free[index][1], index + 1
        if index and sum(self._free[index - 1]) == start:
            index -= 1
            first = self._free[index][0]
        self._free[index:last] = [(first, stop - first)]
        self.free_bytes += nbytes
