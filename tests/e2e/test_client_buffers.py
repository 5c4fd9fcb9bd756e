"""Storage of bodies: used again when the last view is gone, never before, and bounded."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys

import numpy as np
import pytest

from penstock.client.bodies import buffers
from penstock.client.bodies.buffers import BufferPool, Lease, size_class
from penstock.common.malloc import keep_memory


def test_a_size_class_holds_its_size_and_wastes_at_most_a_quarter() -> None:
    last = 0
    for nbytes in [
        *range(1, 3000),
        *(page * 4096 + d for page in range(1, 600) for d in (-1, 0, 1)),
    ]:
        size = size_class(nbytes)
        assert size >= nbytes
        assert size % mmap.PAGESIZE == 0
        assert size - nbytes <= max(mmap.PAGESIZE, nbytes // 4)
    for nbytes in range(1, 1 << 22, 4093):
        assert size_class(nbytes) >= last
        last = size_class(nbytes)


def test_free_storage_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MIN_FREE_BYTES", 0)
    pool = BufferPool(keep=2)
    leases = [pool.lease(1 << 20) for _ in range(10)]
    leases.clear()
    gc.collect()

    assert pool.statistics() == {"leased_bytes": 0, "free_bytes": 2 << 20}


def test_sizes_that_were_once_used_give_way_to_those_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "MIN_FREE_BYTES", 0)
    pool = BufferPool(keep=1)
    for nbytes in (1 << 20, 1 << 19):
        lease = pool.lease(nbytes)
        address = lease.array.ctypes.data
        del lease
        gc.collect()
        pool.statistics()

    again = pool.lease(1 << 19)
    assert again.array.ctypes.data == address


class OneSpan:
    """Memory with room for one body: a `BodyMemory`."""

    def __init__(self) -> None:
        self.is_taken = False

    def lease(self, nbytes: int) -> Lease | None:
        """Return memory once."""
        if self.is_taken:
            return None
        self.is_taken = True
        return Lease(np.zeros(nbytes, np.uint8), [], is_pinned=True)

    def statistics(self) -> dict[str, int]:
        """Return what is taken."""
        return {"leased_bytes": 8192 * self.is_taken, "free_bytes": 8192 * (not self.is_taken)}


def test_other_memory_is_lent_from_then_on_as_long_as_it_has_room() -> None:
    """What is leased stays as it is; plain memory takes over, and nothing is waited for."""
    pool = BufferPool(keep=4)
    before = pool.lease(5000)
    before.array[:] = 7

    pool.use(OneSpan())

    assert pool.statistics() == {"leased_bytes": 8192, "free_bytes": 8192}
    after = [pool.lease(5000) for _ in range(3)]
    assert [lease.is_pinned for lease in (before, *after)] == [False, True, False, False]
    assert (before.array == 7).all()
    assert pool.statistics() == {"leased_bytes": 4 * 8192, "free_bytes": 0}


FORK = """
import os, sys
from penstock.client.bodies.buffers import BufferPool

pool = BufferPool(keep=1)
lease = pool.lease(int(sys.argv[1])).array
lease[:] = 1
hear, tell = os.pipe()
child = os.fork()
if child == 0:
    os.read(hear, 1)  # until the parent has put the next batch there
    os._exit(int(lease.min() == lease.max() == 1))
lease[:] = 2
os.write(tell, b".")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lease.min(), lease.max())
"""


@pytest.mark.parametrize("nbytes", [100_000, 5 << 20])
def test_a_fork_keeps_the_batch_that_it_was_given(nbytes: int) -> None:
    """Its parent uses the storage again as soon as nobody in the parent holds it."""
    command = [sys.executable, "-c", FORK, str(nbytes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    assert output.split() == ["1", "2", "2"]


def test_glibc_can_be_told_to_keep_memory() -> None:
    import platform

    assert keep_memory() == (platform.libc_ver()[0] == "glibc")
