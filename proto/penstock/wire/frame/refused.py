"""What a client refuses: headers, layouts, chunks and bodies that are not what a node sends.

Headers are checked before anything is allocated by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.errors import BadFrame, ChecksumMismatch
from penstock.wire.frame.completing import check_packed, sent_bytes
from penstock.wire.frame.entries import Entries, read_entries, tensors_of
from penstock.wire.frame.octets import Buffer, crc32c, refuse
from penstock.wire.order import MAX_POSITION
from penstock.wire.v1 import feed_pb2

if TYPE_CHECKING:
    from penstock.wire.frame.read_messages import ChunkView


def check_header(header: feed_pb2.BatchHeader, *, max_body_bytes: int) -> Entries:
    """Return what a header says of its values; refuse one that does not describe a batch.

    Nothing was allocated for the body before that.

    Args:
        header: From `parse_reply`.
        max_body_bytes: The largest body that the caller is ready to hold.

    Raises:
        BadFrame: The body is too large, a number cannot be, or `read_entries`, `check_entries` or
            `check_packed` refuses the values.
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
    entries = read_entries(header)
    check_entries(entries, body_bytes)
    if header.HasField("packed"):
        check_packed(header.packed, tensors_of(entries), max_body_bytes)
    return entries


def check_entries(entries: Entries, body_bytes: int) -> None:
    """Refuse values that do not lie in one body, one after another.

    Raises:
        BadFrame: A tensor lies outside the body or over another, or a name is doubled.
    """
    names: set[str] = set()
    spans: list[tuple[int, int]] = []
    for entry in entries:
        if entry.name in names:
            refuse(f"a batch has a value whose name {entry.name!r} is empty or doubled")
        names.add(entry.name)
        for place in entry.tensors:
            start, stop = place.start, place.start + place.nbytes
            if stop > body_bytes:
                refuse(
                    f"tensor {entry.name!r} lies at bytes {start} to {stop} of a body of "
                    f"{body_bytes}: outside of it"
                )
            if place.nbytes:
                spans.append((start, stop))
    spans.sort()
    end = 0
    for start, stop in spans:
        if start < end:
            refuse(f"two tensors of a batch lie over each other at byte {start} of its body")
        end = stop


def check_chunk(header: feed_pb2.BatchHeader, chunk: ChunkView, filled: int) -> int:
    """Return how many bytes of the body are there after `chunk`, the next one of its batch.

    Args:
        header: The checked header of the batch.
        chunk: What came.
        filled: How many bytes of the body, or of what travels in its place, came before it.

    Raises:
        BadFrame: It is of another batch, leaves a gap, or goes past the end of the body.
    """
    after, length = filled + len(chunk.data), sent_bytes(header)
    if (
        (chunk.lane, chunk.offset, chunk.start) != (header.lane, header.offset, filled)
        or after > length
        or not chunk.data
    ):
        refuse(
            f"lane {chunk.lane}, offset {chunk.offset} sent {len(chunk.data)} bytes from byte "
            f"{chunk.start}, where byte {filled} of the {length} of lane {header.lane}, "
            f"offset {header.offset} was due"
        )
    return after


def check_crc(header: feed_pb2.BatchHeader, body: Buffer, got: int | None = None) -> None:
    """Refuse a body, or packed rows in its place, that are not what was sent.

    Args:
        header: Says what was sent.
        body: What has arrived.
        got: Its crc32c, where it was taken as the chunks came: they are in the cache then.

    Raises:
        BadFrame: It has another length than the header says.
        ChecksumMismatch: Its crc32c differs. Fields `position`, `expected`, `got`.
    """
    nbytes = memoryview(body).nbytes  # type: ignore[arg-type,unused-ignore]  # an ndarray is one, too
    if nbytes != sent_bytes(header):
        refuse(f"a body of {sent_bytes(header)} bytes was announced, and {nbytes} are there")
    got = crc32c(body) if got is None else got
    if got != header.crc32c:
        raise ChecksumMismatch(
            f"the batch at position {header.position} arrived with crc32c {got:08x}, and was sent "
            f"with {header.crc32c:08x}: read it again; if that fails too, check memory and network",
            position=header.position,
            expected=header.crc32c,
            got=got,
        )
