"""Bodies on their way to a device: what must happen in which order, whatever the device is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.buffers import Lease
from penstock.client.device.driver import Driver
from penstock.client.device.pinned import PinnedMemory
from penstock.client.device.port import DeviceMemory, End, Event, Port, Stream

T = TypeVar("T")


class Copy(NamedTuple):
    """A body that is on its way.

    Attributes:
        memory: nbytes of the device; what `receive` was called for finds the bytes there.
        event: The end of the copy, and of what follows it.
        results: Further memory of the device, which that has written.
    """

    memory: DeviceMemory
    event: Event
    results: tuple[DeviceMemory, ...] = ()


class Copier:
    """Brings bodies to a device from pinned memory, without waiting for the copy.

    A body is copied from where it lies: in the arena, or in memory that a node has lent and that is
    registered. Its lease lasts until that is over. Others, such as the first ones, are staged in
    the arena, since no device copies from pageable memory by itself.

    The loop's thread calls `receive`, and others `copy`: those of a feed, and of the one before if
    that still waits for the device.

    Args:
        port: Of the device.
        stream: Where copies are queued, and what follows them: one that has no other work, or they
            would wait for that.
        memory: What is pinned; None = memory of its own.
    """

    def __init__(self, port: Port, stream: Stream, memory: PinnedMemory | None = None) -> None:
        self._port, self._stream = port, stream
        self._memory = PinnedMemory(port) if memory is None else memory
        self._staging = threading.Lock()  # no signal handler breaks the threads off that take it

    def copy(self, lease: Lease) -> Copy:
        """Queue the copy of a body.

        Raises:
            CannotPin: There is no pinned memory to stage it in.
            OutOfDeviceMemory: The device has no room for it.
            DeviceFailed: The device does not take it.
        """
        memory = self._port.allocate(lease.nbytes, self._stream)
        if not lease.nbytes:
            return Copy(memory, self._port.record(self._stream))
        end = End(self._port, self._stream)
        try:
            source = self._source(lease, end)
            if source is not None:
                self._queue(memory, source, lease.nbytes, end)
            else:
                with self._staging:
                    staged = self._memory.stage(lease.array, end)
                    self._queue(memory, staged, lease.nbytes, end)
        except BaseException:
            end.is_doubtful = True  # the device may still read what it was to read
            raise
        return Copy(memory, end.event)

    def follow(self, copy: Copy, driver: Driver, work: Callable[[], T]) -> tuple[T, Copy]:
        """Queue work that reads what a copy brings, after it on its stream.

        Args:
            copy: The last that this thread has queued.
            driver: Of the device.
            work: Calls the device's library; what it returns may hold new memory of the device.

        Returns:
            What `work` returns; and what `receive` is called for in place of the copy.

        Raises:
            OutOfDeviceMemory: The device has no room for results.
            DeviceFailed: The device does not take it.
            Exception: What `work` raises. What it has queued by then harms nothing.
        """
        result, memory = driver.work_on(self._stream, work)
        return result, Copy(copy.memory, self._port.record(self._stream), tuple(memory))

    def receive(self, copy: Copy, stream: Stream) -> None:
        """Have what is queued on `stream` from now on come after the copy; the host goes on.

        It comes after what followed the copy, too.
        """
        self._port.wait(stream, copy.event, copy.memory, *copy.results)

    def _source(self, lease: Lease, end: End) -> NDArray[np.uint8] | None:
        """Return memory that the device may read until `end`; None = the body must be staged."""
        if lease.is_pinned:
            lease.events.append(end)
            return lease.array
        return None if lease.lent is None else lease.lent.source(self._memory, end)

    def _queue(
        self, memory: DeviceMemory, source: NDArray[np.uint8], nbytes: int, end: End
    ) -> None:
        self._port.copy(memory, source, nbytes, self._stream)
        end.event = self._port.record(self._stream)
