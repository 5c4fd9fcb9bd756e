"""Parts of a medium, each read once: a header that goes on, a span of a long file."""

from __future__ import annotations

import io

from penstock.server.media.bad_sound import BadSound
from penstock.server.media.medium import HEAD_BYTES, Medium

MAX_BLOCKS = 100
"""Places far from each other that a header is read at: each is a request to a store. Recorders and
players write a handful of large chunks, pictures among them."""

_BLOCK = 1 << 18
"""Bytes that a decoder's small reads are made of: a request to a store costs as much as 1 MiB."""


class MediumParts:
    """The bytes of a medium by their places.

    What lies in its head comes from there. Beyond, `Medium.at` reads what is asked for, where a
    medium has its own; else the whole is read, once.

    Args:
        medium: The medium.
    """

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._head = memoryview(medium.head())
        self._all = self._head if len(self._head) < HEAD_BYTES else None
        self._reads_parts = type(medium).at is not Medium.at
        self._block, self._block_at, self._blocks = b"", 0, 0

    def at(self, start: int, stop: int) -> bytes:
        """Return bytes `[start, stop)`, or fewer where the medium ends.

        Raises:
            BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        """
        if self._all is None and stop > len(self._head):
            if self._reads_parts:
                return bytes(self._medium.at(start, stop))
            self.whole()
        return bytes((self._head if self._all is None else self._all)[start:stop])

    def near(self, start: int, stop: int) -> bytes:
        """Return bytes of a header, as `at`: what lies beside each other is read at once.

        Args:
            start: The first byte.
            stop: The byte after the last one, at most 64 KiB on.

        Raises:
            BadSound: Its header lies in too many places.
            BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        """
        if self._all is not None or not self._reads_parts or stop <= len(self._head):
            return self.at(start, stop)
        if not self._block_at <= start <= stop <= self._block_at + len(self._block):
            self._blocks += 1
            if self._blocks > MAX_BLOCKS:
                raise BadSound(
                    f"its header lies in more than {MAX_BLOCKS} places that are "
                    f"{HEAD_BYTES >> 10} KiB apart: it was made to be slow"
                )
            self._block, self._block_at = self.at(start, start + HEAD_BYTES), start
        return self._block[start - self._block_at : stop - self._block_at]

    def size(self) -> int:
        """Return how many bytes there are."""
        if self._all is None and self._reads_parts:
            return self._medium.size()
        return len(self.whole())

    def whole(self) -> memoryview:
        """Return all bytes."""
        if self._all is None:
            self._all = memoryview(self._medium.read())
        return self._all

    def open(self, start: int, stop: int) -> PartFile | io.BytesIO:
        """Return bytes `[start, stop)` as a file: where all are there already, one of C's own."""
        if self._all is None and self._reads_parts:
            return PartFile(self, start, stop)
        return io.BytesIO(self.whole()[start:stop])


class PartFile:
    """A part of a medium as a decoder reads it: a file that is sought and read into buffers.

    An error of storage passes through a decoder written in C as the end of the file, so it is kept.

    Args:
        parts: The medium.
        start: The first byte of the part.
        stop: The byte after its last one.

    Attributes:
        failure: What went wrong when a part was read; None = nothing.
    """

    def __init__(self, parts: MediumParts, start: int, stop: int) -> None:
        self._parts, self._start, self._stop = parts, start, stop
        self._at = start
        self._block, self._block_at = b"", 0
        self.failure: Exception | None = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: self._start, io.SEEK_CUR: self._at, io.SEEK_END: self._stop}[whence]
        self._at = max(self._start, min(base + offset, self._stop))
        return self.tell()

    def tell(self) -> int:
        """Return the place, counted from the part's beginning."""
        return self._at - self._start

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer as far as there are bytes, and return how many it got."""
        count = min(len(buffer), self._stop - self._at)
        if self.failure is not None or count <= 0:
            return 0
        offset = self._at - self._block_at
        if not 0 <= offset <= len(self._block) - count:
            try:
                stop = min(self._at + max(count, _BLOCK), self._stop)
                self._block, self._block_at = self._parts.at(self._at, stop), self._at
            except Exception as error:
                self.failure = error
                return 0
            offset = 0
        found = self._block[offset : offset + count]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def failure(file: PartFile | io.BytesIO) -> Exception | None:
    """Return what went wrong when a file was read; None = nothing."""
    return file.failure if isinstance(file, PartFile) else None
