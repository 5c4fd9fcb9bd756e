"""The messages of an Arrow stream or file: where each lies, without decoding what is in it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.server.files.content import ReadAt

MAGIC = b"ARROW1"
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_HEAD_BYTES = 16 << 10  # one read brings most messages' metadata whole


class Message(NamedTuple):
    """A message of an Arrow stream, not decoded.

    Attributes:
        start: Where it starts in the file, in bytes.
        stop: Where it ends, its body included.
        kind: 1 = a schema, 2 = a dictionary, 3 = a record batch.
        rows: The rows of a record batch.
        is_compressed: Whether the buffers of a record batch are.
    """

    start: int
    stop: int
    kind: int
    rows: int
    is_compressed: bool


def messages(read_at: ReadAt, size: int) -> Iterator[Message]:
    """Yield the messages of an Arrow stream, or of an Arrow file up to its footer.

    The layout is that of the Arrow columnar format, "Serialization and Interprocess Communication
    (IPC)", format version 1.0: a file is a stream between two magic words, with a footer. Only what
    stands before the messages' bodies is read.

    Raises:
        ValueError: It is neither.
    """
    at = 8 if read_at(0, min(size, 8)).startswith(MAGIC) else 0
    while at + 4 <= size:
        head = read_at(at, min(size, at + _HEAD_BYTES))
        length, prefix = int.from_bytes(head[:4], "little"), 4
        if length == 0xFFFFFFFF:
            length, prefix = int.from_bytes(head[4:8], "little"), 8
        if length == 0:
            return
        if at + prefix + length > size:
            raise ValueError(f"a message at byte {at} goes on beyond the end of the file")
        if prefix + length > len(head):
            head = read_at(at, at + prefix + length)
        try:
            message = _FlatTable(head[prefix : prefix + length])
            body = message.number(3, "<q")
            kind, header = message.number(1, "<B"), message.table(2)
            rows = header.number(0, "<q") if kind == BATCH else 0
            compressed = kind == BATCH and header.table(3).is_there
        except (struct.error, IndexError) as error:
            raise ValueError(f"the message at byte {at} is damaged: {error}") from None
        stop = at + prefix + length + body
        if kind not in (SCHEMA, DICTIONARY, BATCH) or body < 0 or rows < 0 or stop > size:
            raise ValueError(f"there is no Arrow message at byte {at}")
        yield Message(at, stop, kind, rows, compressed)
        at = stop


class _FlatTable:
    """A table of FlatBuffers (flatbuffers.dev, "Internals"): only what a message's head needs."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self._data = data
        self._at = struct.unpack_from("<I", data)[0] if at is None else at

    @property
    def is_there(self) -> bool:
        return self._at > 0

    def number(self, field: int, kind: str) -> int:
        """Return a scalar; 0, its default, where it is not written."""
        place = self._field(field)
        return int(struct.unpack_from(kind, self._data, place)[0]) if place else 0

    def table(self, field: int) -> _FlatTable:
        """Return the table that a field points to."""
        place = self._field(field)
        if not place:
            return _FlatTable(self._data, 0)
        return _FlatTable(self._data, place + int(struct.unpack_from("<I", self._data, place)[0]))

    def _field(self, field: int) -> int:
        if not self._at:
            return 0
        vtable = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        (length,) = struct.unpack_from("<H", self._data, vtable)
        slot = 4 + 2 * field
        if slot + 2 > length:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, vtable + slot)
        return self._at + int(offset) if offset else 0
