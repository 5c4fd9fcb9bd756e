"""The messages of a stream: `ReadReply` on its way out and in.

A batch travels as its header and the chunks of its body, each chunk in a message of its own; small
batches share one. The data of a chunk are copied once on the way out and stay where they came in on
the way in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from penstock.wire import CHUNK_BYTES
from penstock.wire.frame.octets import (
    Buffer,
    octets,
    read_length,
    read_tag,
    read_varint,
    refuse,
    skip_field,
    uvarint,
)
from penstock.wire.frame.record import read_header
from penstock.wire.parse import parse
from penstock.wire.v1 import feed_pb2

# --- on the way out -------------------------------------------------------------------------------


def batch_messages(
    header: bytes,
    lane: int,
    offset: int,
    body: Buffer | feed_pb2.Lent,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[bytes]:
    """Yield the serialized `ReadReply` messages of one batch; each byte of the body is copied once.

    Args:
        header: The serialized `BatchHeader` with its position.
        lane: The lane of the batch.
        offset: Its offset.
        body: Its bytes, as long as the header says; or where they lie, lent.
        chunk_bytes: Body bytes in one message.
    """
    head = b"\x12" + uvarint(len(header)) + header
    if isinstance(body, feed_pb2.Lent):
        yield head + _lent(body)
        return
    view = octets(body).data
    if not view:
        yield head
        return
    address = (b"\x08" + uvarint(lane) if lane else b"") + (
        b"\x10" + uvarint(offset) if offset else b""
    )
    for start in range(0, len(view), chunk_bytes):
        data = view[start : start + chunk_bytes]
        fields = address + (b"\x18" + uvarint(start) if start else b"")
        fields += b"\x7a" + uvarint(len(data))
        # One join, not additions: each addition would copy the chunk again.
        yield b"".join((head, b"\x7a", uvarint(len(fields) + len(data)), fields, data))
        head = b""


def bundle(batches: Iterable[tuple[bytes, int, int, Buffer | feed_pb2.Lent]]) -> bytes:
    """Return one `ReadReply` that carries several small batches, each whole, under `more`.

    A message costs the same few system calls and wake-ups whether it holds one batch of 200 KB or
    five. Each byte of the bodies is copied once.

    Args:
        batches: (header with its position, lane, offset, body) of each, as `batch_messages` takes
            them.
    """
    parts: list[bytes | memoryview] = []
    for header, lane, offset, body in batches:
        head = b"\x12" + uvarint(len(header)) + header
        if isinstance(body, feed_pb2.Lent):
            head += _lent(body)
            parts += (b"\x82\x01", uvarint(len(head)), head)
            continue
        view = octets(body).data
        size = len(head)
        if view:
            fields = (b"\x08" + uvarint(lane) if lane else b"") + (
                b"\x10" + uvarint(offset) if offset else b""
            )
            fields += b"\x7a" + uvarint(len(view))
            head += b"\x7a" + uvarint(len(fields) + len(view)) + fields
            size = len(head) + len(view)
        parts += (b"\x82\x01", uvarint(size), head, view)
    return b"".join(parts)


def _lent(lent: feed_pb2.Lent) -> bytes:
    data = lent.SerializeToString()
    return b"\x8a\x01" + uvarint(len(data)) + data


# --- on the way in --------------------------------------------------------------------------------


class ChunkView(NamedTuple):
    """A part of a body, still inside the message that brought it.

    Attributes:
        lane: The lane of the batch.
        offset: Its offset.
        start: The first byte of the body that `data` holds.
        data: The bytes, a view.
    """

    lane: int
    offset: int
    start: int
    data: memoryview


class Reply(NamedTuple):
    """One `ReadReply`.

    Attributes:
        kind: What it is.
        header: For a batch whose first message this is. Its own checksum is right where it has one,
            see `check_sealed`.
        chunk: For a batch, a part of its body.
        lent: For a batch, where its whole body lies; its header comes with it.
        message: `Opened`, `Waiting`, `Draining` or `End`.
    """

    kind: Literal["batch", "opened", "waiting", "draining", "end"]
    header: feed_pb2.BatchHeader | None = None
    chunk: ChunkView | None = None
    message: Any = None
    lent: feed_pb2.Lent | None = None


_OTHERS: dict[int, tuple[Literal["opened", "waiting", "draining", "end"], Any]] = {
    1: ("opened", feed_pb2.Opened),
    3: ("waiting", feed_pb2.Waiting),
    4: ("draining", feed_pb2.Draining),
    5: ("end", feed_pb2.End),
}
_HEADER, _CHUNK, _MORE, _LENT = 2, 15, 16, 17


def parse_replies(message: Buffer) -> list[Reply]:
    """Return what a serialized `ReadReply` says, one reply after another where it is a bundle.

    Raises:
        BadFrame: As `parse_reply`; or a bundle carries something else, or another bundle.
        ChecksumMismatch: As `parse_reply`.
    """
    view = memoryview(message)  # type: ignore[arg-type]  # an ndarray is a buffer, too
    # One look at the first tag: a bundle of ours starts with `more`, and nothing else does.
    if view[:2] != b"\x82\x01":  # type: ignore[comparison-overlap]  # equal by content
        return [parse_reply(view)]
    replies: list[Reply] = []
    at, end = 0, len(view)
    while at < end:
        field, wire, at = read_tag(view, at, end)
        if field != _MORE or wire != 2:
            refuse(f"a bundle carries field {field} beside `more`")
        start, at = read_length(view, at, end)
        replies.append(parse_reply(view[start:at]))
    return replies


def parse_reply(message: Buffer) -> Reply:
    """Return what a serialized `ReadReply` says; the chunk's data are not copied.

    Any encoding that protobuf reads is read: fields in any order, repeated (then they merge), or
    unknown.

    Raises:
        BadFrame: It is not such a message, says nothing that is known, or says two things at once.
        ChecksumMismatch: It holds a header that is not the one that was sent.
    """
    view = memoryview(message)  # type: ignore[arg-type]  # an ndarray is a buffer, too
    parts: dict[int, list[memoryview]] = {}
    chunk: ChunkView | None = None
    at, end = 0, len(view)
    while at < end:
        field, wire, at = read_tag(view, at, end)
        if wire != 2:
            at = skip_field(view, at, end, field, wire)
            continue
        start, at = read_length(view, at, end)
        if field == _CHUNK:
            chunk = _chunk(view, start, at, chunk)
        elif field == _MORE:
            refuse("a bundle stands where one reply was expected, or behind something else")
        elif field in (_HEADER, _LENT) or field in _OTHERS:
            parts.setdefault(field, []).append(view[start:at])
    if chunk is not None or _HEADER in parts or _LENT in parts:
        first, place = parts.pop(_HEADER, None), parts.pop(_LENT, None)
        if parts:
            refuse("a message of the feed carries a batch and something else")
        if place is not None and (first is None or chunk is not None):
            refuse("a batch is lent without its header, or lent and sent")
        header = None if first is None else read_header(_merged(first))
        lent = None if place is None else parse(feed_pb2.Lent, _merged(place))
        return Reply("batch", header, chunk, lent=lent)
    if len(parts) != 1:
        refuse(f"a message of the feed carries {len(parts)} things that are known, not 1")
    field, encoded = parts.popitem()
    kind, cls = _OTHERS[field]
    return Reply(kind, message=parse(cls, _merged(encoded)))


def _merged(parts: list[memoryview]) -> bytes:
    # Protobuf merges a repeated message as if its encodings followed each other.
    return b"".join(parts)


def _chunk(view: memoryview, at: int, end: int, before: ChunkView | None) -> ChunkView:
    lane, offset, first, data = before or (0, 0, 0, view[:0])
    while at < end:
        field, wire, at = read_tag(view, at, end)
        if wire == 0 and field <= 3:
            value, at = read_varint(view, at, end)
            if field == 1:
                lane = value & 0xFFFFFFFF
            elif field == 2:
                offset = value
            else:
                first = value
        elif wire == 2 and field == 15:
            start, at = read_length(view, at, end)
            data = view[start:at]
        else:
            at = skip_field(view, at, end, field, wire)
    return ChunkView(lane, offset, first, data)


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


__all__ = [
    "ChunkView",
    "Reply",
    "batch_messages",
    "bundle",
    "check_chunk",
    "parse_replies",
    "parse_reply",
]
