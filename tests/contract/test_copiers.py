"""What ports of devices hold to: simulated ones, and those of CUDA where it is found."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.client.bodies.buffers import BufferPool, Lease
from penstock.client.device.copier import Copier, Copy
from penstock.client.device.driver import Driver
from penstock.client.device.pinned import PinnedMemory
from penstock.client.testing import Lazy, Misuse, SimulatedDevice
from unit.devices import DRIVERS, EACH, bytes_of, on_host

SIZES = (100_000, 5 << 20, 4097, 1, 99_999, 64, 0, 2 << 20)


class Opened(NamedTuple):
    """A device, and what brings bodies there."""

    driver: Driver
    copier: Copier
    pool: BufferPool
    pinned: PinnedMemory

    def receive(self, copy: Copy) -> None:
        """Receive a copy on the calling thread's stream."""
        self.copier.receive(copy, self.driver.current())

    def holds(self, copy: Copy, nbytes: int) -> set[int]:
        """Return which bytes a received copy has brought."""
        return set(np.unique(bytes_of(self.driver, copy, nbytes)).tolist())


def opened(driver: Driver, most_bytes: int | None = None) -> Opened:
    """Return a device that this thread's loop has opened; at most so much is pinned for it."""
    stream = driver.open()
    assert stream is not driver.current()
    pinned = PinnedMemory(driver.port, most_bytes)
    copier = Copier(driver.port, stream, pinned)
    return Opened(driver, copier, BufferPool(keep=2, memory=pinned), pinned)


@pytest.fixture(params=EACH)
def device(request: pytest.FixtureRequest) -> Opened:
    """One of each kind."""
    return opened(DRIVERS[request.param]())


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
def test_every_byte_is_there_when_a_copy_was_received(device: Opened, is_pinned: bool) -> None:
    """Although memory on the host is lent again, and written to, as soon as its lease has ended."""
    pool = device.pool if is_pinned else BufferPool(keep=2)

    def copies() -> list[Copy]:
        return [device.copier.copy(filled(pool.lease(SIZES[n % 8]), n)) for n in range(24)]

    for n, copy in enumerate(on_another_thread(copies)):
        device.receive(copy)
        assert bytes_of(device.driver, copy, SIZES[n % 8]).shape == (SIZES[n % 8],)
        assert device.holds(copy, SIZES[n % 8]) == ({n % 251} if SIZES[n % 8] else set())


def test_views_that_were_made_before_the_copy_was_over_see_its_bytes(device: Opened) -> None:
    """So a batch is decoded while it is on its way."""
    lease = device.pool.lease(800)
    lease.array.view(np.int64)[:] = np.arange(100)

    copy = on_another_thread(lambda: device.copier.copy(lease))
    view = device.driver.values(copy.memory)("int64", (2, 10), 240, 160)
    device.receive(copy)

    assert on_host(view).tolist() == [[*range(30, 40)], [*range(40, 50)]]


def test_what_was_never_received_does_no_harm(device: Opened) -> None:
    """A batch that the loop leaves out: its memory is used again, there and here."""
    for n in range(20):
        lease = filled(device.pool.lease(1 << 20), n)
        copy = on_another_thread(lambda lease=lease: device.copier.copy(lease))
        del lease
        if n % 3:
            continue
        device.receive(copy)
        assert device.holds(copy, 1 << 20) == {n}


def test_memory_of_the_device_outlives_what_the_loop_still_does_with_it(device: Opened) -> None:
    """Views go while kernels that read them are still queued, and others are copied meanwhile."""
    sums = []
    for n in range(12):
        lease = filled(device.pool.lease(1 << 20), n)
        copy = on_another_thread(lambda lease=lease: device.copier.copy(lease))
        device.receive(copy)
        view = device.driver.values(copy.memory)("uint8", (1 << 20,), 0, 1 << 20)
        sums.append(device.driver.to_int64(view))
        del copy, view, lease

    assert [on_host(found)[[0, -1]].tolist() for found in sums] == [[n, n] for n in range(12)]


def test_memory_of_others_is_registered_and_copied_from_where_it_lies(device: Opened) -> None:
    """And unregistered once that is over."""
    lease = filled(BufferPool(keep=1).lease(1 << 20), 7)
    port, stream = device.driver.port, device.driver.open()

    def copy() -> Copy:
        port.register(lease.array)
        memory = port.allocate(lease.nbytes, stream)
        port.copy(memory, lease.array, lease.nbytes, stream)
        event = port.record(stream)
        port.synchronize(event)
        assert port.query(event)
        port.unregister(lease.array)
        return Copy(memory, event)

    found = on_another_thread(copy)
    device.receive(found)
    assert device.holds(found, 1 << 20) == {7}


# --- what a simulated device shows, which does nothing before somebody waits ---


def late(most_bytes: int | None = None) -> tuple[Opened, SimulatedDevice]:
    """Return such a device."""
    driver = SimulatedDevice(Lazy())
    return opened(driver, most_bytes), driver


def test_a_lease_outlives_its_views_until_the_copy_is_over() -> None:
    device, driver = late()
    lease = filled(device.pool.lease(5000), 7)
    address = lease.array.ctypes.data

    copy = device.copier.copy(lease)
    del lease
    gc.collect()
    others = [filled(device.pool.lease(5000), 9) for _ in range(3)]
    assert address not in [other.array.ctypes.data for other in others]

    driver.simulator.drain()
    device.receive(copy)
    assert device.holds(copy, 5000) == {7}
    assert device.pool.lease(5000).array.ctypes.data == address


def test_what_was_staged_needs_its_lease_no_more() -> None:
    """A lent body goes back to its node at once: two are staged while the device is busy."""
    device, _ = late()
    pool, copies = BufferPool(keep=2), []
    for n in range(2):
        lease = filled(pool.lease(5000), n)
        copies.append(device.copier.copy(lease))
        assert not lease.events
        filled(lease, 99)

    for n, copy in enumerate(copies):
        device.receive(copy)
        assert device.holds(copy, 5000) == {n}


def test_a_third_body_is_staged_when_the_first_copy_is_over() -> None:
    """Where two are all that may be pinned."""
    device, driver = late(2 * 8192)
    pool = BufferPool(keep=2)
    for n in range(2):
        device.copier.copy(filled(pool.lease(8192), n))
    counts = driver.simulator.counts
    assert (counts["copied"], counts["pin"]) == (0, 1)

    third = on_another_thread(lambda: device.copier.copy(filled(pool.lease(8192), 2)))

    assert (counts["copied"], counts["pin"]) == (1, 1)
    assert counts["synchronize"] == 1
    device.receive(third)
    assert device.holds(third, 8192) == {2}


def test_copies_of_several_threads_do_not_mix() -> None:
    """The thread of a feed that was left may still wait for the device when the next one begins."""
    driver = SimulatedDevice()
    device = opened(driver)
    accepts = threading.Event()
    leases = [filled(BufferPool(keep=1).lease(1000), number) for number in range(1, 4)]
    copies: dict[int, Copy] = {}

    def before(call: str) -> None:
        if call == "allocate":
            assert accepts.wait(60)

    def copy(number: int, lease: Lease) -> None:
        copies[number] = device.copier.copy(lease)

    driver.simulator.before = before
    threads = [threading.Thread(target=copy, args=pair) for pair in enumerate(leases, 1)]
    for thread in threads:
        thread.start()
    accepts.set()
    for thread in threads:
        thread.join()

    for number, found in copies.items():
        device.receive(found)
        assert device.holds(found, 1000) == {number}
    assert len(copies) == 3


@pytest.mark.parametrize("is_pinned", [True, False], ids=["pinned", "staged"])
@pytest.mark.parametrize("call", ["allocate", "copy", "record"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_failed_copy_may_still_read_is_not_written(
    call: str, when: str, is_pinned: bool
) -> None:
    """Until a copy is over that was queued after it: nobody knows what the device has taken."""
    device, driver = late()
    pool = device.pool if is_pinned else BufferPool(keep=2)
    failing = [call]

    def fail(made: str) -> None:
        if failing and made == failing[0]:
            failing.clear()
            raise OSError("refused")

    setattr(driver.simulator, when, fail)
    with pytest.raises(OSError, match="refused"):
        device.copier.copy(filled(pool.lease(5000), 1))
    gc.collect()

    def more(copier: Copier = device.copier, pool: BufferPool = pool) -> list[Copy]:
        return [copier.copy(filled(pool.lease(5000), n)) for n in range(2, 8)]

    copies = on_another_thread(more)
    for n, copy in enumerate(copies, 2):
        device.receive(copy)
        assert device.holds(copy, 5000) == {n}
    del copies, copy, device, pool, more
    gc.collect()
    driver.simulator.close()


def test_the_loops_thread_never_waits_for_the_device() -> None:
    """What waits is found, whether it would have waited long or not."""
    device, _ = late(2 * 8192)
    pool = BufferPool(keep=4)
    for n in range(2):
        device.copier.copy(filled(pool.lease(8192), n))

    with pytest.raises(Misuse, match="the loop's thread waits for an event"):
        device.copier.copy(filled(pool.lease(8192), 2))


@pytest.mark.parametrize("is_pinned", [True, False], ids=["pinned", "staged"])
def test_a_device_may_read_on_when_all_that_copied_is_gone(is_pinned: bool) -> None:
    """A Loader is closed while the batch that it gave last is on its way."""
    device, driver = late()
    pool = device.pool if is_pinned else BufferPool(keep=2)
    copy = device.copier.copy(filled(pool.lease(5000), 7))
    device.receive(copy)
    view = driver.values(copy.memory)("uint8", (5000,), 0, 5000)
    del device, pool, copy
    gc.collect()

    assert set(view.tolist()) == {7}
    del view
    gc.collect()
    driver.simulator.close()
