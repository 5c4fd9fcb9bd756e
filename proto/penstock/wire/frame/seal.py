"""The seal of a header: its own checksum, which is its last field and covers all before it.

A maker does not know the position that a header will be sent with, so it is put in here, too.
"""

from __future__ import annotations

import google_crc32c

from penstock.wire.errors import ChecksumMismatch
from penstock.wire.frame.octets import uvarint
from penstock.wire.parse import parse
from penstock.wire.v1 import feed_pb2

_SEAL_TAG, _SEAL_BYTES = b"\x7d", 5
"""The tag of `header_crc32c`, and how long the field is."""


def with_position(header: bytes, position: int) -> bytes:
    """Return `header`, which has neither yet, with its position and its own checksum at the end.

    Both stand as protobuf writes them. The checksum covers every byte before its tag.
    """
    placed = header + b"\x70" + uvarint(position) if position else header
    return placed + _SEAL_TAG + int(google_crc32c.value(placed)).to_bytes(4, "little")


def without_samples(header: bytes) -> bytes:
    """Return `header`, as the maker wrote it, without the items that the batch is made of."""
    message = parse(feed_pb2.BatchHeader, header)
    message.ClearField("samples")
    return message.SerializeToString()


def read_header(encoded: bytes) -> feed_pb2.BatchHeader:
    """Return a serialized header, whose own checksum is right where it has one: `check_sealed`.

    Raises:
        BadFrame: It is not a header.
        ChecksumMismatch: It is not the one that was sent.
    """
    if encoded[-_SEAL_BYTES:-4] == _SEAL_TAG:
        expected = int.from_bytes(encoded[-4:], "little")
        got = int(google_crc32c.value(encoded[:-_SEAL_BYTES]))
        if got != expected:
            raise _damaged(f"arrived with crc32c {got:08x}, and was sent with {expected:08x}")
    return parse(feed_pb2.BatchHeader, encoded)


def check_sealed(header: feed_pb2.BatchHeader) -> None:
    """Refuse a header that came without its checksum: what it says may be damaged.

    Raises:
        ChecksumMismatch: `read_header` had nothing to check it by.
    """
    if not header.HasField("header_crc32c"):
        raise _damaged("arrived without its checksum")


def _damaged(how: str) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"the header of a batch {how}: read it again; if that fails too, check memory and network, "
        "and that both sides run the same version"
    )
