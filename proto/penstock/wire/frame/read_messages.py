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
from penstock.wire.frame.seal import read_header
from penstock.wire.parse import parse
from penstock.wire.v1 import feed_pb2

_HEADER_TAG, _CHUNK_TAG, _MORE_TAG, _LENT_TAG = b"\x12", b"\x7a", b"\x82\x01", b"\x8a\x01"
"""Of the fields of `ReadReply`, as protobuf writes them before their length."""

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
    head = _field(_HEADER_TAG, header)
    if isinstance(body, feed_pb2.Lent):
        yield head + _field(_LENT_TAG, body.SerializeToString())
        return
    view = octets(body).data
    if not view:
        yield head
        return
    which = _which(lane, offset)
    for start in range(0, len(view), chunk_bytes):
        data = view[start : start + chunk_bytes]
        fields = which + (b"\x18" + uvarint(start) if start else b"")
        # One join, not additions: each addition would copy the chunk again.
        yield b"".join((head, _chunk_head(fields, len(data)), data))
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
        head = _field(_HEADER_TAG, header)
        if isinstance(body, feed_pb2.Lent):
            parts.append(_field(_MORE_TAG, head + _field(_LENT_TAG, body.SerializeToString())))
            continue
        view = octets(body).data
        if view:
            head += _chunk_head(_which(lane, offset), len(view))
        parts += (_MORE_TAG, uvarint(len(head) + len(view)), head, view)
    return b"".join(parts)


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + uvarint(len(data)) + data


def _which(lane: int, offset: int) -> bytes:
    """Return the fields of a chunk that say which batch it is of; 0 is not written."""
    return (b"\x08" + uvarint(lane) if lane else b"") + (
        b"\x10" + uvarint(offset) if offset else b""
    )


def _chunk_head(fields: bytes, nbytes: int) -> bytes:
    """Return what a chunk has before its `nbytes` of data."""
    fields += b"\x7a" + uvarint(nbytes)
    return _CHUNK_TAG + uvarint(len(fields) + nbytes) + fields


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
    view = memoryview(message)  # type: ignore[arg-type,unused-ignore]  # an ndarray is one, too
    # One look at the first tag: a bundle of ours starts with `more`, and nothing else does.
    if view[:2] != _MORE_TAG:  # equal by content
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
    view = memoryview(message)  # type: ignore[arg-type,unused-ignore]  # an ndarray is one, too
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
