"""One arena of pinned memory: spans of it are cut, and it grows a few times in a run.

Pinning is slow, and the allocators of torch and cupy keep what was pinned for each size, for ever.
So they are asked for arenas alone.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.buffers import size_class
from penstock.client.bodies.lifetimes import Passing
from penstock.client.device.free_spans import FreeSpans
from penstock.client.device.port import Port
from penstock.wire import ALIGNMENT
from penstock.wire.errors import CannotPin

BODIES = 8
"""The arena has room for so many of the largest body: four that are ready, one in use, one that
arrives, one for staging alone, and one for what lies between spans of several sizes. Measured with
bodies of 5 MB and a loop that takes 20 ms: of 4, four bodies in ten found no span, of 6 one in ten,
of 8 none (`Loader` with its defaults, a simulated device)."""


class PinnedPiece(NamedTuple):
    """A part of the arena, which was pinned at once."""

    storage: NDArray[np.uint8]
    spans: FreeSpans


class PinnedSpan(NamedTuple):
    """Bytes of the arena.

    Attributes:
        piece: Where it lies.
        start: Its first byte there.
        nbytes: Its length, whole units of `ALIGNMENT`.
        events: The ends of copies from it.
    """

    piece: PinnedPiece
    start: int
    nbytes: int
    events: list[Passing]


class PinnedArena:
    """Pinned memory of a device's port, in spans. Its owner's lock is held at each call.

    One span, as long as the largest body, is the reserve: it is not taken by `take`.

    Args:
        port: Of the device.
        least_bytes: How large it is at least, if it may be.

    Attributes:
        nbytes: How large it is.
        grown: How often it has grown, since a body was larger than any before.
        reserve: The reserve while it is free; None = in use, or no arena was pinned.
    """

    def __init__(self, port: Port, least_bytes: int) -> None:
        self._port, self._least_bytes = port, least_bytes
        self._pieces: list[PinnedPiece] = []
        self._largest = 0  # what the reserve is long enough for
        self.nbytes = self.grown = 0
        self.reserve: PinnedSpan | None = None

    def least_for(self, nbytes: int) -> int:
        """Return how large the arena is to be, at least, for bodies of `nbytes`."""
        return max(self.nbytes, BODIES * size_class(nbytes), self._least_bytes)

    def fit(self, nbytes: int, most_bytes: int) -> bool:
        """Make sure of a reserve that is as long as a body; False = that is not possible.

        Args:
            nbytes: How long the body is.
            most_bytes: The most that the arena may have.

        Raises:
            CannotPin: The device pins no more.
        """
        need = _whole(nbytes, ALIGNMENT)
        if need <= self._largest:
            return True
        room = most_bytes - self.nbytes
        # At least twice what there was: bodies that become larger byte by byte pin a few times.
        size = max(2 * self.nbytes, BODIES * size_class(need), self._least_bytes)
        wanted = min(size - self.nbytes, room) // mmap.PAGESIZE * mmap.PAGESIZE
        if wanted >= need:
            self._grow(wanted, need)
            return True
        return bool(self._pieces) and self._join(need)

    def _grow(self, wanted: int, need: int) -> None:
        """Pin a piece, and have the reserve in it."""
        try:
            storage = self._port.pin(wanted)
        except CannotPin:
            if wanted == (wanted := _whole(need, mmap.PAGESIZE)):
                raise
            storage = self._port.pin(wanted)  # enough for staging
        if self.reserve is not None:
            self.reserve.piece.spans.give_back(self.reserve.start, self.reserve.nbytes)
        piece = PinnedPiece(storage, FreeSpans(wanted))
        self._pieces.append(piece)
        self.nbytes += wanted
        self.grown = len(self._pieces) - 1
        self._largest = min(max(size_class(need), self.nbytes // BODIES), wanted)
        self.reserve = self._cut(piece, self._largest)

    def _join(self, need: int) -> bool:
        """Try to find a longer reserve within what is pinned."""
        if self.reserve is None:
            return False
        old, self.reserve = self.reserve, None
        old.piece.spans.give_back(old.start, old.nbytes)
        self.reserve = self.take(need)
        if self.reserve is None:
            start = old.piece.spans.take(old.nbytes)
            assert start is not None, "what was given back is free"
            self.reserve = old._replace(start=start)
            return False
        self._largest = need
        return True

    def take(self, nbytes: int) -> PinnedSpan | None:
        """Return a free span, None = there is none; the reserve is left."""
        need = _whole(nbytes, ALIGNMENT)
        for piece in self._pieces:
            span = self._cut(piece, need)
            if span is not None:
                return span
        return None

    def _cut(self, piece: PinnedPiece, nbytes: int) -> PinnedSpan | None:
        start = piece.spans.take(nbytes)
        return None if start is None else PinnedSpan(piece, start, nbytes, [])

    def take_reserve(self) -> PinnedSpan | None:
        """Return the reserve, None = it is in use."""
        found, self.reserve = self.reserve, None
        return found

    def give_back(self, span: PinnedSpan) -> None:
        """Make a span free; where the reserve is in use, one that is as long takes its place."""
        if self.reserve is None and span.nbytes >= self._largest:
            self.reserve = span._replace(events=[])
            return
        span.piece.spans.give_back(span.start, span.nbytes)


def _whole(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
