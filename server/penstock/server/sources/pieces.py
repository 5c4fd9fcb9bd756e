"""Parts of a file in memory, at their offsets: decoding them cannot fail because of the disk."""

from __future__ import annotations

from typing import Any

from penstock.server.sources.access import require


class Pieces:
    """Some ranges of a file.

    Args:
        size: Bytes of the whole file.
        metadata: What its footer says.
    """

    def __init__(self, size: int, metadata: Any) -> None:
        self.size, self.metadata = size, metadata
        self._pieces: list[tuple[int, bytes]] = []

    def add(self, start: int, data: bytes) -> None:
        """Put bytes where they are in the file."""
        self._pieces.append((start, data))

    def reader(self) -> Any:
        """Return a file for Arrow to read, at its start."""
        return require("pyarrow").PythonFile(_Reader(self), mode="r")

    def read(self, start: int, count: int) -> bytes:
        """Return bytes of the file.

        Raises:
            ValueError: Some of them were not read.
        """
        for first, data in self._pieces:
            if first <= start and start + count <= first + len(data):
                return data[start - first : start - first + count]
        raise ValueError(f"bytes {start} to {start + count} lie where no column should")


class _Reader:
    """The interface that Arrow needs of a Python file."""

    closed = False

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self._at = pieces, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset in the file."""
        self._at = (0, self._at, self._pieces.size)[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the offset in the file."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Read from here on, up to the end of the file."""
        left = self._pieces.size - self._at
        data = self._pieces.read(self._at, left if count < 0 else max(0, min(count, left)))
        self._at += len(data)
        return data

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def close(self) -> None:
        """Nothing is open."""


__all__ = ["Pieces"]
