"""A batch whose bytes are arriving: checked, and completed where packed rows travel for a body.

Rows are completed by the thread that reads the stream: nothing breaks it off, its memory comes from
a pool whose locks the loop's thread never takes, and the loop finds batches as they shall be.
"""

from __future__ import annotations

import numpy as np

from penstock.client.bodies.buffers import Lease
from penstock.client.bodies.landing import Landing
from penstock.wire.frame import (
    ChunkView,
    Entries,
    check_chunk,
    check_crc,
    complete,
    extend_crc32c,
    sent_bytes,
    tensors_of,
)
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import NDArray


class Assembly:
    """One batch on its way into memory of this process, or into memory that the node lends.

    Args:
        header: Its header, as it came and was checked.
        entries: What the header says of its values.
        landing: Where bodies land.
        is_wanted: Whether somebody waits for it; a copy of a known batch is only counted.

    Attributes:
        header: Once the batch is whole, the header of the body as it lies here.
        entries: Those of the values, in the body as it lies here.
    """

    def __init__(
        self,
        header: feed_pb2.BatchHeader,
        entries: Entries,
        landing: Landing,
        *,
        is_wanted: bool,
    ) -> None:
        self.header, self.entries = header, entries
        self._landing, self._is_wanted = landing, is_wanted
        self._is_packed = header.HasField("packed")
        self._length = sent_bytes(header)
        self._filled = self._crc = 0
        self._lease: Lease | None = None  # of the body
        self._sent: NDArray | None = None  # what has come, uint8: the body, or packed rows

    @property
    def is_whole(self) -> bool:
        """Whether all of its bytes have come."""
        return self._filled == self._length

    def take(self, lent: feed_pb2.Lent) -> None:
        """Take bytes that the node lends, all at once.

        Raises:
            BadFrame, NotLent, Unreachable: As `Landing.lent`.
        """
        found, self._crc = self._landing.lent(lent, self.header, is_wanted=self._is_wanted)
        self._filled = self._length
        if found is not None:
            self._sent = found.array
            # Of packed rows only the view is kept: the loan goes back with it.
            self._lease = None if self._is_packed else found

    def add(self, chunk: ChunkView) -> None:
        """Add the next part of its bytes.

        Raises:
            BadFrame: It is not the next part.
        """
        before = self._filled
        self._filled = check_chunk(self.header, chunk, before)
        if not self._is_wanted:
            return
        # An array over the message's bytes: slices of ndarrays copy at memory speed.
        data = np.frombuffer(chunk.data, np.uint8)
        # First the sum, while the message is in the cache: a copy pushes it out.
        self._crc = extend_crc32c(self._crc, data)
        if self._is_packed and len(data) == self._length:
            self._sent = data  # completed from where it lies
            return
        if self._sent is None:
            self._sent = self._room()
        self._sent[before : self._filled] = data

    def _room(self) -> NDArray:
        if self._is_packed:
            return np.empty(self._length, np.uint8)
        self._lease = self._landing.own(self._length)
        return self._lease.array

    def finish(self) -> Lease | None:
        """Return where the body lies, checked and complete; None = nobody waits for it.

        Raises:
            BadFrame: Packed rows are not what rows can be.
            ChecksumMismatch: What came is not what was sent.
        """
        if not self._is_wanted:
            return None
        sent = self._room() if self._sent is None else self._sent
        self._sent = None
        check_crc(self.header, sent, self._crc)
        if self._is_packed:
            self._lease = self._landing.own(self.header.body_bytes)
            tensors = tensors_of(self.entries)
            complete(self.header.packed, tensors, sent, self._lease.array)
            self.header.ClearField("packed")
        return self._lease
