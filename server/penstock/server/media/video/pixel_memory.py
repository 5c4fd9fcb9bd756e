"""Memory for pixels that samples hold, used again once nobody looks at it any more.

Pages that are fresh from the system cost more than what is written to them. Of a GB of windows that
a worker with jemalloc made, whatever its decay and its threshold for large blocks, conversion took
0.53 to 0.84 CPU seconds with 100,000 page faults, and 0.34 with 1,000 here. With glibc's malloc as
workers set it nothing is gained.
"""

from __future__ import annotations

import mmap
import weakref
from collections import OrderedDict, deque
from math import prod

import numpy as np

from penstock.wire.colours import Levels

LEAST_BYTES = 1 << 20
"""Smaller arrays come from malloc, which keeps memory for such."""

IDLE_BYTES = 256 << 20
"""The most that is kept for later: as much as a batch of large windows."""

_STEPS = 8
"""Sizes from a power of two to the next: sides of videos differ by a few pixels."""


class PixelMemory:
    """Arrays of bytes, whose memory is used again; for one thread at a time.

    Whoever holds an array, or a view of one, has its memory for itself; when the last one is gone,
    in whichever thread, it is kept for an array that comes later. What was kept for longest without
    use is given back to the system first.

    Args:
        idle_bytes: The most bytes that are kept; 0 = none.
    """

    def __init__(self, idle_bytes: int = IDLE_BYTES) -> None:
        self._most_bytes = idle_bytes
        # By size; the one that was used last comes last.
        self._idle: OrderedDict[int, list[mmap.mmap]] = OrderedDict()
        self._idle_bytes = 0
        self._is_used = False
        # A finalizer runs wherever the last reference goes: it may take no lock.
        self._returned: deque[mmap.mmap] = deque()

    def empty(self, shape: tuple[int, ...]) -> Levels:
        """Return an array of any content.

        Args:
            shape: Of it.

        Returns:
            uint8 (*shape), contiguous.
        """
        nbytes = prod(shape)
        if nbytes < LEAST_BYTES or not self._most_bytes:
            return np.empty(shape, np.uint8)
        self._is_used = True
        block = self._block(_rounded(nbytes))
        whole = np.frombuffer(block, np.uint8)
        # Views refer to it, and not to each other.
        weakref.finalize(whole, self._returned.append, block).atexit = False
        array: Levels = whole[:nbytes].reshape(shape)
        return array

    @property
    def idle_bytes(self) -> int:
        """Return how many bytes are kept for later."""
        self._take_returned()
        return self._idle_bytes

    @property
    def most_idle_bytes(self) -> int:
        """Return how many bytes may be kept for later; 0 where no array was large enough so far."""
        return self._most_bytes if self._is_used else 0

    def _block(self, nbytes: int) -> mmap.mmap:
        self._take_returned()
        if not (blocks := self._idle.get(nbytes)):
            # Private: a process that is forked later has pages of its own.
            return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._idle.move_to_end(nbytes)
        self._idle_bytes -= nbytes
        return blocks.pop()

    def _take_returned(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._idle.setdefault(len(block), []).append(block)
            self._idle_bytes += len(block)
        while self._idle_bytes > self._most_bytes:
            size, blocks = next(iter(self._idle.items()))
            if blocks:
                blocks.pop()
                self._idle_bytes -= size
            else:
                del self._idle[size]


def _rounded(nbytes: int) -> int:
    """Return the size of the block that an array takes: one of `_STEPS` to a power of two."""
    step = max(mmap.PAGESIZE, (1 << (nbytes - 1).bit_length()) // 2 // _STEPS)
    return -(-nbytes // step) * step
