"""Batches that nobody wants any more: kept for late readers, their memory counted to its end."""

from __future__ import annotations

from collections import OrderedDict

from penstock.server.node.demand.wanted import Key, WantedBatch

CACHED_BATCHES, CACHED_SHARE = 64, 4
"""Sent batches kept for late readers: at most so many, and at most a quarter of the byte bound."""


def most_cached_bytes(bound_bytes: int, batch_bytes: float) -> float:
    """Return the bytes of the batches that a log keeps for late readers, at most."""
    return min(CACHED_BATCHES * batch_bytes, bound_bytes / CACHED_SHARE)


class CachedBatches:
    """The batches of one log that were sent, or made for nobody; the latest ones.

    Args:
        bound_bytes: The node's bound on bytes that are ready or being made.

    Attributes:
        batches: They, the oldest first.
        nbytes: What they take.
        lent_bytes: Bytes of batches that are not kept any more, and still being written, or lent.
        unread: How many were let go that nobody was given, or wants.
    """

    def __init__(self, bound_bytes: int) -> None:
        self._limit = bound_bytes // CACHED_SHARE
        self.batches: OrderedDict[Key, WantedBatch] = OrderedDict()
        self.nbytes = self.lent_bytes = self.unread = 0

    def keep(self, entry: WantedBatch) -> None:
        """Keep a batch, and let the oldest go where that are too many."""
        self.batches[entry.key] = entry
        self.nbytes += entry.nbytes
        while self.batches and (len(self.batches) > CACHED_BATCHES or self.nbytes > self._limit):
            self._drop(next(iter(self.batches)))

    def take(self, key: Key) -> WantedBatch | None:
        """Return a batch that somebody wants again, which is kept here no longer."""
        entry = self.batches.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes
        return entry

    def shed(self) -> None:
        """Free all: there is pressure."""
        for key in list(self.batches):
            self._drop(key)

    def shed_lane(self, lane: int) -> None:
        """Free those of a lane."""
        for key in [key for key in self.batches if key.lane == lane]:
            self._drop(key)

    def free(self, entry: WantedBatch) -> None:
        """Let a batch's memory go; until whoever still has it is done, it counts as lent."""
        if entry.evicted:
            return
        entry.free()
        if entry.span is not None:
            self.lent_bytes += entry.nbytes
            entry.gone = self._gone

    def _drop(self, key: Key) -> None:
        entry = self.take(key)
        assert entry is not None
        self.unread += not entry.is_given
        self.free(entry)

    def _gone(self, entry: WantedBatch) -> None:
        self.lent_bytes -= entry.nbytes
