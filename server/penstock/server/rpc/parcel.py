"""What one message of a read carries: batches that are sent in it, and headers of lent ones."""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.node.entry import Entry
from penstock.wire import CHUNK_BYTES
from penstock.wire.v1 import feed_pb2


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
        self, first: Entry, room_bytes: int, lend: Callable[[Entry], feed_pb2.Lent | None]
    ) -> None:
        self.content: list[tuple[Entry, feed_pb2.Lent | None]] = []
        self._lend, self.room_bytes, self.sent_bytes = lend, room_bytes, 0
        self._first_bytes = first.nbytes
        lent = lend(first)
        self._put(first, lent)
        if lent is None and first.nbytes >= CHUNK_BYTES:
            self.room_bytes = 0  # it goes in chunks, alone

    def add(self, entry: Entry) -> bool:
        """Add a batch, if there is room for it."""
        if len(entry.header) > self.room_bytes:
            return False
        lent = self._lend(entry)
        if lent is None and entry.nbytes > self.room_bytes:
            return False
        self._put(entry, lent)
        return True

    def _put(self, entry: Entry, lent: feed_pb2.Lent | None) -> None:
        self.content.append((entry, lent))
        nbytes = entry.nbytes if lent is None else len(entry.header)
        self.room_bytes -= nbytes
        self.sent_bytes += nbytes

    @property
    def expects_more(self) -> bool:
        """Tell whether small batches come, and there is room for one as large as the first."""
        return self._first_bytes <= self.room_bytes


__all__ = ["Parcel"]
