"""Where a worker puts its batches: shared memory, of which free spans are taken by first fit.

It makes a few memfds and passes them over its socket. The server process alone decides when a span
is free again, see `penstock.server.node.demand.batch_spans`.
"""

from __future__ import annotations

import mmap
import os
from bisect import insort
from collections.abc import Callable

from penstock.server.processes.shared_memory import seal_writing, sealed_memory
from penstock.wire import ALIGNMENT, LENT_BYTES

ARENA_BYTES = 64 << 20
"""The smallest arena. Pages are taken from the system only when they are first written."""

IDLE_TAKES, IDLE_BYTES = 1024, 256 << 20
"""An arena that was empty for so many batches, or so many bytes of them, is given up: a burst of
one worker, and of the next, and of the next would else add up to many times the node's bound.
Rarely enough that the page faults of the next burst do not count: its pages are a quarter of these
bytes. It is given up whole: of memory that is sealed against writers no page can be given back."""


class ArenaWriter:
    """One arena in the worker that writes it.

    Args:
        number: Its number within the worker: no other arena has it as long as this one is there.
        size_bytes: How large it is.
    """

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        self.fd = sealed_memory(f"penstock-arena-{number}", size_bytes, more_seals=True)
        self.map = mmap.mmap(self.fd, size_bytes)
        seal_writing(self.fd)
        self.view = memoryview(self.map)
        self._free: list[tuple[int, int]] = [(0, size_bytes)]  # (start, length), by start
        self._taken: dict[int, int] = {}

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

    def close(self) -> None:
        """Give it up, with nothing in use: the memory goes with the last process that maps it."""
        del self.view, self.map  # unmapped as soon as nothing refers to it
        os.close(self.fd)

    @property
    def taken_bytes(self) -> int:
        """Return how many bytes are in use."""
        return sum(self._taken.values())


class Arenas:
    """All arenas of one worker.

    Args:
        announce: Called with each new one before its use.
        give_up: Called with each one that is closed after that.
    """

    def __init__(
        self, announce: Callable[[ArenaWriter], None], give_up: Callable[[ArenaWriter], None]
    ) -> None:
        self._announce, self._give_up = announce, give_up
        self._arenas: dict[int, ArenaWriter] = {}  # by number, and in their order
        self._age = 0  # grows by the bytes of each take, and by the same at least
        self._due = IDLE_BYTES
        self._used: dict[int, int] = {}  # by arena, the age at which it was last in use

    def take(self, nbytes: int) -> tuple[ArenaWriter, int]:
        """Return an arena and a start in it with room for `nbytes` bytes."""
        self._age += max(nbytes, IDLE_BYTES // IDLE_TAKES)
        if self._age >= self._due:
            self._due = self._age + IDLE_BYTES
            self._give_up_idle()
        for arena in self._arenas.values():
            start = arena.take(nbytes)
            if start is not None:
                self._used[arena.number] = self._age
                return arena, start
        size = ARENA_BYTES
        while size < 2 * nbytes:
            size *= 2
        number = next(n for n in range(len(self._arenas) + 1) if n not in self._arenas)
        arena = ArenaWriter(number, size)
        self._arenas = dict(sorted({**self._arenas, number: arena}.items()))
        self._used[number] = self._age
        self._announce(arena)
        start = arena.take(nbytes)
        assert start is not None
        return arena, start

    def give_back(self, number: int, start: int) -> None:
        """Free a span of an arena."""
        self._arenas[number].give_back(start)
        self._used[number] = self._age

    def close(self) -> None:
        """Close all of them: nothing is written any more. Who has mapped one goes on reading it."""
        for arena in self._arenas.values():
            arena.close()
        self._arenas = {}

    def _give_up_idle(self) -> None:
        for number, arena in list(self._arenas.items()):
            if self._age - self._used[number] >= IDLE_BYTES and not arena.taken_bytes:
                del self._arenas[number]
                self._give_up(arena)
                arena.close()
