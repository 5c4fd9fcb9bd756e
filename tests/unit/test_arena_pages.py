"""Shared memory after a burst: what one worker needed once is not held for the rest of the run."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.server.node.demand.batch_spans import ArenaReader
from penstock.server.node.workers.arena import (
    ARENA_BYTES,
    IDLE_BYTES,
    IDLE_TAKES,
    Arenas,
    ArenaWriter,
)


class _Both:
    """A worker's arenas, and what the server process has of them."""

    def __init__(self) -> None:
        self.readers: dict[int, ArenaReader] = {}
        self.inodes: list[tuple[int, int]] = []  # of all that were announced, by number
        self.arenas = Arenas(self._announce, self._give_up)

    def _announce(self, arena: ArenaWriter) -> None:
        assert arena.number not in self.readers
        self.inodes.append((arena.number, os.fstat(arena.fd).st_ino))
        self.readers[arena.number] = ArenaReader(os.dup(arena.fd), arena.size_bytes)

    def _give_up(self, arena: ArenaWriter) -> None:
        self.readers.pop(arena.number).close()

    @property
    def held(self) -> dict[int, int]:
        """The arenas that this process maps, or has a descriptor of, and their bytes in memory."""
        fds = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        found = {fd.stat().st_ino for fd in fds if fd.exists()}
        found |= {int(line.split()[4]) for line in Path("/proc/self/maps").read_text().splitlines()}
        numbers = [number for number, inode in self.inodes if inode in found]
        return {number: os.fstat(self.readers[number].fd).st_blocks * 512 for number in numbers}

    def close(self) -> None:
        """Close what is left."""
        for number in list(self.readers):
            self.readers.pop(number).close()


def test_an_arena_that_is_idle_for_long_gives_its_memory_back() -> None:
    """Wholly, on both sides; another one stands there when it is needed again.

    What is at work is left alone.
    """
    both = _Both()
    arenas, readers = both.arenas, both.readers
    nbytes = ARENA_BYTES // 2
    burst = []
    for number in range(6):
        arena, start = arenas.take(nbytes)
        arena.view[start : start + nbytes] = bytes([number + 1]) * nbytes
        burst.append((arena, start))
    assert both.held == {0: ARENA_BYTES, 1: ARENA_BYTES, 2: ARENA_BYTES}

    held, start = burst[2]  # one of them is still being sent
    for arena, where in burst[:2] + burst[3:]:
        arenas.give_back(arena.number, where)
    del arena
    burst.clear()
    for _ in range(3 * IDLE_TAKES):
        first, where = arenas.take(1000)
        assert first.number == 0
        arenas.give_back(0, where)

    assert both.held == {0: ARENA_BYTES, 1: ARENA_BYTES}
    assert bytes(readers[1].view[start : start + 9]) == b"\3" * 9
    arenas.give_back(held.number, start)
    del held
    for _ in range(3 * IDLE_TAKES):
        arenas.give_back(0, arenas.take(1000)[1])
    assert both.held == {0: ARENA_BYTES}

    for number in range(6):
        arena, start = arenas.take(nbytes)
        arena.view[start : start + nbytes] = bytes([number + 7]) * nbytes
        assert bytes(readers[arena.number].view[start : start + 9]) == bytes([number + 7]) * 9
    assert len(both.inodes) == 5
    assert sorted(readers) == [0, 1, 2]
    both.close()


def test_large_batches_need_not_be_many() -> None:
    """What a burst of them took is given back after a few hundred megabytes of others."""
    both = _Both()
    arenas = both.arenas
    nbytes = ARENA_BYTES // 4
    burst = [arenas.take(nbytes) for _ in range(12)]
    for arena, start in burst:
        arena.view[start : start + nbytes] = bytes(nbytes)
    for arena, start in burst:
        arenas.give_back(arena.number, start)
    del arena
    burst.clear()

    for _ in range(3 * IDLE_BYTES // nbytes):
        arenas.give_back(0, arenas.take(nbytes)[1])

    assert both.held == {0: ARENA_BYTES}
    both.close()
