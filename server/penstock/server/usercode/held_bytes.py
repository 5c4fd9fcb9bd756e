"""About how much memory a value takes."""

from __future__ import annotations

import sys
from typing import Any

_NUMBERS = frozenset((bool, int, float, type(None)))


def held_bytes(value: Any) -> int:
    """Return about how many bytes of memory a raw item takes."""
    if type(value) is dict:  # as most are: without a call for each of its keys
        total = 256
        for key, inner in value.items():
            total += 64 + len(key) if type(key) is str else held_bytes(key)
            total += held_bytes(inner)
        return total
    if type(value) in _NUMBERS:
        return sys.getsizeof(value)
    if isinstance(value, str | bytes | bytearray):
        return 64 + len(value)
    if isinstance(value, dict):
        return 256 + sum(held_bytes(key) + held_bytes(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return 64 + sum(map(held_bytes, value))
    nbytes = getattr(value, "nbytes", None)
    return 128 + nbytes if isinstance(nbytes, int) else sys.getsizeof(value, 1024)
