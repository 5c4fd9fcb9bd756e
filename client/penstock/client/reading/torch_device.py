"""Bodies on their way to a device of torch: pinned memory, and copies that nobody waits for.

Imported only where torch is installed. `Copier` knows what must happen in which order; a `Queue` is
what it asks of one kind of device, and `QUEUES` has those that there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.client.reading.buffers import Event, Lease, Memory, size_class


class Mark(Event, Protocol):
    """The end of a copy (`torch.cuda.Event`)."""

    def synchronize(self) -> None:
        """Wait until it has come to pass."""
        ...


class Queue(Protocol):
    """Copies to a device in order, beside what the training loop has queued there.

    For CUDA it is a stream. `tests/contract/test_copiers.py` is what a queue must hold to.

    Attributes:
        memory: From which it copies while the host goes on.
    """

    memory: Memory

    def settle(self) -> None:
        """Find out which device is meant. The loop's thread calls it once, before anything else."""
        ...

    def send(self, host: Any) -> tuple[Any, Mark]:
        """Return a new tensor on the device and the end of the copy into it, which is queued.

        Called by any threads, which need not be the loop's.

        Args:
            host: uint8 (n,), in `memory`. Nobody writes to it before the end of the copy.
        """
        ...

    def receive(self, body: Any, mark: Mark) -> None:
        """Have what the calling thread does on the device from now on come after the copy.

        And have the memory of `body` used for nothing else before all is over that this thread has
        queued when the last view of it goes. Called by the loop's thread, which does not wait.
        """
        ...


class Copy(NamedTuple):
    """A body that is on its way.

    Attributes:
        body: uint8 (nbytes,) on the device; the loop's thread finds the bytes after `receive`.
        mark: The end of the copy.
    """

    body: Any
    mark: Mark


class Copier:
    """Brings bodies to a device through pinned memory, without waiting for the copy.

    A body that lies in pinned memory is copied from there, and its lease lasts until that is over.
    Others, such as the first ones and those that a node has lent, are staged first, since no device
    copies from pageable memory by itself: two pinned buffers take turns, and each is written again
    only when the copy from it is over.

    Args:
        queue: Of the device. The loop's thread calls `settle` and `receive`, and others `copy`:
            those of a feed, and of the one before if that still waits for the device.

    Attributes:
        memory: The kind of memory that bodies should land in.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.memory = queue.memory
        self._buffers: list[Any] = [None, None]
        self._marks: list[Mark | None] = [None, None]
        self._turn = 0
        self._staging = threading.Lock()  # no signal handler breaks the threads off that take it

    def settle(self) -> None:
        """Find out which device is meant; see `Queue.settle`."""
        self._queue.settle()

    def copy(self, lease: Lease) -> Copy:
        """Queue the copy of a body."""
        body = torch.from_numpy(lease.array)
        if lease.is_pinned:
            copy = Copy(*self._queue.send(body))
            lease.events.append(copy.mark)
            return copy
        with self._staging:
            turn = self._turn
            self._turn = 1 - turn
            copy = Copy(*self._queue.send(self._staged(body, turn)))
            self._marks[turn] = copy.mark
            return copy

    def receive(self, copy: Copy) -> None:
        """Have what the calling thread does on the device from now on come after the copy."""
        self._queue.receive(copy.body, copy.mark)

    def _staged(self, body: Any, turn: int) -> Any:
        """Return the bytes in the pinned buffer whose turn it is."""
        mark, nbytes = self._marks[turn], body.numel()
        if mark is not None:
            mark.synchronize()
        if self._buffers[turn] is None or self._buffers[turn].numel() < nbytes:
            # Bodies of a packed job differ a little, and pinning is slow: a class has room.
            size = self.memory.size_class(nbytes)
            self._buffers[turn] = torch.from_numpy(self.memory.view(self.memory.new(size), size))
        staged = self._buffers[turn][:nbytes]
        staged.copy_(body)
        return staged


class PinnedMemory:
    """Memory from which a CUDA device copies while the host goes on.

    It is asked for when the queue is settled: torch pins by any context that there is, and else
    would make one on the first device, whichever the loop uses.
    """

    is_pinned = True

    def size_class(self, nbytes: int) -> int:
        """Return the next power of two: torch pins no other sizes, and pinning is slow."""
        return 1 << (size_class(nbytes) - 1).bit_length()

    def new(self, size: int) -> Any:
        """Return pinned memory of any content."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def view(self, storage: Any, nbytes: int) -> NDArray[np.uint8]:
        """Return a new array over the start of storage; its base is a tensor."""
        array: NDArray[np.uint8] = storage[:nbytes].numpy()
        return array


class CudaQueue:
    """A CUDA stream of its own: copies go on while the kernels of the loop's stream run.

    Args:
        device: A `torch.device` of type cuda; without an index it is the loop's current one.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream: Any = None
        self.memory: Memory = PinnedMemory()

    def settle(self) -> None:
        """Find out which device is meant: each thread has a current one of its own."""
        if self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._device)

    def send(self, host: Any) -> tuple[Any, Mark]:
        """Queue a copy on the stream, into memory that is allocated for the stream."""
        with torch.cuda.stream(self._stream):
            body = host.to(self._device, non_blocking=True)
            return body, self._stream.record_event()

    def receive(self, body: Any, mark: Mark) -> None:
        """Have the calling thread's current stream wait; the host goes on."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(mark)
        body.record_stream(current)  # else the allocator reuses it as soon as it is freed


QUEUES: dict[str, Callable[[Any], Queue]] = {"cuda": CudaQueue}
"""By the type of a `torch.device`. Other devices get each batch when the loop takes it."""


__all__ = ["QUEUES", "Copier", "Copy", "CudaQueue", "Mark", "PinnedMemory", "Queue"]
