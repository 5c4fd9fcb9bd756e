"""Where bodies land: storage that is used again when its lease has ended.

A fresh allocation of a large body costs a page fault for every 4 KiB of it, which can take longer
than the transfer, and pinning costs more. So storage goes back to a pool, and the pool learns of it
from the garbage collector: no user has to release anything.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import threading
import weakref
from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.lifetimes import Lifetimes, Passing, keep_until, release_kept

MIN_FREE_BYTES = 64 << 20
"""What a pool may always keep for reuse, in bytes."""

HUGE_PAGE_BYTES = 2 << 20
"""Storage at least this large asks for huge pages, in bytes."""


class Pinner(Protocol):
    """Pins memory of others where it lies."""

    def register(self, array: NDArray[np.uint8], nbytes: int) -> bool:
        """Pin whole pages until `unregister`, and say whether that was possible.

        Args:
            array: uint8 (n,), whole pages.
            nbytes: The length of a body there.
        """
        ...

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Unpin what was registered, once every copy from it is over."""
        ...


class Lent(Protocol):
    """A body in memory of others, which a device could copy from where it lies."""

    def source(self, pinner: Pinner, end: Passing) -> NDArray[np.uint8] | None:
        """Return pinned memory that holds the body, and is kept until `end`; None = there is none.

        Args:
            pinner: Pins the memory, where that has not been done.
            end: Of the copy that reads it.
        """
        ...


class Lease(NamedTuple):
    """Memory that one body lies in, for as long as anybody needs it.

    It ends when the last view of `array` is gone (arrays and tensors on the host keep it alive) and
    every event in `events` is complete. Then the lender of the memory may write to it again: a
    pool of this process, or a node of this host that had handed out a part of its own.

    Attributes:
        array: uint8 (nbytes,).
        events: What else must be over first. A decoder that has a device copy from `array` adds
            the copy's event: the device reads on when all views are gone.
        is_pinned: A device can copy from it while the host goes on.
        lent: Where else the body lies, in memory of others; None = nowhere.
    """

    array: NDArray[np.uint8]
    events: list[Passing]
    is_pinned: bool = False
    lent: Lent | None = None

    @property
    def nbytes(self) -> int:
        """The length of the body in bytes."""
        return self.array.nbytes


class BodyAllocator(Protocol):
    """Lends memory for bodies. `tests/contract/test_allocators.py` is what it must hold to."""

    def lease(self, nbytes: int) -> Lease:
        """Return writable memory of any content, aligned to 64 bytes at least; any thread may call.

        No two leases that have not ended share a byte.
        """
        ...

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`; takes no lock, as the consumer asks."""
        ...


class BodyMemory(Protocol):
    """Memory that bodies should land in as long as it has room: pinned, for a device."""

    def lease(self, nbytes: int) -> Lease | None:
        """Return a lease of at least 1 byte, as `BodyAllocator.lease` does; None = no room."""
        ...

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`; takes no lock."""
        ...

    def counts(self) -> dict[str, int]:
        """Return `bytes` that are pinned, and how often it has `grown`, `overflowed` and `staged`.

        It takes no lock.
        """
        ...


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


def _new(size: int) -> mmap.mmap:
    """Return zeroed memory of this process alone: a fork keeps what it saw when it was made."""
    storage = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # A hint that saves the copy into it many page faults and lookups of addresses; a kernel
        # that was built without such pages refuses it, and nothing is lost.
        with contextlib.suppress(OSError):
            storage.madvise(mmap.MADV_HUGEPAGE)
    return storage


class _Taken(NamedTuple):
    """What the pool knows of a lease."""

    storage: mmap.mmap
    size: int
    events: list[Passing]


class BufferPool:
    """Leases of pooled storage: a `BodyAllocator`.

    Free storage is bounded: by `MIN_FREE_BYTES`, or by `keep` bodies of the largest size in use,
    whichever is more.

    Args:
        keep: How many bodies of the largest size may lie free.
        keep_bytes: And no more bytes of them than this, but for two.
        memory: What is lent as long as it has room; None = plain memory alone.
    """

    def __init__(
        self, keep: int, keep_bytes: int = sys.maxsize, memory: BodyMemory | None = None
    ) -> None:
        self._keep, self._keep_bytes, self._memory = keep, keep_bytes, memory
        self._lock = threading.Lock()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._free_bytes = 0
        self._leased_bytes = 0
        self._largest = 0
        self._leased: Lifetimes[_Taken] = Lifetimes()  # of arrays; `lease` looks
        # Their views are gone, and an event was not complete when it was looked at.
        self._awaited: deque[_Taken] = deque()
        # A device may read on when the pool is gone; at exit it is gone by itself.
        weakref.finalize(self, _outlive, self._leased, self._awaited).atexit = False

    def use(self, memory: BodyMemory | None) -> None:
        """Lend this from now on; what is leased stays as it is. It takes no lock."""
        self._memory = memory

    def lease(self, nbytes: int) -> Lease:
        """Return a lease of page-aligned memory of any content."""
        events: list[Passing] = []
        if nbytes == 0:
            return Lease(np.empty(0, np.uint8), events)
        if (memory := self._memory) is not None:
            release_kept()
            if (found := memory.lease(nbytes)) is not None:
                return found
        with self._lock:
            size = size_class(nbytes)
            self._sort_in()
            self._largest = max(self._largest, size)
            free = self._free.get(size)
            if free:
                storage = free.pop()
                self._free_bytes -= size
            else:
                storage = _new(size)
            self._leased_bytes += size
        # Its base is not an ndarray: every view has *it* as its base, and it lives as long as the
        # last of them.
        array = np.frombuffer(storage, np.uint8, count=nbytes)
        self._leased.watch(array, _Taken(storage, size, events))
        return Lease(array, events)

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`, sizes of storage.

        It takes no lock, as the consumer asks: what has come back counts as free, up to the limit.
        """
        back = sum(taken.size for taken in self._leased.ended())
        memory = self._memory
        other = {} if memory is None else memory.statistics()
        free = min(self._limit(), self._free_bytes + back)
        return {
            "leased_bytes": self._leased_bytes - back + other.get("leased_bytes", 0),
            "free_bytes": free + other.get("free_bytes", 0),
        }

    def _limit(self) -> int:
        most = max(2 * self._largest, self._keep_bytes)
        return max(MIN_FREE_BYTES, min(self._keep * self._largest, most))

    def _sort_in(self) -> None:
        release_kept()
        self._awaited.extend(self._leased.take_ended())
        limit = self._limit()
        for _ in range(len(self._awaited)):
            taken = self._awaited[0]
            is_over = all(event.query() for event in taken.events)  # it may raise: a device failed
            self._awaited.popleft()
            if not is_over:
                self._awaited.append(taken)
                continue
            self._leased_bytes -= taken.size
            self._keep_free(taken.size, taken.storage, limit)

    def _keep_free(self, size: int, storage: mmap.mmap, limit: int) -> None:
        """Keep storage for reuse; prefer the size that is in use now to sizes that once were."""
        for other in sorted(self._free) if self._free_bytes + size > limit else ():
            while other != size and self._free[other] and self._free_bytes + size > limit:
                self._free[other].pop()
                self._free_bytes -= other
        if self._free_bytes + size <= limit:
            self._free.setdefault(size, []).append(storage)
            self._free_bytes += size


def _outlive(leased: Lifetimes[_Taken], awaited: deque[_Taken]) -> None:
    """Keep storage that events are still to come for, when its pool is gone."""
    for taken in [*leased.values(), *awaited]:
        if taken.events:
            keep_until(taken.storage, taken.events)
