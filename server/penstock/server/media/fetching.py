"""Fetches media ahead of those who decode them, several at once, within a bound of bytes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.media.file_medium import FileMedium


class Fetching:
    """Counts what is read of media.

    Threads may read at the same time.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._read_bytes = 0

    def count_read(self, nbytes: int) -> None:
        """Count bytes that were read from where media lie."""
        with self._changed:
            self._read_bytes += nbytes

    def read_bytes(self) -> int:
        """Return the bytes that were read since the last call."""
        with self._changed:
            count, self._read_bytes = self._read_bytes, 0
        return count

    def look(self, medium: FileMedium) -> bytes | None:
        """Return the bytes of a medium that was fetched; None = it was not."""
        return None

    def take(self, medium: FileMedium) -> bytes | None:
        """Return the bytes of a medium that was fetched, and forget them; None = it was not."""
        return None
