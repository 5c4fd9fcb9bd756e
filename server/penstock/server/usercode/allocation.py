"""Whether memory was missing that no machine has: then the bytes ask for it, and not the moment."""

from __future__ import annotations

import math
import re

MOST_BYTES = 1 << 44
"""A single allocation of more than 16 TiB is served by no machine that loads data."""

_ASKED = re.compile(r"(?:tried to allocate|malloc of size|realloc of size) (\d+)")
"""Torch says the first, Arrow the others."""


def is_impossible(error: BaseException) -> bool:
    """Tell whether an error says that one allocation asked for more than any machine has.

    A header that claims 10^16 bytes fails on every machine alike. A `MemoryError` that does not
    tell what was asked for, as Python's own, and one that another machine may serve, is about this
    machine.
    """
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if isinstance(error, MemoryError) and isinstance(shape, tuple):  # of NumPy
        return math.prod(shape) * int(getattr(dtype, "itemsize", 1)) > MOST_BYTES
    if not isinstance(error, MemoryError | RuntimeError):
        return False
    asked = _ASKED.search(str(error)[:1000])
    return asked is not None and int(asked[1]) > MOST_BYTES
