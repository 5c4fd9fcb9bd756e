"""Shared memory after a burst: what one worker needed once is not held for the rest of the run."""

from __future__ import annotations

import os

from penstock.server.node.arena import ARENA_BYTES, IDLE_BYTES, IDLE_TAKES, Arenas, ArenaWriter
from penstock.server.node.spans import ArenaReader


def held_bytes(arena: ArenaWriter) -> int:
    """Return how much memory the system holds for an arena."""
    return os.fstat(arena.fd).st_blocks * 512


def test_an_arena_that_is_idle_for_long_gives_its_memory_back() -> None:
    """It stays mapped, is used again when it is needed, and the one at work is left alone."""
    announced: list[ArenaWriter] = []
    arenas = Arenas(announced.append)
    nbytes = ARENA_BYTES // 2
    burst = []
    for number in range(6):
        arena, start = arenas.take(nbytes)
        arena.view[start : start + nbytes] = bytes([number + 1]) * nbytes
        burst.append((arena, start))
    readers = [ArenaReader(os.dup(arena.fd), arena.size_bytes) for arena in announced]
    assert [held_bytes(arena) for arena in announced] == [ARENA_BYTES] * 3

    held, start = burst[2]  # one of them is still being sent
    for arena, where in burst[:2] + burst[3:]:
        arenas.give_back(arena.number, where)
    for _ in range(3 * IDLE_TAKES):
        arena, where = arenas.take(1000)
        assert arena.number == 0
        arenas.give_back(0, where)

    assert [held_bytes(arena) for arena in announced] == [ARENA_BYTES, ARENA_BYTES, 0]
    assert bytes(readers[1].view[start : start + 9]) == b"\3" * 9
    arenas.give_back(held.number, start)
    for _ in range(3 * IDLE_TAKES):
        arenas.give_back(0, arenas.take(1000)[1])
    assert [held_bytes(arena) for arena in announced] == [ARENA_BYTES, 0, 0]

    for number in range(6):
        arena, start = arenas.take(nbytes)
        arena.view[start : start + nbytes] = bytes([number + 7]) * nbytes
        assert bytes(readers[arena.number].view[start : start + 9]) == bytes([number + 7]) * 9
    assert len(announced) == 3
    for reader in readers:
        reader.close()
    for arena in announced:
        os.close(arena.fd)


def test_large_batches_need_not_be_many() -> None:
    """What a burst of them took is given back after a few hundred megabytes of others."""
    announced: list[ArenaWriter] = []
    arenas = Arenas(announced.append)
    nbytes = ARENA_BYTES // 4
    burst = [arenas.take(nbytes) for _ in range(12)]
    for arena, start in burst:
        arena.view[start : start + nbytes] = bytes(nbytes)
    for arena, start in burst:
        arenas.give_back(arena.number, start)

    for _ in range(3 * IDLE_BYTES // nbytes):
        arenas.give_back(0, arenas.take(nbytes)[1])

    assert [held_bytes(arena) for arena in announced] == [ARENA_BYTES, 0, 0]
    for arena in announced:
        os.close(arena.fd)
