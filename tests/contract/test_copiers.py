"""What queues of copies to a device hold to: one on the host, and CUDA's where it is present."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from penstock.client.reading.buffers import BufferPool, Lease
from penstock.client.reading.torch_device import QUEUES, Copier, Copy, Queue
from unit.host_queue import NOT_THERE, HostQueue
from unit.served import wait_until

SIZES = (100_000, 5 << 20, 4097, 1, 99_999, 64, 0, 2 << 20)

KINDS: dict[str, Callable[[], Queue]] = {
    "host": HostQueue,
    "slow host": lambda: HostQueue(copy_s=0.002),
}
if torch.cuda.is_available():
    KINDS["cuda"] = lambda: QUEUES["cuda"](torch.device("cuda"))


@pytest.fixture(params=KINDS)
def copier(request: pytest.FixtureRequest) -> Copier:
    """One over a queue of each kind."""
    found = Copier(KINDS[request.param]())
    found.settle()
    return found


@pytest.fixture
def pool(copier: Copier) -> BufferPool:
    """Memory that the device copies from by itself."""
    return BufferPool(keep=2, memory=copier.memory)


def filled(lease: Lease, number: int) -> Lease:
    """Return a lease whose bytes depend on a number."""
    lease.array[:] = number % 251
    return lease


def on_another_thread(work: Callable[[], Any]) -> Any:
    """Return what `work` returns on a thread that is not the loop's."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("is_pinned", [True, False], ids=["pinned", "staged"])
def test_every_byte_is_there_when_a_copy_was_received(copier: Copier, is_pinned: bool) -> None:
    """Although memory on the host is lent again, and written to, as soon as its lease has ended."""
    pool = BufferPool(keep=2, memory=copier.memory) if is_pinned else BufferPool(keep=2)

    def copies() -> list[Copy]:
        return [copier.copy(filled(pool.lease(SIZES[n % 8]), n)) for n in range(24)]

    for n, copy in enumerate(on_another_thread(copies)):
        copier.receive(copy)
        assert copy.body.shape == (SIZES[n % 8],)
        assert copy.body.dtype == torch.uint8
        assert bool((copy.body.cpu() == n % 251).all())


def test_views_that_were_made_before_the_copy_was_over_see_its_bytes(
    copier: Copier, pool: BufferPool
) -> None:
    """So a batch is decoded while it is on its way."""
    lease = pool.lease(800)
    lease.array.view(np.int64)[:] = np.arange(100)

    copy = on_another_thread(lambda: copier.copy(lease))
    view = copy.body.view(torch.int64).view(10, 10)[3:5]
    copier.receive(copy)

    assert view.cpu().tolist() == [[*range(30, 40)], [*range(40, 50)]]


def test_what_was_never_received_does_no_harm(copier: Copier, pool: BufferPool) -> None:
    """A batch that the loop leaves out: its memory is used again, there and here."""
    for n in range(20):
        copy = copier.copy(filled(pool.lease(1 << 20), n))
        if n % 3:
            continue
        copier.receive(copy)
        assert bool((copy.body.cpu() == n).all())


# --- what a queue that a test can hold up shows ---


@contextmanager
def held_up() -> Iterator[tuple[HostQueue, Copier]]:
    """Give a copier whose copies wait until the test lets them go."""
    queue = HostQueue()
    copier = Copier(queue)
    copier.settle()
    queue.goes.clear()
    try:
        yield queue, copier
    finally:
        queue.goes.set()


def test_a_lease_outlives_its_views_until_the_copy_is_over() -> None:
    with held_up() as (queue, copier):
        pool = BufferPool(keep=2, memory=copier.memory)
        lease = filled(pool.lease(5000), 7)
        address = lease.array.ctypes.data

        copy = copier.copy(lease)
        del lease
        gc.collect()
        others = [filled(pool.lease(5000), 9) for _ in range(3)]
        assert address not in [other.array.ctypes.data for other in others]
        assert bool((copy.body == NOT_THERE).all())

        queue.goes.set()
        copier.receive(copy)
        assert bool((copy.body == 7).all())
        assert pool.lease(5000).array.ctypes.data == address


def test_what_was_staged_needs_its_lease_no_more() -> None:
    """A lent body goes back to its node at once: two are staged while the device is busy."""
    with held_up() as (queue, copier):
        pool = BufferPool(keep=2)
        copies = []
        for n in range(2):
            lease = filled(pool.lease(5000), n)
            copies.append(copier.copy(lease))
            assert not lease.events
            filled(lease, 99)

        queue.goes.set()
        for n, copy in enumerate(copies):
            copier.receive(copy)
            assert bool((copy.body == n).all())


def test_a_third_body_is_staged_when_the_first_copy_is_over() -> None:
    """The pinned memory of staging is bounded by two bodies."""
    with held_up() as (queue, copier):
        pool = BufferPool(keep=2)
        for n in range(2):
            copier.copy(filled(pool.lease(5000), n))
        third: list[Copy] = []
        thread = threading.Thread(
            target=lambda: third.append(copier.copy(filled(pool.lease(5000), 2)))
        )
        thread.start()
        thread.join(0.2)
        assert (thread.is_alive(), queue.sent) == (True, 2)

        queue.goes.set()
        thread.join(60)
        wait_until(lambda: third, "the third copy")
        copier.receive(third[0])
        assert bool((third[0].body == 2).all())


def test_copies_of_several_threads_do_not_mix() -> None:
    """The thread of a feed that was left may still wait for the device when the next one begins."""
    queue = HostQueue()
    copier = Copier(queue)
    copier.settle()
    queue.accepts.clear()
    leases = [filled(BufferPool(keep=1).lease(1000), number) for number in range(1, 4)]
    copies: dict[int, Copy] = {}

    def copy(number: int, lease: Lease) -> None:
        copies[number] = copier.copy(lease)

    threads = [threading.Thread(target=copy, args=pair) for pair in enumerate(leases, 1)]
    for thread in threads:
        thread.start()
        thread.join(0.05)  # as far as it gets: the device takes nothing
    queue.accepts.set()
    for thread in threads:
        thread.join()

    for number, copy_ in copies.items():
        copier.receive(copy_)
        assert set(copy_.body.tolist()) == {number}
    assert len(copies) == 3
