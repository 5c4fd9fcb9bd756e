"""What storage, networks, editors and people do to a file, drawn by a seeded generator."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

MAGICS = (
    b"PAR1", b"ARROW1\0\0", b"\x1f\x8b\x08", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh9",
    b"\xfd7zXZ\0", b"\x93NUMPY\x01\x00", b"MMIDIDX\0\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x89PNG",
    b"\x7fELF", b"SQLite format 3\0", b"<!DOCTYPE html>", b"PENSTOCK-SIZES\x01\x00",
)  # fmt: skip
"""What files of one kind or another begin with."""

NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e300, float("nan"),
    float("inf"), "", "abc", "../..", "a" * 300, "\x1b[31m", "\ud800", "[", [], [1], ["a"], [[]],
    [None], {}, {"a": 1}, {"": []}, [{"a": [1]}] * 3,
)  # fmt: skip
"""What stands in JSON or YAML where something else should."""

CHUNKS = (
    b"[" * 5000, b"{\"a\":" * 5000, b"\\" * 5000, b"\"", b"'", b"\0", b"\r\n", b"\n\n", b",,,,",
    b"]", b"}", b"[", b"{", b": ", b"- ", b"&a *a", b"!!python/object:os.system ", b"%YAML 9\n",
    b"\xff", b"\xc3", b"1e999", b"-", b"9" * 5000, b"NaN", b"null", b"\x1b]0;x\x07", b"\t", b"#",
)  # fmt: skip
"""What breaks parsers of text."""


def _span(data: bytes, draw: random.Random, most: int) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + draw.randint(1, most))


def _flip_bits(data: bytes, draw: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        if found:
            found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)


def _random_bytes(data: bytes, draw: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(draw.choice((1, 4, 4, 16))):
        if found:
            found[draw.randrange(len(found))] = draw.randrange(256)
    return bytes(found)


def _number(data: bytes, draw: random.Random) -> bytes:
    """A whole number of 1 to 8 bytes, aligned or not, becomes one of those that overflow."""
    width = draw.choice((1, 2, 4, 4, 8, 8))
    if len(data) < width:
        return data
    at = draw.randrange(len(data) - width + 1)
    at = at // width * width if draw.random() < 0.7 else at
    value = (draw.choice(NUMBERS) + draw.choice((0, 0, -1, 1))) % (1 << 8 * width)
    return data[:at] + struct.pack("<Q", value)[:width] + data[at + width :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    at = draw.choice((draw.randrange(len(data) + 1), len(data) - min(len(data), 8), 1, 0))
    return data[:at]


def _cut_front(data: bytes, draw: random.Random) -> bytes:
    return data[draw.randrange(len(data) + 1) :]


def _zeros(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw, 4096)
    return data[:start] + bytes(stop - start) + data[stop:]


def _noise(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw, 512)
    return data[:start] + draw.randbytes(stop - start) + data[stop:]


def _insert(data: bytes, draw: random.Random) -> bytes:
    start, _ = _span(data, draw, 1)
    return data[:start] + draw.choice((*CHUNKS, draw.randbytes(8))) + data[start:]


def _delete(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw, 64)
    return data[:start] + data[stop:]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw, 512)
    return data[:stop] + data[start:stop] * draw.choice((1, 2, 50)) + data[stop:]


def _move(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw, 512)
    rest = data[:start] + data[stop:]
    at = draw.randrange(len(rest) + 1)
    return rest[:at] + data[start:stop] + rest[at:]


def _append(data: bytes, draw: random.Random) -> bytes:
    return data + draw.choice((b"\0", b"\n", draw.randbytes(100), data[:100], data))


def _magic(data: bytes, draw: random.Random) -> bytes:
    magic = draw.choice(MAGICS)
    return magic + (data if draw.random() < 0.5 else data[len(magic) :])


BINARY: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip_bits, _flip_bits, _random_bytes, _random_bytes, _number, _number, _number, _cut,
    _cut_front, _zeros, _noise, _insert, _delete, _repeat, _move, _append, _magic,
)  # fmt: skip


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes of a file with one to three kinds of damage; JSON also by its values."""
    if draw.random() < 0.5 and (changed := _other_value(data, draw)) is not None:
        return changed
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(BINARY)(data, draw)
    return data


def _other_value(data: bytes, draw: random.Random) -> bytes | None:
    """Return JSON with a value, a key or an element of it replaced; None if it is not JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for _ in range(draw.choice((1, 1, 2))):
        value = replaced(value, draw)
    return json.dumps(value).encode()


def replaced(value: Any, draw: random.Random) -> Any:
    """Return a JSON value in which one thing, at any depth, is another."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return draw.choice(VALUES)
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(len(value))
    key = draw.choice(keys)
    found: Any = dict(value) if isinstance(value, dict) else list(value)
    if draw.random() < 0.1:
        del found[key]
    elif draw.random() < 0.05 and isinstance(found, dict):
        found[str(draw.choice(VALUES))[:50]] = found.pop(key)
    elif draw.random() < 0.05 and isinstance(found, list):
        found *= draw.choice((2, 100))
    else:
        found[key] = replaced(found[key], draw)
    return found


__all__ = ["mutate", "replaced"]
