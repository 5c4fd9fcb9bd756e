"""What a client refuses: headers, layouts, chunks and bodies that are not what a node sends.

Headers are checked before anything is allocated by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire import ALIGNMENT
from penstock.wire.errors import BadFrame, ChecksumMismatch
from penstock.wire.frame.octets import Buffer, crc32c, octets, refuse
from penstock.wire.order import MAX_POSITION
from penstock.wire.v1 import feed_pb2
from penstock.wire.values import MAX_DIMENSIONS, MAX_LIST_DEPTH, STORAGE

if TYPE_CHECKING:
    from penstock.wire.frame.messages import ChunkView


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


def check_layout(header: feed_pb2.BatchHeader) -> None:
    """Refuse a header whose values do not lie in its body, one after another.

    Raises:
        BadFrame: A tensor is of an unknown dtype, outside the body, over another, misaligned or of
            another length than its shape; a value says nothing, or lists nest too deep; a name is
            empty or doubled.
    """
    names: set[str] = set()
    spans: list[tuple[int, int]] = []
    for named in header.values:
        name = named.name
        if not name or name in names:
            refuse(f"a batch has a value whose name {name!r} is empty or doubled")
        names.add(name)
        _check_value(named.value, name, header.body_bytes, spans, 0)
    spans.sort()
    end = 0
    for start, stop in spans:
        if start < end:
            refuse(f"two tensors of a batch lie over each other at byte {start} of its body")
        end = stop


def _check_value(
    value: feed_pb2.Value, name: str, body_bytes: int, spans: list[tuple[int, int]], depth: int
) -> None:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        _check_tensor(value.tensor, name, body_bytes, spans)
    elif kind == "list":
        if depth == MAX_LIST_DEPTH:
            refuse(f"value {name!r} nests lists deeper than {MAX_LIST_DEPTH}")
        for inner in value.list.values:
            _check_value(inner, name, body_bytes, spans, depth + 1)
    elif kind is None:
        refuse(f"value {name!r} has no kind that is known here")


def _check_tensor(
    tensor: feed_pb2.Tensor, name: str, body_bytes: int, spans: list[tuple[int, int]]
) -> None:
    storage = STORAGE.get(tensor.dtype)
    if storage is None:
        refuse(f"tensor {name!r} has the dtype {tensor.dtype[:40]!r}, which is not known here")
    shape = tensor.shape
    if len(shape) > MAX_DIMENSIONS:
        refuse(
            f"tensor {name!r} has {len(shape)} dimensions, and at most {MAX_DIMENSIONS} are allowed"
        )
    start, nbytes = tensor.start, tensor.nbytes
    if start % ALIGNMENT or start + nbytes > body_bytes:
        refuse(
            f"tensor {name!r} lies at bytes {start} to {start + nbytes} of a body of {body_bytes}: "
            f"outside of it, or not at a multiple of {ALIGNMENT}"
        )
    # Dimensions beside a 0 must still be countable: NumPy refuses to view what overflows.
    extent, empty = storage.itemsize, False
    for size in shape:
        extent *= size or 1
        empty |= size == 0
        if extent > MAX_POSITION:
            refuse(f"tensor {name!r} has the shape {list(shape)}, which no memory holds")
    if nbytes != (0 if empty else extent):
        refuse(f"tensor {name!r} of shape {list(shape)} and {tensor.dtype} claims {nbytes} bytes")
    if nbytes:
        spans.append((start, start + nbytes))


def check_chunk(header: feed_pb2.BatchHeader, chunk: ChunkView, filled: int) -> int:
    """Return how many bytes of the body are there after `chunk`, the next one of its batch.

    Args:
        header: The checked header of the batch.
        chunk: What came.
        filled: How many bytes of the body came before it.

    Raises:
        BadFrame: It is of another batch, leaves a gap, or goes past the end of the body.
    """
    after = filled + len(chunk.data)
    if (
        (chunk.lane, chunk.offset, chunk.start) != (header.lane, header.offset, filled)
        or after > header.body_bytes
        or not chunk.data
    ):
        refuse(
            f"lane {chunk.lane}, offset {chunk.offset} sent {len(chunk.data)} bytes from byte "
            f"{chunk.start}, where byte {filled} of the {header.body_bytes} of lane {header.lane}, "
            f"offset {header.offset} was due"
        )
    return after


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


__all__ = ["check_chunk", "check_crc", "check_header"]
