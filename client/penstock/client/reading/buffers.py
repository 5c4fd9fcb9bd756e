"""Where bodies land: page-aligned storage that is used again when its last view is gone.

A fresh allocation of a large body costs a page fault for every 4 KiB of it, which can take longer
than the transfer. So storage goes back to a pool, and the pool learns of it from the garbage
collector: no user has to release anything.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import threading
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

MIN_FREE_BYTES = 64 << 20
"""What a pool may always keep for reuse, in bytes."""

HUGE_PAGE_BYTES = 2 << 20
"""Storage at least this large asks for huge pages, in bytes."""


def size_class(nbytes: int) -> int:
    """Return the storage size for `nbytes`: four steps per power of two, whole pages, at least one.

    Bodies of a packed job differ by a few percent: with classes they share storage; with four steps
    per octave at most a fifth of it lies idle.
    """
    pages = max(1, -(-nbytes // mmap.PAGESIZE))
    if pages <= 4:
        return pages * mmap.PAGESIZE
    step = 1 << ((pages - 1).bit_length() - 3)
    return -(-pages // step) * step * mmap.PAGESIZE


def _new_storage(size: int) -> mmap.mmap:
    """Return zeroed memory of this process alone: a fork keeps what it saw when it was made."""
    storage = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # A hint that saves the copy into it many page faults and lookups of addresses; a kernel
        # that was built without such pages refuses it, and nothing is lost.
        with contextlib.suppress(OSError):
            storage.madvise(mmap.MADV_HUGEPAGE)
    return storage


class BufferPool:
    """Leases of uint8 storage.

    A lease is an array over an anonymous mapping. NumPy views and torch tensors made of it keep it
    alive; when the last of them dies the mapping is free again. Free storage is bounded: by
    `MIN_FREE_BYTES`, or by `keep` bodies of the largest size in use, whichever is more.

    Args:
        keep: How many bodies of the largest size may lie free.
        keep_bytes: And no more bytes of them than this, but for two.
    """

    def __init__(self, keep: int, keep_bytes: int = sys.maxsize) -> None:
        self._keep, self._keep_bytes = keep, keep_bytes
        self._lock = threading.Lock()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._free_bytes = 0
        self._leased_bytes = 0
        self._largest = 0
        # What is leased, by the id of a weak reference to its array. The end of an array comes
        # anywhere, maybe inside `lease` itself or where a signal handler raises: it takes no lock
        # and runs no Python, it appends the reference here, and `lease` sorts in.
        self._leased: dict[int, tuple[weakref.ref[NDArray[np.uint8]], mmap.mmap]] = {}
        self._returned: deque[weakref.ref[NDArray[np.uint8]]] = deque()

    def lease(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a writable uint8 array of shape (nbytes,), page-aligned, of any content."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        size = size_class(nbytes)
        with self._lock:
            self._sort_in()
            self._largest = max(self._largest, size)
            shelf = self._free.get(size)
            if shelf:
                storage = shelf.pop()
                self._free_bytes -= size
            else:
                storage = _new_storage(size)
            self._leased_bytes += size
        # The base of this array is no ndarray, so every view of it has *it* as its base: it lives
        # as long as the last view, and its end is the storage's.
        array = np.frombuffer(storage, np.uint8, count=nbytes)
        reference = weakref.ref(array, self._returned.append)
        self._leased[id(reference)] = reference, storage
        return array

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`, sizes of storage.

        It takes no lock, as the consumer asks: what has come back counts as free, up to the limit.
        """
        ended = [self._leased.get(id(reference)) for reference in list(self._returned)]
        back = sum(len(lease[1]) for lease in ended if lease is not None)
        return {
            "leased_bytes": self._leased_bytes - back,
            "free_bytes": min(self._limit(), self._free_bytes + back),
        }

    def _limit(self) -> int:
        most = max(2 * self._largest, self._keep_bytes)
        return max(MIN_FREE_BYTES, min(self._keep * self._largest, most))

    def _sort_in(self) -> None:
        limit = self._limit()
        while self._returned:
            _, storage = self._leased.pop(id(self._returned.popleft()))
            size = len(storage)
            self._leased_bytes -= size
            if self._free_bytes + size <= limit:
                self._free.setdefault(size, []).append(storage)
                self._free_bytes += size
            else:
                self._drop_other(size, storage, limit)

    def _drop_other(self, size: int, storage: mmap.mmap, limit: int) -> None:
        """Prefer the size that is in use now to sizes that once were."""
        for other in sorted(self._free):
            while other != size and self._free[other] and self._free_bytes + size > limit:
                self._free[other].pop()
                self._free_bytes -= other
        if self._free_bytes + size <= limit:
            self._free.setdefault(size, []).append(storage)
            self._free_bytes += size


__all__ = ["MIN_FREE_BYTES", "BufferPool", "size_class"]
