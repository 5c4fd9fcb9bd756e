"""Where batches lie, as the server process sees it: spans of its workers' shared memory.

It alone decides when a span is free again. What lies in a dead worker's arenas stays readable until
it was sent.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

from penstock.server.processes.shared_memory import is_sealed


class ArenaReader:
    """One arena as the server process sees it: mapped for reading, counted while spans are in use.

    Args:
        fd: The memfd, which this takes over and closes.
        size_bytes: How large it is.

    Attributes:
        fd: The memfd, for reading only: processes on this host may have it.
        starts: Where the batches begin that lie in it and are not free.
        may_be_lent: Nobody who is given the descriptor can write there.
        closed: Nothing reads it any more.

    Raises:
        ValueError: The file is shorter than it is said to be, or may become so.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if os.fstat(fd).st_size < size_bytes or not seals & fcntl.F_SEAL_SHRINK:
                raise ValueError(
                    f"an arena of {size_bytes} bytes that is not of that size for good"
                )
            self.may_be_lent = is_sealed(fd)
            self._map = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
            self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(fd)
        self.size_bytes = size_bytes
        self.view = memoryview(self._map)
        self.starts: set[int] = set()
        self.closed = False

    @property
    def spans(self) -> int:
        """Return how many batches lie in it that are not free."""
        return len(self.starts)

    def close(self) -> None:
        """Unmap; the caller has made sure that nothing reads it any more."""
        self.closed = True
        self.view.release()
        self._map.close()
        os.close(self.fd)


@dataclass(eq=False, slots=True)
class BodySpan:
    """The body of one batch, where its worker has written it.

    Attributes:
        arena: What it lies in.
        start: Its first byte there.
        view: Its bytes.
        give_back: Gives its memory back to the worker.
    """

    arena: ArenaReader
    start: int
    view: memoryview
    give_back: Callable[[], None]

    def free(self) -> None:
        """Give the memory back; nobody reads the view any more."""
        self.view.release()
        self.give_back()
