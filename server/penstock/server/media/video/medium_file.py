"""A medium as a demuxer reads it: a file that is sought, and read in blocks."""

from __future__ import annotations

import io

from penstock.server.media.medium import Medium

FIRST_BLOCK_BYTES, LARGEST_BLOCK_BYTES = 64 << 10, 1 << 20
"""After a jump so much is read at once, and twice as much each time that reading goes on."""


class MediumFile:
    """The bytes of a medium as a file.

    An error of storage passes through libav as the end of the file or as damage, so it is kept.

    Args:
        medium: The medium.

    Attributes:
        failure: What went wrong when a part was read; None = nothing.
    """

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._size = medium.size()
        self._at = 0
        self._block, self._block_at = b"", 0
        self._block_bytes = FIRST_BLOCK_BYTES
        self.failure: Exception | None = None

    def seekable(self) -> bool:
        """Tell that it can be sought."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return bytes from the place on, at most `count`; nothing = the end, or a failure."""
        left = max(0, self._size - self._at)
        count = left if count < 0 else min(count, left)
        if self.failure is not None or count == 0:
            return b""
        offset = self._at - self._block_at
        if not 0 <= offset < len(self._block):
            self._fill(count)
            offset = self._at - self._block_at
        found = self._block[offset : offset + count]
        self._at += len(found)
        return found

    def _fill(self, count: int) -> None:
        goes_on = self._at == self._block_at + len(self._block)
        grown = min(2 * self._block_bytes, LARGEST_BLOCK_BYTES)
        self._block_bytes = grown if goes_on else FIRST_BLOCK_BYTES
        stop = min(self._at + max(count, self._block_bytes), self._size)
        try:
            block = bytes(self._medium.available(self._at, stop))
        except Exception as error:  # raised by whoever called libav: see `failure`
            self.failure = error
            block = b""
        self._block, self._block_at = block, self._at
