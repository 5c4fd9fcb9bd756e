"""The record of one batch: its body written and checked, its header made, sealed and checked.

Both have a checksum: the body's is in the header, the header's own is its last field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import google_crc32c
import numpy as np

from penstock.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES
from penstock.wire.digest import batch_digest
from penstock.wire.errors import BadFrame, ChecksumMismatch, UnsupportedValue
from penstock.wire.frame.layout import Layout, check_layout, describe_values, plain_name
from penstock.wire.frame.octets import Buffer, crc32c, extend_crc32c, octets, refuse, uvarint
from penstock.wire.order import MAX_POSITION
from penstock.wire.parse import parse
from penstock.wire.v1 import feed_pb2
from penstock.wire.values import STORAGE, NDArray

_SEAL_TAG, _SEAL_BYTES = b"\x7d", 5
"""The tag of `header_crc32c`, and how long the field is."""

_CACHED_BYTES = 1 << 18
"""What is surely still in the second-level cache right after it was written."""

_SMALL_BYTES = 4096
"""Up to here one more copy, into bytes, costs less than arrays over the place where data goes."""

MAX_HEADER_BYTES = MAX_MESSAGE_BYTES - CHUNK_BYTES - 4096
"""A header shares its message with the first chunk."""

# --- the maker ------------------------------------------------------------------------------------


def write_body(layout: Layout, out: memoryview | NDArray) -> int:
    """Write the body of a batch and return its crc32c.

    Args:
        layout: Where each value lies.
        out: Writable and contiguous, of exactly `nbytes` bytes; every one of them is written.

    Raises:
        ValueError: `out` has another length.
    """
    body = octets(out).data if isinstance(out, np.ndarray) else out
    if body.nbytes != layout.nbytes:
        raise ValueError(f"the body has {layout.nbytes} bytes, the buffer {body.nbytes}")
    end = crc = 0
    for start, (dtype, data) in layout.tensors:
        if end < start:
            gap = bytes(start - end)
            body[end:start] = gap
            crc = extend_crc32c(crc, gap)
        end = start + data.nbytes
        if data.nbytes <= _SMALL_BYTES and data.dtype == STORAGE[dtype]:
            copied = data.tobytes()
            body[start:end] = copied
            crc = extend_crc32c(crc, copied)
        elif data.flags.c_contiguous and data.dtype == STORAGE[dtype]:
            crc = _copy(octets(body[start:end]), octets(data), crc)
        else:
            # One pass makes it contiguous and little-endian.
            place: NDArray = np.ndarray(data.shape, STORAGE[dtype], body, start)
            np.copyto(place, data, casting="equiv")
            crc = crc32c(body[start:end], crc)
    return crc


def write_header(
    layout: Layout,
    log_id: bytes,
    lane: int,
    offset: int,
    crc: int,
    counts: Mapping[str, int],
    samples: Iterable[tuple[int, str, int, int, int, tuple[int, int] | None]],
    padding: bool = False,
    epoch: int = 0,
) -> bytes:
    """Return the serialized `BatchHeader`, which lacks its position and its own checksum.

    Args:
        layout: Where each value lies.
        log_id: The log that the batch belongs to, 32 bytes.
        lane: Its lane.
        offset: Its offset.
        crc: What `write_body` returned.
        counts: Integers that travel with the batch.
        samples: What it is made of: (row, source, index, epoch, part, span or None).
        padding: It is blank: a copy that fills a last step, or a group that quarantine emptied.
        epoch: The epoch of the earliest draw in it.

    Raises:
        UnsupportedValue: A count does not fit int64, or the header is too large for a message.
    """
    # Attributes that are set cost half of what keywords do, and 0 is not written anyway.
    message = feed_pb2.BatchHeader()
    message.log_id, message.lane, message.offset = log_id, lane, offset
    message.body_bytes, message.crc32c = layout.nbytes, crc
    message.padding, message.epoch = padding, epoch
    for field in layout.entries:
        message.MergeFromString(field)
    for name, value in sorted(counts.items()):
        if not -(1 << 63) <= value < 1 << 63:
            raise UnsupportedValue(
                f"count {name!r} of a batch is {value}, which does not fit int64",
                name=name,
                type="int",
            )
        count = message.counts.add()
        count.name, count.value = plain_name(name), value
    add = message.samples.add
    for row, source, index, drawn, part, span in samples:
        sample = add()
        sample.source, sample.index = source, index
        if row:
            sample.row = row
        if drawn:
            sample.epoch = drawn
        if part:
            sample.part = part
        if span is not None:
            sample.start, sample.stop = span
    header = message.SerializeToString()
    if len(header) > MAX_HEADER_BYTES:
        raise UnsupportedValue(
            f"the values {', '.join(layout.names)} of a batch make a header of {len(header)} "
            f"bytes, and at most {MAX_HEADER_BYTES} fit a message: send large texts, bytes and "
            "lists as arrays, such as np.frombuffer(data, 'uint8'), or make batches smaller",
            name=", ".join(layout.names),
            type="header",
        )
    return header


def _copy(into: NDArray, data: NDArray, crc: int) -> int:
    """Copy in pieces that the cache still holds when their crc32c is taken; return the whole's."""
    for start in range(0, len(data), _CACHED_BYTES):
        piece = into[start : start + _CACHED_BYTES]
        piece[:] = data[start : start + _CACHED_BYTES]
        crc = extend_crc32c(crc, piece)
    return crc


def with_position(header: bytes, position: int) -> bytes:
    """Return `header`, which has neither yet, with its position and its own checksum at the end.

    Both stand as protobuf writes them. The checksum covers every byte before its tag.
    """
    placed = header + b"\x70" + uvarint(position) if position else header
    return placed + _SEAL_TAG + int(google_crc32c.value(placed)).to_bytes(4, "little")


# --- the client -----------------------------------------------------------------------------------


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


def check_header(header: feed_pb2.BatchHeader, *, max_body_bytes: int) -> None:
    """Refuse a header that does not describe a batch, before anything is allocated for it.

    Args:
        header: From `parse_reply`.
        max_body_bytes: The largest body that the caller is ready to hold.

    Raises:
        BadFrame: The body is too large, a number cannot be, or `check_layout` refuses the values.
    """
    body_bytes = header.body_bytes
    if body_bytes > max_body_bytes:
        raise BadFrame(
            f"a batch announces a body of {body_bytes} bytes, and at most {max_body_bytes} are "
            "allowed; check that both sides run the same version",
            body_bytes=body_bytes,
            max_body_bytes=max_body_bytes,
        )
    if header.position > MAX_POSITION or header.offset > MAX_POSITION:
        refuse(f"a batch announces position {header.position} and offset {header.offset}")
    check_layout(header)


def check_crc(header: feed_pb2.BatchHeader, body: Buffer, got: int | None = None) -> None:
    """Refuse a body that is not the one that was sent.

    Args:
        header: Says what was sent.
        body: What has arrived.
        got: Its crc32c, where it was taken as the chunks came: they are in the cache then.

    Raises:
        BadFrame: It has another length than the header says.
        ChecksumMismatch: Its crc32c differs. Fields `position`, `expected`, `got`.
    """
    found = octets(body)
    if len(found) != header.body_bytes:
        refuse(f"a body of {header.body_bytes} bytes was announced, and {len(found)} are there")
    got = crc32c(found) if got is None else got
    if got != header.crc32c:
        raise ChecksumMismatch(
            f"the batch at position {header.position} arrived with crc32c {got:08x}, and was sent "
            f"with {header.crc32c:08x}: read it again; if that fails too, check memory and network",
            position=header.position,
            expected=header.crc32c,
            got=got,
        )


def batch_record(header: feed_pb2.BatchHeader, body: Buffer, step: int) -> dict[str, Any]:
    """Return the object that `penstock cat --json` and `penstockd show --json` print for one batch.

    Args:
        header: A header that `check_header` has passed, with position and samples.
        body: The whole body.
        step: The step that holds the position.
    """
    return {
        "position": header.position,
        "step": step,
        "lane": header.lane,
        "offset": header.offset,
        "digest": batch_digest(header, body),
        "values": describe_values(header),
        "counts": {count.name: count.value for count in header.counts},
        "items": [[sample.source, sample.index, sample.epoch] for sample in header.samples],
        "bytes": header.body_bytes,
    }


__all__ = [
    "MAX_HEADER_BYTES",
    "batch_record",
    "check_crc",
    "check_header",
    "check_sealed",
    "read_header",
    "with_position",
    "write_body",
    "write_header",
]
