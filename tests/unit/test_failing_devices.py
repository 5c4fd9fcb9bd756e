"""A device that fails, or is used wrongly, is a matter of those who use it: no other Loader's."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.client.bodies.buffers import BufferPool
from penstock.client.device.copier import Copier
from penstock.client.device.pinned import PinnedMemory
from penstock.client.testing import Lazy, Misuse, SimulatedDevice


def left_behind() -> tuple[SimulatedDevice, NDArray[np.uint8]]:
    """Return a device that has not read what it was given, whose Loader is gone; and a view."""
    device = SimulatedDevice(Lazy())
    memory = PinnedMemory(device.port)
    lease = BufferPool(1, memory=memory).lease(5000)
    Copier(device.port, device.simulator.stream("copies"), memory).copy(lease)
    return device, lease.array


def lend() -> None:
    """Have another Loader's pool lend memory, which looks at what others have left."""
    BufferPool(1, memory=PinnedMemory(SimulatedDevice().port)).lease(5000)
    BufferPool(1).lease(5000)


@pytest.fixture
def left() -> Iterator[tuple[SimulatedDevice, list[NDArray[np.uint8]]]]:
    """One, which troubles no other test; the view is in a list."""
    device, view = left_behind()
    views = [view]
    del view
    gc.collect()
    yield device, views
    device.simulator.before = None
    device.simulator.abandon()


@pytest.mark.parametrize("error", [RuntimeError, OSError, AssertionError])
def test_others_lend_memory_whatever_a_device_says_that_was_left(
    left: tuple[SimulatedDevice, list[NDArray[np.uint8]]], error: type[Exception]
) -> None:
    device, views = left
    asked = []

    def before(call: str) -> None:
        asked.append(call)
        raise error("gone")

    device.simulator.before = before
    lend()
    assert "query" in asked

    device.simulator.before = None
    device.simulator.drain()
    views.clear()
    gc.collect()
    device.simulator.close()


def test_a_misuse_that_another_has_found_is_told_to_whoever_uses_the_device(
    left: tuple[SimulatedDevice, list[NDArray[np.uint8]]],
) -> None:
    device, [view] = left
    view[:] = 7
    lend()

    with pytest.raises(Misuse, match="the source of a copy was written"):
        device.simulator.record(device.current())
    device.simulator.record(device.current())


def test_a_misuse_that_another_has_found_keeps_nothing_of_its_own(
    left: tuple[SimulatedDevice, list[NDArray[np.uint8]]],
) -> None:
    """Its arena is released with it, although the misuse is told later."""
    [view] = left[1]
    view[:] = 7
    other = SimulatedDevice()
    pool = BufferPool(1, memory=PinnedMemory(other.port))
    pool.lease(5000)

    del pool
    gc.collect()
    other.simulator.close()


def test_a_device_that_is_closed_holds_up_no_other(
    left: tuple[SimulatedDevice, list[NDArray[np.uint8]]],
) -> None:
    """It asks what others have left, which may be asking about this one at that moment."""
    device = SimulatedDevice()
    stream, recorded = device.current(), threading.Event()

    def record() -> None:
        device.simulator.record(stream)
        recorded.set()

    def before(call: str) -> None:
        threading.Thread(target=record, daemon=True).start()
        assert recorded.wait(60), "the device that is closed takes no calls meanwhile"

    left[0].simulator.before = before
    device.simulator.close()
    assert recorded.is_set()


def test_a_misuse_that_another_has_found_is_told_at_the_close(
    left: tuple[SimulatedDevice, list[NDArray[np.uint8]]],
) -> None:
    device, [view] = left
    view[:] = 7
    lend()

    with pytest.raises(Misuse, match="the source of a copy was written"):
        device.simulator.close()
