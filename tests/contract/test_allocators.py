"""What allocators of bodies' memory hold to: plain memory, a simulated device's, and CUDA's."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from penstock.client.bodies.buffers import BodyAllocator, BufferPool, Lease
from penstock.client.device.driver import Driver
from penstock.client.device.pinned import PinnedMemory
from penstock.client.testing import Simulator
from penstock.wire import ALIGNMENT
from unit.devices import ANSWERING

ALLOCATORS: dict[str, Callable[[], BodyAllocator]] = {
    "plain": lambda: BufferPool(keep=4),
    "simulated": lambda: BufferPool(keep=4, memory=PinnedMemory(Simulator())),
}


def pinned_by(make: Callable[[], Driver]) -> BodyAllocator:
    """Return a pool of a driver's pinned memory."""
    driver = make()
    driver.open()
    return BufferPool(keep=4, memory=PinnedMemory(driver.port))


EACH = [*ALLOCATORS, *(pytest.param(name, marks=pytest.mark.gpu) for name in ANSWERING)]
ALLOCATORS |= {name: partial(pinned_by, make) for name, make in ANSWERING.items()}


@pytest.fixture(params=EACH)
def allocator(request: pytest.FixtureRequest) -> BodyAllocator:
    """One of each kind."""
    return ALLOCATORS[request.param]()


class Copy:
    """An event that comes to pass when the test says so."""

    def __init__(self) -> None:
        self.is_over = False

    def query(self) -> bool:
        """Tell whether it has come to pass."""
        return self.is_over


def where(lease: Lease) -> int:
    """Return the address of a lease's memory."""
    return int(lease.array.ctypes.data)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 4096, 100_000, 5 << 20])
def test_memory_is_aligned_writable_and_of_the_size_that_was_asked_for(
    allocator: BodyAllocator, nbytes: int
) -> None:
    lease = allocator.lease(nbytes)

    lease.array[:] = 3
    assert lease.array.dtype == np.uint8
    assert lease.array.shape == (nbytes,)
    assert lease.nbytes == nbytes
    assert not nbytes or where(lease) % ALIGNMENT == 0
    assert not lease.events


LAST: dict[str, Callable[[Any], Any]] = {
    "the array": lambda array: array,
    "view": lambda array: array[64:128].view(np.int64).reshape(2, 4),
    "slice of a view": lambda array: array[64:128].view(np.int64).reshape(2, 4)[1:, 2:],
    "tensor": torch.from_numpy,
    "view of a tensor": lambda array: torch.from_numpy(array)[64:128].view(torch.int64),
}


@pytest.mark.parametrize("kind", LAST)
def test_memory_is_lent_again_when_the_last_view_is_gone(
    allocator: BodyAllocator, kind: str
) -> None:
    """And never before: the lease itself may be gone, a view of it counts."""
    lease = allocator.lease(5000)
    address = where(lease)
    last = LAST[kind](lease.array)
    del lease
    gc.collect()

    other = allocator.lease(5000)
    assert where(other) != address
    held = allocator.statistics()["leased_bytes"]

    del last
    gc.collect()
    assert allocator.statistics()["leased_bytes"] == held // 2
    assert where(allocator.lease(5000)) == address


def test_memory_is_lent_again_only_when_every_event_has_come_to_pass(
    allocator: BodyAllocator,
) -> None:
    """A device reads on when all views on the host are gone."""
    lease = allocator.lease(5000)
    address, copies = where(lease), [Copy(), Copy()]
    lease.events.extend(copies)
    del lease
    gc.collect()

    for copy in copies:
        assert where(allocator.lease(5000)) != address
        gc.collect()
        copy.is_over = True

    found = [allocator.lease(5000) for _ in range(3)]
    assert address in map(where, found)


def test_an_event_that_cannot_be_asked_is_asked_again(allocator: BodyAllocator) -> None:
    """A device that fails for a moment: nothing is forgotten, and nothing is lent before."""

    class Failing(Copy):
        def query(self) -> bool:
            if not self.is_over:
                raise OSError("the device is gone")
            return True

    lease = allocator.lease(5000)
    address, event = where(lease), Failing()
    lease.events.append(event)
    del lease
    gc.collect()

    for _ in range(2):
        with pytest.raises(OSError, match="the device is gone"):
            allocator.lease(5000)
    event.is_over = True
    assert where(allocator.lease(5000)) == address


def test_an_event_that_has_come_to_pass_does_not_end_a_lease_with_views(
    allocator: BodyAllocator,
) -> None:
    lease = allocator.lease(5000)
    copy = Copy()
    copy.is_over = True
    lease.events.append(copy)

    assert where(allocator.lease(5000)) != where(lease)


def test_leases_never_overlap(allocator: BodyAllocator) -> None:
    """Those that have not ended, whatever was asked for and ended before."""
    rng = random.Random(7)
    held: list[Lease] = []
    for _ in range(300):
        held.append(allocator.lease(rng.randrange(1, 60_000)))
        if len(held) > 6:
            held.pop(rng.randrange(len(held)))
        spans = sorted((where(lease), where(lease) + lease.nbytes) for lease in held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_leases_of_many_threads_never_overlap(allocator: BodyAllocator) -> None:
    """Each thread writes its number all over its leases and finds it there; collected anywhere."""
    seed = random.randrange(1 << 32)
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        held: list[Lease] = []
        for _ in range(200):
            lease = allocator.lease(rng.randrange(0, 60_000))
            lease.array[:] = number
            held.append(lease)
            if len(held) > 4:
                held.pop(rng.randrange(len(held)))
            if any((other.array != number).any() for other in held):
                wrong.append(f"seed {seed}, thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_what_was_lent_long_ago_takes_no_memory(allocator: BodyAllocator) -> None:
    """However many bodies came and went, what lies free is bounded."""
    for _ in range(500):
        allocator.lease(200_000)
    gc.collect()

    found = allocator.statistics()
    assert found["leased_bytes"] <= 1 << 20
    assert found["free_bytes"] <= 64 << 20
