"""Tell glibc to keep memory that it gets back.

gRPC allocates and frees a buffer for every message of 1 MiB. With glibc's defaults each comes from
a fresh mapping, and page faults take most of the time (measured: 0.9 GB/s against 1.7 to 1.9 GB/s).
It is the trainer's allocator, so a Loader never does this unasked: call `keep_memory()` before the
first batch, or set MALLOC_TOP_PAD_, MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ in the
environment.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_memory() -> bool:
    """Set mmap threshold, trim threshold and top pad; False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = (
        (_M_MMAP_THRESHOLD, 256 << 20),
        (_M_TRIM_THRESHOLD, 512 << 20),
        (_M_TOP_PAD, 64 << 20),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)


__all__ = ["keep_memory"]
