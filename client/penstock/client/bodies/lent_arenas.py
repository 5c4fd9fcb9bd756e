"""Memory of a node on this host, as this process maps it.

What a node lends is mapped privately: a loop that writes into a batch writes into pages of its own,
and neither the node nor another reader sees it. A device copies from beside that: from a shared,
read-only mapping of the whole arena, which is pinned once. Pinning a private one would have the
kernel copy its pages.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.buffers import Pinner
from penstock.client.bodies.lifetimes import Passing
from penstock.client.calls.background_thread import log_in_background

logger = logging.getLogger("penstock")

MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later; Python has no name for it."""

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Private pages are the exception: none are reserved for a whole arena."""

MAX_MAPPINGS = 8
"""Views of one arena. Each costs a file descriptor and as many addresses as the arena has bytes."""


class ArenaMapping:
    """One view of an arena; there are several where what was kept lies in the way of a new loan.

    Args:
        fd: The arena's descriptor.
        size_bytes: Its size.

    Attributes:
        kept: (start, stop) of pages of our own, and of those that cannot be given back.

    Raises:
        OSError: This process may map no more memory.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.map: mmap.mmap | None
        self.map = mmap.mmap(fd, size_bytes, mmap.MAP_PRIVATE | _MAP_NORESERVE)
        self._reference = weakref.ref(self.map)
        self.kept: set[tuple[int, int]] = set()

    def is_free(self, start: int, stop: int) -> bool:
        """Tell whether nothing that was kept lies there."""
        return not any(first < stop and start < last for first, last in self.kept)

    def advise(self, advice: int, start: int, stop: int) -> None:
        """Call madvise, if anything is left to be read there.

        Raises:
            OSError: The kernel refuses.
        """
        found = self._reference()
        if found is not None:
            found.madvise(advice, start, stop - start)

    def leave_to_arrays(self) -> None:
        """Lend no more from it: it lives as long as arrays over it do."""
        self.map = None


@dataclass(eq=False)
class LentArena:
    """Memory of the node: its descriptor, its size, and the mappings of it."""

    fd: int
    size_bytes: int
    mappings: list[ArenaMapping] = field(default_factory=list)
    pinner: Pinner | None = None
    pinned: NDArray[np.uint8] | None = None  # all of it, read-only
    cannot_pin: bool = False

    def mapping(self, start: int, stop: int) -> ArenaMapping | None:
        """Return a mapping in which nothing that was kept lies there; None = in each something.

        Raises:
            OSError: This process may map no more memory.
        """
        for found in self.mappings:
            if found.is_free(start, stop):
                return found
        if len(self.mappings) == MAX_MAPPINGS:
            return None
        fresh = ArenaMapping(self.fd, self.size_bytes)
        self.mappings.append(fresh)
        return fresh

    def copy(self, start: int, stop: int, into: NDArray[np.uint8]) -> None:
        """Copy what lies there, by a view that is gone afterwards.

        Raises:
            OSError: This process may map no more memory.
        """
        flags, readable = mmap.MAP_SHARED, mmap.PROT_READ
        with mmap.mmap(self.fd, stop - start, flags, readable, offset=start) as view:
            into[:] = np.frombuffer(view, np.uint8, count=len(into))

    def pin(self, pinner: Pinner, nbytes: int) -> NDArray[np.uint8] | None:
        """Return all of it, pinned once for bodies of `nbytes`; None = it cannot be."""
        if self.pinned is None and not self.cannot_pin:
            try:
                view = mmap.mmap(self.fd, self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            except OSError as error:
                self.cannot_pin = True
                log_in_background(
                    logger.warning, "lent batches are copied within the host: %s", error
                )
                return None
            whole = np.frombuffer(view, np.uint8)
            if pinner.register(whole, nbytes):
                self.pinner, self.pinned = pinner, whole
            else:
                self.cannot_pin = True
        return self.pinned

    def close(self) -> None:
        """Unpin it, and lend no more from it: no copy reads on."""
        if self.pinner is not None and self.pinned is not None:
            self.pinner.unregister(self.pinned)
        self.forget()

    def forget(self) -> None:
        """Lend no more from it: in a forked child, to which the device is not known."""
        self.pinner = self.pinned = None
        os.close(self.fd)
        for mapping in self.mappings:
            mapping.leave_to_arrays()


@dataclass(eq=False)
class LentBody:
    """A body in lent memory that somebody, or a device, may still read.

    Attributes:
        loan: The number of the loan.
        arena: Where it lies.
        mapping: Of the arena, by which this process reads it.
        start: Its first byte in the arena.
        stop: The end of its last page.
        events: The ends of copies from there.
        held: The mapping, where more than views may need it.
    """

    loan: int
    arena: LentArena
    mapping: ArenaMapping
    start: int
    stop: int
    events: list[Passing] = field(default_factory=list)
    held: mmap.mmap | None = None

    def is_over(self) -> bool:
        """Tell whether no device reads it; a device that failed is asked for nothing."""
        try:
            return all(event.query() for event in self.events)
        except Exception:  # nobody knows what it still reads; see `Borrower.settle`
            return False

    def array(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a view of its bytes, which keeps the mapping."""
        assert self.mapping.map is not None
        return np.frombuffer(self.mapping.map, np.uint8, count=nbytes, offset=self.start)

    def outlive_views(self) -> None:
        """Keep the memory where more than views may need it, although nothing more is lent."""
        if self.events:
            self.held = self.mapping.map

    def keep(self) -> None:
        """Make its pages this process's own.

        Raises:
            OSError: There is no memory for them.
        """
        self.mapping.advise(MADV_POPULATE_WRITE, self.start, self.stop)
        self.mapping.kept.add((self.start, self.stop))

    def end(self) -> None:
        """Nobody reads it any more: give pages of our own back, and see the node's again."""
        try:
            self.mapping.advise(mmap.MADV_DONTNEED, self.start, self.stop)
        except OSError:  # they were locked into memory meanwhile, and stay
            self.mapping.kept.add((self.start, self.stop))
        else:
            self.mapping.kept.discard((self.start, self.stop))
