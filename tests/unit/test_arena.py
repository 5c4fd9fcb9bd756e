"""Spans of shared memory: never overlapping, growing together again, seen by the other side."""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.node.demand.batch_spans import ArenaReader
from penstock.server.node.workers.arena import ARENA_BYTES, Arenas, ArenaWriter
from penstock.server.processes.shared_memory import sealed_memory
from penstock.wire import ALIGNMENT

SIZE = 64 * ALIGNMENT


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, SIZE)), max_size=80))
def test_spans_never_overlap_and_grow_together(acts: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back: spans are apart and aligned; at the end all is one span.

    A request is refused only if no free span is long enough.
    """
    arena = ArenaWriter(0, SIZE)
    spans: dict[int, int] = {}
    for take, number in acts:
        if take:
            start = arena.take(number)
            length = max(ALIGNMENT, -(-number // ALIGNMENT) * ALIGNMENT)
            if start is None:
                assert length > _longest_gap(spans)
                continue
            assert start % ALIGNMENT == 0
            assert start + length <= SIZE
            assert all(start + length <= s or s + spans[s] <= start for s in spans)
            spans[start] = length
        elif spans:
            start = sorted(spans)[number % len(spans)]
            arena.give_back(start)
            del spans[start]
        assert arena.taken_bytes == sum(spans.values())
    for start in spans:
        arena.give_back(start)

    assert arena.take(SIZE) == 0
    os.close(arena.fd)


def _longest_gap(spans: dict[int, int]) -> int:
    longest, end = 0, 0
    for start in sorted(spans):
        longest, end = max(longest, start - end), start + spans[start]
    return max(longest, SIZE - end)


def test_new_arenas_are_announced_before_they_are_used() -> None:
    """One at a time, each large enough, and freed room is used before another is made."""
    announced: list[ArenaWriter] = []
    arenas = Arenas(announced.append, announced.remove)

    first = arenas.take(ARENA_BYTES // 2)
    second = arenas.take(ARENA_BYTES // 2)
    large = arenas.take(3 * ARENA_BYTES)
    assert [arena.number for arena in announced] == [0, 1]
    assert first[0] is second[0]
    assert large[0].size_bytes >= 6 * ARENA_BYTES
    arenas.give_back(0, first[1])
    again = arenas.take(ARENA_BYTES // 2)

    assert (again[0].number, again[1]) == (0, first[1])
    assert len(announced) == 2
    for arena in announced:
        os.close(arena.fd)


def test_a_reader_sees_what_the_writer_wrote() -> None:
    """Over a passed file descriptor, also after the writer's side is gone."""
    writer = ArenaWriter(0, SIZE)
    start = writer.take(100)
    assert start is not None
    writer.view[start : start + 5] = b"bytes"
    reader = ArenaReader(os.dup(writer.fd), SIZE)
    writer.close()

    assert bytes(reader.view[start : start + 5]) == b"bytes"
    reader.close()


def test_nobody_writes_where_another_process_reads() -> None:
    """Though the file be its own: opened anew for writing, it is neither mapped nor written.

    The worker that had it mapped before goes on, and who borrows it may have pages of its own.
    """
    writer = ArenaWriter(0, SIZE)
    reader = ArenaReader(os.dup(writer.fd), SIZE)
    os.fchmod(reader.fd, 0o600)
    anew = os.open(f"/proc/self/fd/{reader.fd}", os.O_RDWR)

    for write in (
        lambda: os.pwrite(anew, b"other", 0),
        lambda: mmap.mmap(anew, SIZE),
        lambda: os.ftruncate(anew, 0),
        lambda: fcntl.fcntl(anew, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            write()

    writer.view[:5] = b"bytes"
    assert bytes(reader.view[:5]) == b"bytes"
    private = mmap.mmap(reader.fd, SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    private[:5] = b"other"
    assert bytes(reader.view[:5]) == b"bytes"
    assert reader.may_be_lent
    private.close()
    os.close(anew)
    reader.close()
    writer.close()


def test_what_others_may_write_to_is_not_lent() -> None:
    """An arena that is sealed in its size alone is read here, and its batches are sent."""
    reader = ArenaReader(sealed_memory("arena", SIZE), SIZE)

    assert not reader.may_be_lent
    reader.close()
