"""A batch is written: its body into the memory that it is sent from, then the header that says so.

The body's checksum, taken as it is written, is in the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES
from penstock.wire.errors import UnsupportedValue
from penstock.wire.frame.body_layout import BodyLayout
from penstock.wire.frame.header_counts import accounting_field, add_counts
from penstock.wire.frame.octets import crc32c, extend_crc32c, octets
from penstock.wire.joined import Joined
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import STORAGE, NDArray

_CACHED_BYTES = 1 << 18
"""What is surely still in the second-level cache right after it was written."""

_SMALL_BYTES = 4096
"""Up to here one more copy, into bytes, costs less than arrays over the place where data goes."""

MAX_HEADER_BYTES = MAX_MESSAGE_BYTES - CHUNK_BYTES - 4096
"""A header shares its message with the first chunk."""


def write_body(layout: BodyLayout, out: memoryview | NDArray) -> int:
    """Write the body of a batch, as it travels, and return its crc32c.

    Args:
        layout: Where each value lies.
        out: Writable and contiguous, of exactly `sent_bytes` bytes; every one of them is written.

    Raises:
        ValueError: `out` has another length.
    """
    body = octets(out).data if isinstance(out, np.ndarray) else out
    if body.nbytes != layout.sent_bytes:
        raise ValueError(f"the body has {layout.sent_bytes} bytes, the buffer {body.nbytes}")
    end = crc = 0
    for start, (dtype, data) in layout.sent:
        if end < start:
            gap = bytes(start - end)
            body[end:start] = gap
            crc = extend_crc32c(crc, gap)
        end = start
        whole: Any = data
        for part in whole.arrays if type(whole) is Joined else (data,):
            crc = _write(part, STORAGE[dtype], body, end, crc)
            end += part.nbytes
    return crc


def _write(data: NDArray, dtype: np.dtype[Any], body: memoryview, start: int, crc: int) -> int:
    """Write an array at a byte of the body; return the crc32c of all before its end."""
    end = start + data.nbytes
    if data.nbytes <= _SMALL_BYTES and data.dtype == dtype:
        copied = data.tobytes()
        body[start:end] = copied
        return extend_crc32c(crc, copied)
    if data.flags.c_contiguous and data.dtype == dtype:
        return _copy(octets(body[start:end]), octets(data), crc)
    # One pass makes it contiguous and little-endian.
    place: NDArray = np.ndarray(data.shape, dtype, body, start)
    np.copyto(place, data, casting="equiv")
    return crc32c(body[start:end], crc)


def write_header(
    layout: BodyLayout,
    log_id: bytes,
    lane: int,
    offset: int,
    crc: int,
    counts: Mapping[str, int],
    samples: Iterable[tuple[int, str, int, int, int, tuple[int, int] | None]],
    padding: bool = False,
    epoch: int = 0,
    accounting: Mapping[str, int] | None = None,
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
        accounting: What was drawn, left out and cut on the way to it, by name.

    Raises:
        UnsupportedValue: A count does not fit int64, or the header is too large for a message.
    """
    # Attributes that are set cost half of what keywords do, and 0 is not written anyway.
    message = feed_pb2.BatchHeader()
    message.log_id, message.lane, message.offset = log_id, lane, offset
    message.body_bytes, message.crc32c = layout.nbytes, crc
    message.padding, message.epoch = padding, epoch
    if layout.packed is not None:
        message.packed.CopyFrom(layout.packed)
    for field in layout.entries:
        message.MergeFromString(field)
    add_counts(message.counts.add, counts)
    if accounting:
        message.MergeFromString(accounting_field(tuple(accounting.items())))
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
