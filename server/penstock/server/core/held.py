"""About how much memory a value takes."""

from __future__ import annotations

import sys
from typing import Any


def held_bytes(value: Any) -> int:
    """Return about how many bytes of memory a raw item takes."""
    if isinstance(value, str | bytes | bytearray):
        return 64 + len(value)
    if isinstance(value, dict):
        return 256 + sum(held_bytes(key) + held_bytes(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return 64 + sum(map(held_bytes, value))
    nbytes = getattr(value, "nbytes", None)
    return 128 + nbytes if isinstance(nbytes, int) else sys.getsizeof(value, 1024)


__all__ = ["held_bytes"]
