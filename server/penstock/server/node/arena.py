"""Shared memory of a worker and the server process: anonymous, so `kill -9` leaves nothing behind.

A worker makes a few memfds and passes them over its socket. It places batches by first fit; the
server process alone decides when a span is free again. What lies in a dead worker's arenas stays
readable until the server has sent it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from penstock.wire import ALIGNMENT, LENT_BYTES

ARENA_BYTES = 64 << 20
"""The smallest arena. Pages are taken from the system only when they are first written."""

IDLE_TAKES, IDLE_BYTES = 1024, 256 << 20
"""An arena that was empty for so many batches, or so many bytes of them, gives its pages back: a
burst of one worker, and of the next, and of the next would else add up to many times the node's
bound. Rarely enough that the page faults of the next burst do not count: its pages are a quarter of
these bytes."""


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memory(name: str, size_bytes: int) -> int:
    """Return a memfd whose size nobody changes any more.

    Reading memory behind the end of a file that was cut ends the reading process (SIGBUS).
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Whoever is given a descriptor for reading cannot open the file anew for writing.
        os.fchmod(fd, 0o400)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Descriptor:
    """A file descriptor on its way: whoever uses it takes it, else it is closed with this.

    Args:
        fd: What this owns from now on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor, which stays this object's; -1 = it was taken."""
        return self._fd

    def take(self) -> int:
        """Return the descriptor, which the caller closes."""
        fd, self._fd = self._fd, -1
        return fd

    def __del__(self) -> None:
        """Close what nobody has taken."""
        if self._fd >= 0:
            os.close(self._fd)


class ArenaWriter:
    """One arena in the worker that writes it.

    Args:
        number: Its number within the worker.
        size_bytes: How large it is.
    """

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        self.fd = sealed_memory(f"penstock-arena-{number}", size_bytes)
        self.map = mmap.mmap(self.fd, size_bytes)
        self.view = memoryview(self.map)
        self._free: list[tuple[int, int]] = [(0, size_bytes)]  # (start, length), by start
        self._taken: dict[int, int] = {}
        self._touched = False  # it may hold pages

    def take(self, nbytes: int) -> int | None:
        """Return where `nbytes` bytes may be written, or None if no free span is long enough.

        What is large enough to be lent to a process on this host has its pages for itself.
        """
        unit = mmap.PAGESIZE if nbytes >= LENT_BYTES else ALIGNMENT
        length = max(ALIGNMENT, -(-nbytes // unit) * unit)
        for index, (free, room) in enumerate(self._free):
            start = -(-free // unit) * unit
            left, right = start - free, room - (start - free) - length
            if right >= 0:
                rest = [(free, left)] if left else []
                self._free[index : index + 1] = [*rest, (start + length, right)] if right else rest
                self._taken[start] = length
                self._touched = True
                return start
        return None

    def give_back(self, start: int) -> None:
        """Free the span at `start`; neighbours grow together."""
        length = self._taken.pop(start)
        insort(self._free, (start, length))
        index = self._free.index((start, length))
        for left in (index, index - 1):
            if 0 <= left < len(self._free) - 1:
                (a, a_length), (b, b_length) = self._free[left : left + 2]
                if a + a_length == b:
                    self._free[left : left + 2] = [(a, a_length + b_length)]

    def release_pages(self) -> None:
        """Let the system have the memory back, where nothing is in use; the mappings stay."""
        if self._touched and not self._taken:
            self.map.madvise(mmap.MADV_REMOVE)
            self._touched = False

    @property
    def taken_bytes(self) -> int:
        """Return how many bytes are in use."""
        return sum(self._taken.values())


class Arenas:
    """All arenas of one worker; `announce(writer)` is called for each new one before its use."""

    def __init__(self, announce: Callable[[ArenaWriter], None]) -> None:
        self._announce = announce
        self._arenas: list[ArenaWriter] = []
        self._age = 0  # grows by the bytes of each take, and by the same at least
        self._due = IDLE_BYTES
        self._used: list[int] = []  # by arena, the age at which it was last in use

    def take(self, nbytes: int) -> tuple[ArenaWriter, int]:
        """Return an arena and a start in it with room for `nbytes` bytes."""
        self._age += max(nbytes, IDLE_BYTES // IDLE_TAKES)
        if self._age >= self._due:
            self._due = self._age + IDLE_BYTES
            self._release_idle()
        for arena in self._arenas:
            start = arena.take(nbytes)
            if start is not None:
                self._used[arena.number] = self._age
                return arena, start
        size = ARENA_BYTES
        while size < 2 * nbytes:
            size *= 2
        arena = ArenaWriter(len(self._arenas), size)
        self._arenas.append(arena)
        self._used.append(self._age)
        self._announce(arena)
        start = arena.take(nbytes)
        assert start is not None
        return arena, start

    def give_back(self, number: int, start: int) -> None:
        """Free a span of an arena."""
        self._arenas[number].give_back(start)
        self._used[number] = self._age

    def _release_idle(self) -> None:
        for arena in self._arenas:
            if self._age - self._used[arena.number] >= IDLE_BYTES:
                arena.release_pages()


class ArenaReader:
    """One arena as the server process sees it: mapped for reading, counted while spans are in use.

    Args:
        fd: The memfd, which this takes over and closes.
        size_bytes: How large it is.

    Attributes:
        fd: The memfd, for reading only: processes on this host may have it.
        starts: Where the batches begin that lie in it and are not free.
        closed: Nothing reads it any more.

    Raises:
        ValueError: The file is shorter than it is said to be, or may become so.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if os.fstat(fd).st_size < size_bytes or not seals & fcntl.F_SEAL_SHRINK:
                raise ValueError(
                    f"an arena of {size_bytes} bytes that is not of that size for good"
                )
            self._map = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
            self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(fd)
        self.size_bytes = size_bytes
        self.view = memoryview(self._map)
        self.starts: set[int] = set()
        self.closed = False

    @property
    def spans(self) -> int:
        """Return how many batches lie in it that are not free."""
        return len(self.starts)

    def close(self) -> None:
        """Unmap; the caller has made sure that nothing reads it any more."""
        self.closed = True
        self.view.release()
        self._map.close()
        os.close(self.fd)


@dataclass(eq=False, slots=True)
class Span:
    """The body of one batch, where its worker has written it.

    Attributes:
        arena: What it lies in.
        start: Its first byte there.
        view: Its bytes.
        give_back: Gives its memory back to the worker.
    """

    arena: ArenaReader
    start: int
    view: memoryview
    give_back: Callable[[], None]

    def free(self) -> None:
        """Give the memory back; nobody reads the view any more."""
        self.view.release()
        self.give_back()


__all__ = [
    "ARENA_BYTES",
    "ArenaReader",
    "ArenaWriter",
    "Arenas",
    "Descriptor",
    "Span",
    "sealed_memory",
]
