"""Why a training loop waits: for the network, for memory, for a copy, or for values to be made.

The threads that bring batches say what they are doing, and the loop's thread, which takes no lock,
looks at it before it waits and after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.client.bodies.buffers import BodyMemory, BufferPool, Lease


class Waited(NamedTuple):
    """How long a loop has waited, by reasons; the sum is how long in all.

    Attributes:
        network_s: Nothing had come: nodes, workers and the network.
        memory_s: There was no memory for what comes: it was made, or pinned, or others held it.
        copy_s: The copy to the device was not queued: staging, and what the device takes.
        decode_s: Values were not made: views, what is done on arrival, and passing them on.
    """

    network_s: float = 0.0
    memory_s: float = 0.0
    copy_s: float = 0.0
    decode_s: float = 0.0

    def plus(self, other: Waited) -> Waited:
        """Return the sums."""
        return Waited(*map(sum, zip(self, other, strict=True)))


class Stage:
    """How long something was done in all, what is being done included; any thread looks.

    It takes no lock: where several threads do it at once a moment may count for each of them, so
    who looks takes no more of it than there was.
    """

    def __init__(self) -> None:
        self._done_s = 0.0
        self._since: dict[int, float] = {}  # by the threads that are doing it

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Count the time in this block."""
        thread = threading.get_ident()
        self._since[thread] = time.monotonic()
        try:
            yield
        finally:
            since = self._since.pop(thread, None)
            if since is not None:
                self._done_s += time.monotonic() - since

    def so_far_s(self) -> float:
        """Return how long it was done."""
        now = time.monotonic()
        return self._done_s + sum(now - since for since in list(self._since.values()))

    def share_s(self, before_s: float, most_s: float) -> float:
        """Return how much of `most_s` seconds it was done since `so_far_s` gave `before_s`."""
        return max(0.0, min(most_s, self.so_far_s() - before_s))


class TimedPool:
    """A pool, which notes how long it is waited for: a `BodyAllocator`.

    Args:
        pool: Whose memory it lends.

    Attributes:
        lending: Memory is made, pinned, or waited for.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool, self.lending = pool, Stage()

    def use(self, memory: BodyMemory | None) -> None:
        """Lend this kind of memory from now on; see `BufferPool.use`."""
        self._pool.use(memory)

    def lease(self, nbytes: int) -> Lease:
        """Return a lease of memory of any content; see `BufferPool.lease`."""
        with self.lending.going_on():
            return self._pool.lease(nbytes)

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`; see `BufferPool.statistics`."""
        return self._pool.statistics()
