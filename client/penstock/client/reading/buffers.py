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
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MIN_FREE_BYTES = 64 << 20
"""What a pool may always keep for reuse, in bytes."""

HUGE_PAGE_BYTES = 2 << 20
"""Storage at least this large asks for huge pages, in bytes."""


class Event(Protocol):
    """Something that comes to pass without us, such as a copy to a device (`torch.cuda.Event`)."""

    def query(self) -> bool:
        """Tell whether it has come to pass; never waits."""
        ...


class Lease(NamedTuple):
    """Memory that one body lies in, for as long as anybody needs it.

    It ends when the last view of `array` is gone (arrays and tensors on the host keep it alive) and
    every event in `events` has come to pass. Then the lender of the memory may write to it again: a
    pool of this process, or a node of this host that had handed out a part of its own.

    Attributes:
        array: uint8 (nbytes,).
        events: What else must be over first. A decoder that has a device copy from `array` adds
            the copy's event: the device reads on when all views are gone.
        is_pinned: A device can copy from it while the host goes on.
    """

    array: NDArray[np.uint8]
    events: list[Event]
    is_pinned: bool = False

    @property
    def nbytes(self) -> int:
        """The length of the body in bytes."""
        return self.array.nbytes


class Allocator(Protocol):
    """Lends memory for bodies. `tests/contract/test_allocators.py` is what it must hold to."""

    def lease(self, nbytes: int) -> Lease:
        """Return writable memory of any content, aligned to 64 bytes at least; any thread may call.

        No two leases that have not ended share a byte.
        """
        ...

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`; takes no lock, as the consumer asks."""
        ...


class Memory(Protocol):
    """A kind of memory that a pool keeps: where storage comes from.

    Attributes:
        is_pinned: A device can copy from it while the host goes on.
    """

    is_pinned: bool

    def size_class(self, nbytes: int) -> int:
        """Return the size of the storage that a body of `nbytes` gets, in bytes."""
        ...

    def new(self, size: int) -> Any:
        """Return new storage of a size that `size_class` gave."""
        ...

    def view(self, storage: Any, nbytes: int) -> NDArray[np.uint8]:
        """Return a new array over the start of storage; its base must not be an ndarray.

        Then every view has *it* as its base: it lives as long as the last of them.
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


class PlainMemory:
    """Anonymous mappings of this process alone: a fork keeps what it saw when it was made."""

    is_pinned = False

    def size_class(self, nbytes: int) -> int:
        """Return the size of the storage that a body of `nbytes` gets; see `size_class`."""
        return size_class(nbytes)

    def new(self, size: int) -> mmap.mmap:
        """Return zeroed memory."""
        storage = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            # A hint that saves the copy into it many page faults and lookups of addresses; a kernel
            # that was built without such pages refuses it, and nothing is lost.
            with contextlib.suppress(OSError):
                storage.madvise(mmap.MADV_HUGEPAGE)
        return storage

    def view(self, storage: mmap.mmap, nbytes: int) -> NDArray[np.uint8]:
        """Return a new array over the start of storage."""
        return np.frombuffer(storage, np.uint8, count=nbytes)


PLAIN = PlainMemory()


class _Lent(NamedTuple):
    """What the pool knows of a lease."""

    reference: weakref.ref[NDArray[np.uint8]]
    storage: Any
    size: int
    events: list[Event]
    memory: Memory


class BufferPool:
    """Leases of pooled storage: an `Allocator`.

    Free storage is bounded: by `MIN_FREE_BYTES`, or by `keep` bodies of the largest size in use,
    whichever is more.

    Args:
        keep: How many bodies of the largest size may lie free.
        keep_bytes: And no more bytes of them than this, but for two.
        memory: The kind of memory.
    """

    def __init__(self, keep: int, keep_bytes: int = sys.maxsize, memory: Memory = PLAIN) -> None:
        self._keep, self._keep_bytes = keep, keep_bytes
        self._memory = self._free_memory = memory
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._free_bytes = 0
        self._leased_bytes = 0
        self._largest = 0
        # What is leased, by the id of a weak reference to its array. The end of an array comes
        # anywhere, maybe inside `lease` itself or where a signal handler raises: it takes no lock
        # and runs no Python, it appends the reference here, and `lease` sorts in.
        self._leased: dict[int, _Lent] = {}
        self._returned: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        self._awaited: list[_Lent] = []  # their views are gone, and an event has not come to pass

    def use(self, memory: Memory) -> None:
        """Lend this kind of memory from now on; what is leased stays as it is. It takes no lock."""
        self._memory = memory

    def lease(self, nbytes: int) -> Lease:
        """Return a lease of page-aligned memory of any content."""
        events: list[Event] = []
        if nbytes == 0:
            return Lease(np.empty(0, np.uint8), events)
        with self._lock:
            memory = self._memory
            if memory is not self._free_memory:
                self._free_memory = memory
                self._free.clear()
                self._free_bytes = 0
            size = memory.size_class(nbytes)
            self._sort_in()
            self._largest = max(self._largest, size)
            shelf = self._free.get(size)
            if shelf:
                storage = shelf.pop()
                self._free_bytes -= size
            else:
                storage = memory.new(size)
            self._leased_bytes += size
        array = memory.view(storage, nbytes)
        reference = weakref.ref(array, self._returned.append)
        self._leased[id(reference)] = _Lent(reference, storage, size, events, memory)
        return Lease(array, events, memory.is_pinned)

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`, sizes of storage.

        It takes no lock, as the consumer asks: what has come back counts as free, up to the limit.
        """
        ended = [self._leased.get(id(reference)) for reference in list(self._returned)]
        back = sum(lent.size for lent in ended if lent is not None)
        return {
            "leased_bytes": self._leased_bytes - back,
            "free_bytes": min(self._limit(), self._free_bytes + back),
        }

    def _limit(self) -> int:
        most = max(2 * self._largest, self._keep_bytes)
        return max(MIN_FREE_BYTES, min(self._keep * self._largest, most))

    def _sort_in(self) -> None:
        if not self._returned and not self._awaited:
            return
        ended, self._awaited = self._awaited, []
        while self._returned:
            ended.append(self._leased.pop(id(self._returned.popleft())))
        limit = self._limit()
        for lent in ended:
            if all(event.query() for event in lent.events):
                self._leased_bytes -= lent.size
                if lent.memory is self._free_memory:
                    self._keep_free(lent.size, lent.storage, limit)
            else:
                self._awaited.append(lent)

    def _keep_free(self, size: int, storage: Any, limit: int) -> None:
        """Keep storage for reuse; prefer the size that is in use now to sizes that once were."""
        for other in sorted(self._free) if self._free_bytes + size > limit else ():
            while other != size and self._free[other] and self._free_bytes + size > limit:
                self._free[other].pop()
                self._free_bytes -= other
        if self._free_bytes + size <= limit:
            self._free.setdefault(size, []).append(storage)
            self._free_bytes += size


__all__ = [
    "MIN_FREE_BYTES",
    "PLAIN",
    "Allocator",
    "BufferPool",
    "Event",
    "Lease",
    "Memory",
    "PlainMemory",
    "size_class",
]
