"""Which of a rank's own positions have come, and where its log ends."""

from __future__ import annotations

import threading

from penstock.common.prefetch import fitting_ahead
from penstock.wire.order import Share


class Arrivals:
    """What the threads of the streams note of what comes; any thread looks, and takes no lock.

    Args:
        share: Which positions are the rank's own.
        first: The first position that is wanted.
        stop: No position from here on is wanted; None = until the log ends.

    Attributes:
        missing: The first position that has not come.
        largest_bytes: What the largest batch takes that has come, header included.
        fitting: How many batches of that size may be ready ahead, as `fitting_ahead` says.
        end: The first position that will not come; None = not known.
        dropped: How many batches and samples of the log's end fill no step and were left out.
    """

    def __init__(self, share: Share, first: int, stop: int | None) -> None:
        self._share = share
        self._guard = threading.Lock()  # streams of several nodes note at once
        self._later: set[int] = set()  # those above `missing` that have come
        self.missing = first
        self.largest_bytes, self.fitting = 0, fitting_ahead(0)
        self.end = stop
        self.dropped = (0, 0)

    def has(self, position: int) -> bool:
        """Tell whether a position has come, or was given to the consumer."""
        return position < self.missing or position in self._later

    def note(self, position: int, nbytes: int) -> bool:
        """Note that a batch has come that takes so many bytes; tell whether it is the first copy.

        While a lane goes from one node to another both may send one.
        """
        with self._guard:
            if self.has(position):
                return False
            if nbytes > self.largest_bytes:
                self.largest_bytes, self.fitting = nbytes, fitting_ahead(nbytes)
            self._later.add(position)
            while self.missing in self._later:
                self._later.remove(self.missing)
                self.missing = self._share.nth_after(self.missing, 1)
            return True

    def end_at(self, position: int) -> None:
        """Note that no position from here on will come."""
        with self._guard:
            self.end = position if self.end is None else min(self.end, position)

    @property
    def is_complete(self) -> bool:
        """Whether all that is wanted has come."""
        return self.end is not None and self.missing >= self.end
