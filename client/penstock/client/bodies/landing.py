"""Where the bodies of one stream land: in the node's memory, where it lends that, else in ours."""

from __future__ import annotations

from penstock.client.bodies.borrowing import Borrower
from penstock.client.bodies.buffers import BodyAllocator, Lease
from penstock.wire import LENT_BYTES
from penstock.wire.errors import BadFrame
from penstock.wire.frame import crc32c, sent_bytes
from penstock.wire.v1 import feed_pb2

HELD_BATCHES = 4
"""Lent batches that a consumer may hold beside those that wait for it: what it holds longer becomes
its own memory."""

CHECKED_SHARE = 8
"""Of lent bodies, which no network carries, one of so many is checked against its checksum."""


class Landing:
    """Finds a place for each body. The thread that reads the stream uses it.

    Args:
        pool: Memory of our own.
        borrower: What the stream named as it opened: bodies may be lent; None = none is.

    Attributes:
        sent_because: Why a body was sent that could have been lent, in words.
    """

    def __init__(self, pool: BodyAllocator, borrower: Borrower | None) -> None:
        self._pool, self._borrower = pool, borrower
        self._lent_batches = 0
        self.sent_because = ""

    def own(self, nbytes: int) -> Lease:
        """Return a place of our own for a body."""
        return self._pool.lease(nbytes)

    def note_sent(self, nbytes: int, *, lends: bool) -> None:
        """Note why so many bytes of a batch are sent; `lends` = the node lends others."""
        if self._borrower is not None and nbytes >= LENT_BYTES and not self.sent_because:
            self.sent_because = (
                "this is more than the node lends to one process now (raise its ready_bytes)"
                if lends
                else "the node does not know this process's connection to its memory socket"
            )

    def lent(
        self, lent: feed_pb2.Lent, header: feed_pb2.BatchHeader, *, is_wanted: bool
    ) -> tuple[Lease | None, int]:
        """Return where a lent body lies, or packed rows in its place, and what its checksum is.

        One that is not checked counts as having the checksum that it was sent with.

        Args:
            lent: The loan.
            header: Of its batch.
            is_wanted: Whether somebody waits for the body; if not, its memory is released at once.

        Raises:
            BadFrame: Nobody borrows it, it is another batch, or it lies in no memory of the node's.
            NotLent, Unreachable: As `Borrower.take`.
        """
        borrower = self._borrower
        if borrower is None or (lent.lane, lent.offset) != (header.lane, header.offset):
            raise BadFrame(
                f"the batch at position {header.position} is lent, and nobody borrows it, or "
                "another is; check that client and server are of the same version",
                position=header.position,
            )
        if not is_wanted:
            borrower.refuse(lent)
            return None, 0
        lease = borrower.take(lent, sent_bytes(header), self._pool.lease)
        self._lent_batches += 1
        is_checked = self._lent_batches % CHECKED_SHARE == 1
        return lease, crc32c(lease.array) if is_checked else header.crc32c

    def settle(self, prefetch: int) -> None:
        """Give back what was lent and is not read any more."""
        if self._borrower is not None:
            self._borrower.settle(prefetch + HELD_BATCHES)
