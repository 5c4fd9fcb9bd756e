"""glibc's malloc, told to keep its memory: for the process at either end of the wire.

Messages of 1 MiB are allocated and freed all the time. With glibc's defaults each comes from mmap,
or from a heap that is trimmed at once, and page faults take most of the time of large batches. A
server does this always. In a trainer it is the trainer's allocator, so a Loader never does it by
itself: call `keep_memory()` before the first batch, or set MALLOC_TOP_PAD_, MALLOC_TRIM_THRESHOLD_
and MALLOC_MMAP_THRESHOLD_ in the environment.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_memory() -> bool:
    """Tell malloc to keep freed memory for the next message; return whether there is a glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = (
        (_M_MMAP_THRESHOLD, 256 << 20),
        (_M_TRIM_THRESHOLD, 512 << 20),
        (_M_TOP_PAD, 64 << 20),
    )
    told = [mallopt(option, value) == 1 for option, value in settings]  # every one of them
    return all(told)


def release_memory() -> None:
    """Give freed memory that malloc keeps back to the system, after something large and rare."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
