"""Bodies on their way to a device of torch: pinned memory, and copies that nobody waits for.

Imported only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.client.reading.buffers import PLAIN, Lease, Memory, size_class

Mover = Callable[[Lease], Any]
"""Returns a body as a uint8 tensor on the device; the copy is queued on the current stream."""


def landing_memory(device: Any) -> Memory:
    """Return the kind of memory that bodies should land in on their way to a `torch.device`."""
    if device is not None and device.type == "cuda":
        return PinnedMemory()
    return PLAIN


def make_mover(device: Any) -> Mover:
    """Return what brings bodies to a `torch.device`."""
    if device.type == "cpu":
        return lambda lease: torch.from_numpy(lease.array)
    if device.type == "cuda":
        return PinnedMover(device)
    return lambda lease: torch.from_numpy(lease.array).to(device)


class PinnedMemory:
    """Memory from which a CUDA device copies while the host goes on.

    It is asked for after the first copy, which the training loop makes: torch pins by any context
    that there is, and else would make one on the first device, whichever the loop uses.
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


class PinnedMover:
    """Moves bodies to a CUDA device through pinned memory, without waiting for the copy.

    A body that lies in pinned memory is copied from there, and its lease lasts until that is over.
    Others, such as the first ones and those that a node has lent, are staged first, since a copy
    from pageable memory would block the training loop: two pinned buffers take turns, and each is
    written again only when the event after its last copy has come to pass.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._memory = PinnedMemory()
        self._buffers: list[Any] = [None, None]
        self._events: list[Any] = [None, None]
        self._turn = 0

    def __call__(self, lease: Lease) -> Any:
        """Return the body on the device."""
        body = torch.from_numpy(lease.array)
        if lease.nbytes == 0:
            return body.to(self._device)
        if lease.is_pinned:
            moved = body.to(self._device, non_blocking=True)
            lease.events.append(self._recorded(torch.cuda.Event()))
            return moved
        turn = self._turn
        self._turn = 1 - turn
        if self._events[turn] is not None:
            self._events[turn].synchronize()
        if self._buffers[turn] is None or self._buffers[turn].numel() < lease.nbytes:
            # Bodies of a packed job differ a little, and pinning is slow: a class has room.
            self._buffers[turn] = self._memory.new(self._memory.size_class(lease.nbytes))
        staged = self._buffers[turn][: lease.nbytes]
        staged.copy_(body)
        moved = staged.to(self._device, non_blocking=True)
        self._events[turn] = self._recorded(self._events[turn] or torch.cuda.Event())
        return moved

    def _recorded(self, event: Any) -> Any:
        event.record(torch.cuda.current_stream(self._device))
        return event


__all__ = ["Mover", "PinnedMemory", "PinnedMover", "landing_memory", "make_mover"]
