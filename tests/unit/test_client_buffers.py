"""Storage of bodies: used again when the last view is gone, never before, and bounded."""

from __future__ import annotations

import gc
import mmap
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from penstock.client.reading import buffers
from penstock.client.reading.buffers import BufferPool, size_class
from penstock.wire.malloc import keep_memory


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


def test_storage_is_aligned_to_pages_and_writable() -> None:
    lease = BufferPool(keep=2).lease(100_000)

    assert lease.ctypes.data % mmap.PAGESIZE == 0
    assert lease.flags.writeable
    assert lease.shape == (100_000,)


LAST: dict[str, Callable[[Any], Any]] = {
    "view": lambda lease: lease[64:128].view(np.int64).reshape(2, 4),
    "slice of a view": lambda lease: lease[64:128].view(np.int64).reshape(2, 4)[1:, 2:],
    "tensor": torch.from_numpy,
    "view of a tensor": lambda lease: torch.from_numpy(lease)[64:128].view(torch.int64),
}


@pytest.mark.parametrize("kind", LAST)
def test_storage_is_used_again_only_when_the_last_view_is_gone(kind: str) -> None:
    pool = BufferPool(keep=2)
    lease = pool.lease(5000)
    address = lease.ctypes.data
    last = LAST[kind](lease)
    del lease
    gc.collect()

    other = pool.lease(5000)
    assert other.ctypes.data != address
    assert pool.statistics()["leased_bytes"] == 2 * size_class(5000)

    del last
    gc.collect()
    assert pool.lease(5000).ctypes.data == address


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
        address = lease.ctypes.data
        del lease
        gc.collect()
        pool.statistics()

    again = pool.lease(1 << 19)
    assert again.ctypes.data == address


def test_leases_of_many_threads_never_overlap() -> None:
    """Each thread writes its number all over its leases and finds it there; collected anywhere."""
    seed = random.randrange(1 << 32)
    pool = BufferPool(keep=4)
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        held: list[np.ndarray] = []
        for _ in range(300):
            lease = pool.lease(rng.randrange(0, 60_000))
            lease[:] = number
            held.append(lease)
            if len(held) > 4:
                held.pop(rng.randrange(len(held)))
            if any((array != number).any() for array in held):
                wrong.append(f"seed {seed}, thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


FORK = """
import os, sys
from penstock.client.reading.buffers import BufferPool

pool = BufferPool(keep=1)
lease = pool.lease(int(sys.argv[1]))
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
