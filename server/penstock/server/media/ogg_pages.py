"""The pages of an Ogg file, with their checksums: what is missing or damaged is noticed (RFC 3533).

libsndfile leaves damaged pages out without a word, and gives a shorter sound.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from penstock.server.media.bad_sound import BadSound
from penstock.server.media.parts import MediumParts

_HEADER = struct.Struct("<4sBBqIIIB")
_MOST = 27 + 255 + 255 * 255
"""Bytes of a page."""

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OggPage(NamedTuple):
    """One page.

    Attributes:
        begins: A stream begins with it.
        ends: A stream ends with it.
        position: How many points have come when its last packet ends; -1 = no packet ends in it.
        serial: Of its stream.
        number: Of the page within it.
        packet: What it holds; of a page with which a stream begins that is one packet.
        size: Its bytes.
    """

    begins: bool
    ends: bool
    position: int
    serial: int
    number: int
    packet: bytes
    size: int


def read_page(data: bytes | memoryview, at: int) -> OggPage:
    """Return the page that begins at a place.

    Raises:
        BadSound: There is none, or it is damaged.
    """
    head = bytes(data[at : at + 27 + 255])
    if len(head) < _HEADER.size or head[:4] != b"OggS" or head[4]:
        raise BadSound(f"it has no ogg page at byte {at:,}, where one should begin")
    _, _, flags, position, serial, number, checksum, count = _HEADER.unpack(head[:27])
    body = sum(head[27 : 27 + count])
    size = 27 + count + body
    page = bytes(data[at : at + size])
    if len(page) < size:
        raise BadSound("it ends within an ogg page: it was cut")
    if _checksum(page[:22] + bytes(4) + page[26:]) != checksum:
        raise BadSound(f"its ogg page at byte {at:,} is damaged: its checksum is another")
    packet = page[27 + count :]
    return OggPage(bool(flags & 2), bool(flags & 4), position, serial, number, packet, size)


def last_page(parts: MediumParts, serial: int) -> int:
    """Return the position that the last page of a file has: how many points there are.

    Raises:
        BadSound: The file does not end with a page that ends the stream.
    """
    size = parts.size()
    start = max(0, size - _MOST)
    tail = parts.at(start, size)
    at = tail.rfind(b"OggS")
    while at >= 0:
        try:
            page = read_page(tail, at)
        except BadSound:
            page = None
        if page is not None and at + page.size == len(tail):
            if page.serial != serial:
                raise BadSound("it holds several ogg streams: give one to a file")
            if not page.ends or page.position < 0:
                raise BadSound("its last ogg page does not end the stream: it was cut")
            return page.position
        at = tail.rfind(b"OggS", 0, at)
    raise BadSound("it does not end with an ogg page: it was cut, or something was added to it")


def check_pages(data: memoryview, start: int) -> None:
    """Refuse a file in which a page is damaged or missing.

    Raises:
        BadSound: Says what is wrong, and where.
    """
    at, number, serial = start, 0, None
    while at < len(data):
        page = read_page(data, at)
        if serial is None:
            serial, number = page.serial, page.number
        elif page.serial != serial or page.begins:
            raise BadSound("it holds several ogg streams: give one to a file")
        elif page.number != number + 1:
            raise BadSound(f"pages are missing before its byte {at:,}")
        number = page.number
        at += page.size
        if page.ends and at < len(data):
            raise BadSound("it goes on after the end of its stream: give one stream to a file")


def _checksum(page: bytes) -> int:
    """Return the CRC-32 of a page, which Ogg computes from the other end of each byte than zlib."""
    found = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(found.to_bytes(4, "little").translate(_REVERSED), "big")
