"""Which batches share a message of a read, and for how long small ones wait for each other."""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.node.demand.wanted import WantedBatch
from penstock.wire import CHUNK_BYTES
from penstock.wire.v1 import feed_pb2

GATHER_S = 0.1
"""How old a stream's last message is, at most, when a small batch waits for others to share the
next. Every message wakes six threads of a consumer, whose caches its loop has filled since: of rows
of 8,192 tokens, 120 a second, that was half of what it spent on them with a third of this time. A
loop that waits for data waits no longer in all, as the batches that come together were made one
after another."""


GATHER_SHARE = 0.1
"""It is not older than this share of what the stream had lasted when it was sent: what starts waits
for its first batches."""


def gathers_until(opened_at: float, wrote_at: float, gathered: int, missing: int) -> float:
    """Return until when small batches wait for others to share their message.

    A message costs as much as several of them, on both sides, and where batches come one by one
    each would have one of its own. So they wait for each other until half of what the consumer
    accepts is here: it works on one half while the other is made. The first batch after a pause
    waits for nothing.

    Args:
        opened_at: When the stream was opened, in seconds.
        wrote_at: When its last message was sent; -inf = none was.
        gathered: How many batches are here.
        missing: How many more the consumer accepts, none of which can be sent yet.

    Returns:
        A time on their clock; one that has passed = send at once.
    """
    if gathered >= missing:
        return wrote_at
    return wrote_at + min(GATHER_S, GATHER_SHARE * (wrote_at - opened_at))


class Parcel:
    """The batches of one message: bodies of some size in all, and lent ones, which take none.

    Args:
        first: Goes into it, however large it is.
        room_bytes: How much it may hold.
        lend: Lends a batch; None = it must be sent.

    Attributes:
        content: The batches, each with its loan.
        room_bytes: How many more bytes it holds.
        sent_bytes: How many it holds.
    """

    def __init__(
        self,
        first: WantedBatch,
        room_bytes: int,
        lend: Callable[[WantedBatch], feed_pb2.Lent | None],
    ) -> None:
        self.content: list[tuple[WantedBatch, feed_pb2.Lent | None]] = []
        self._lend, self.room_bytes, self.sent_bytes = lend, room_bytes, 0
        self._first_bytes = first.nbytes
        lent = lend(first)
        self._put(first, lent)
        if lent is None and first.nbytes >= CHUNK_BYTES:
            self.room_bytes = 0  # it goes in chunks, alone

    def add(self, entry: WantedBatch) -> bool:
        """Add a batch, if there is room for it."""
        if len(entry.header) > self.room_bytes:
            return False
        lent = self._lend(entry)
        if lent is None and entry.nbytes > self.room_bytes:
            return False
        self._put(entry, lent)
        return True

    def _put(self, entry: WantedBatch, lent: feed_pb2.Lent | None) -> None:
        self.content.append((entry, lent))
        nbytes = entry.nbytes if lent is None else len(entry.header)
        self.room_bytes -= nbytes
        self.sent_bytes += nbytes

    @property
    def expects_more(self) -> bool:
        """Tell whether small batches come, and there is room for one as large as the first."""
        return self._first_bytes <= self.room_bytes
