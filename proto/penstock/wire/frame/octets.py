"""Bytes as they are: views without copies, their checksum, and protobuf's fields read by hand.

Messages with a body are written and read here, byte for byte as protobuf would, because protobuf
copies a chunk twice more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import google_crc32c
import numpy as np

from penstock.wire.errors import BadFrame
from penstock.wire.value_types import NDArray

Buffer: TypeAlias = "bytes | bytearray | memoryview | NDArray"

extend_crc32c: Callable[[int, NDArray | bytes], int] = google_crc32c.extend
"""`(crc32c of what came before, bytes) -> crc32c`. It takes no memoryview, but arrays over one."""

_MAX_GROUP_DEPTH = 100


def octets(buffer: Any) -> NDArray:
    """Return the bytes of a contiguous buffer as a flat uint8 array; writable if the buffer is."""
    view = memoryview(buffer)
    # NumPy and memoryview each refuse to flatten nothing.
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def crc32c(body: Buffer, crc: int = 0) -> int:
    """Return the crc32c of contiguous bytes that follow those of `crc`, without copying them."""
    return extend_crc32c(crc, octets(body))


def refuse(message: str) -> NoReturn:
    """Refuse what came from the other side.

    Raises:
        BadFrame: Always.
    """
    raise BadFrame(f"{message}; check that both sides run the same version")


# --- the fields of a message ---


def uvarint(value: int) -> bytes:
    """Return a number that is not negative as protobuf writes it."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it.

    Raises:
        BadFrame: It does not end before `end`, or is too long.
    """
    if at < end and (byte := view[at]) < 0x80:
        return byte, at + 1  # most are this short
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    refuse("a message of the feed ends within a number, or a number is too long")


def read_tag(view: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Return the number of the field at a place, its wire type, and the place after its tag.

    Raises:
        BadFrame: No field has such a tag.
    """
    if at < end and 8 <= (tag := view[at]) < 0x80:
        return tag >> 3, tag & 7, at + 1  # most are this short
    tag, at = read_varint(view, at, end)
    if not 8 <= tag < 1 << 32:
        refuse(f"a message of the feed has the tag {tag}, which protobuf does not know")
    return tag >> 3, tag & 7, at


def read_length(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return where the data of a length-delimited field begin, and where they end.

    Raises:
        BadFrame: They end after `end`.
    """
    length, at = read_varint(view, at, end)
    if length > end - at:
        refuse(
            f"a message of the feed is cut: {length} bytes are announced and {end - at} are there"
        )
    return at, at + length


def skip_field(view: memoryview, at: int, end: int, field: int, wire: int) -> int:
    """Return the place after a field whose data nobody here knows.

    Args:
        view: The message.
        at: The place after the field's tag.
        end: Where the message ends.
        field: The number of the field.
        wire: Its wire type.

    Raises:
        BadFrame: It does not end before `end`, or no field can look like it.
    """
    groups = [field] if wire == 3 else []
    if wire != 3:
        at = _skip_plain(view, at, end, wire)
    while groups:
        field, wire, at = read_tag(view, at, end)
        if wire == 3:
            groups.append(field)
            if len(groups) > _MAX_GROUP_DEPTH:
                refuse(f"a message of the feed nests groups deeper than {_MAX_GROUP_DEPTH}")
        elif wire == 4:
            if groups.pop() != field:
                refuse("a message of the feed ends a group that it did not begin")
        else:
            at = _skip_plain(view, at, end, wire)
    return at


def _skip_plain(view: memoryview, at: int, end: int, wire: int) -> int:
    if wire == 0:
        return read_varint(view, at, end)[1]
    if wire == 2:
        return read_length(view, at, end)[1]
    if wire not in (1, 5):
        refuse(
            f"a message of the feed has a field of the wire type {wire}, which cannot stand there"
        )
    at += 8 if wire == 1 else 4
    if at > end:
        refuse("a message of the feed ends within a number")
    return at
