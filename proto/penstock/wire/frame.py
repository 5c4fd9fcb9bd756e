"""How a batch lies in bytes: the only file that knows it.

A batch is a **header** (the protobuf message `BatchHeader`) and a **body**: its tensors, one behind
the other, each at a multiple of 64 bytes, zeros between them. It travels as `ReadReply` messages
that are written and read by hand here, byte for byte as protobuf would, because protobuf copies a
chunk twice more. In the order of a batch's way:

* the maker: `layout` -> `Layout.write` into the body -> `Layout.header`; `with_position`;
* the server's edge: `batch_messages`, or `bundle` for several small batches;
* the client: `parse_replies` -> `check_sealed` -> `check_header` -> `check_chunk` -> `check_crc` ->
  `decode_values`.

What comes from the network is checked before anything is allocated by it, and `BadFrame` or
`ChecksumMismatch` is all that it can cause.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from penstock.wire import ALIGNMENT, CHUNK_BYTES, MAX_MESSAGE_BYTES
from penstock.wire.digest import batch_digest
from penstock.wire.errors import BadFrame, ChecksumMismatch, MissingExtra, UnsupportedValue
from penstock.wire.order import MAX_POSITION
from penstock.wire.v1 import feed_pb2
from penstock.wire.values import (
    BFLOAT16,
    MAX_DIMENSIONS,
    MAX_LIST_DEPTH,
    STORAGE,
    Array,
    Json,
    NDArray,
    Plain,
    to_plain,
    wire_name,
)

_SEAL_TAG, _SEAL_BYTES = b"\x7d", 5
"""The tag of `header_crc32c`, and how long the field is."""

_CACHED_BYTES = 1 << 18
"""What is surely still in the second-level cache right after it was written."""

_SMALL_BYTES = 4096
"""Up to here one more copy, into bytes, costs less than arrays over the place where data goes."""

Buffer: TypeAlias = "bytes | bytearray | memoryview | NDArray"

_extend: Callable[[int, NDArray | bytes], int] = google_crc32c.extend
"""`(crc32c of what came before, octets) -> crc32c`. It takes no memoryview, but arrays over one."""

MAX_HEADER_BYTES = MAX_MESSAGE_BYTES - CHUNK_BYTES - 4096
"""A header shares its message with the first chunk."""

_KINDS = {
    "tensor": "tensor",
    "list": "list",
    "integer": "int",
    "real": "float",
    "truth": "bool",
    "text": "str",
    "raw": "bytes",
    "json": "json",
    "none": "none",
}
"""Field of `Value` -> the kind's name in Describe and in records."""


# --- the maker ----------------------------------------------------------------------------------


class Layout:
    """Where every value of one batch lies. Made by `layout`, used by one thread.

    Attributes:
        nbytes: The length of the body: the end of the last tensor, 0 without tensors.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._tensors: list[tuple[int, Array]] = []
        self._values: list[bytes] = []  # entries of the header, serialized
        self._names: list[str] = []

    def add(self, name: str, value: Any, host: bool) -> None:
        """Append a value; `host` = it stays off the device.

        Raises:
            UnsupportedValue: It has no form on the wire.
        """
        found = None
        if type(value) is np.ndarray:
            start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            found = _tensor_field(name, host, value.dtype, value.shape, start)
        if found is not None:
            dtype, field = found
            self._tensors.append((start, Array(dtype, value)))
            self.nbytes = start + value.nbytes
        else:
            plain = to_plain(value, name)
            message = feed_pb2.BatchHeader()
            self._put(_named(message, name, host), plain)
            field = message.SerializeToString()
        self._values.append(field)
        self._names.append(name)

    def _put(self, message: feed_pb2.Value, plain: Plain) -> None:
        if plain is None:
            message.none.SetInParent()
        elif isinstance(plain, bool):
            message.truth = plain
        elif isinstance(plain, int):
            message.integer = plain
        elif isinstance(plain, float):
            message.real = plain
        elif isinstance(plain, str):
            message.text = plain
        elif isinstance(plain, bytes):
            message.raw = plain
        elif isinstance(plain, Json):
            message.json = plain.text
        elif isinstance(plain, list):
            message.list.SetInParent()
            add = message.list.values.add
            for inner in plain:
                self._put(add(), inner)
        else:
            start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            _put_tensor(message.tensor, plain.dtype, plain.data.shape, start, plain.data.nbytes)
            self._tensors.append((start, plain))
            self.nbytes = start + plain.data.nbytes

    def write(self, out: memoryview | NDArray) -> int:
        """Write the body and return its crc32c.

        Args:
            out: Writable and contiguous, of exactly `nbytes` bytes; every one of them is written.

        Raises:
            ValueError: `out` has another length.
        """
        body = _octets(out).data if isinstance(out, np.ndarray) else out
        if body.nbytes != self.nbytes:
            raise ValueError(f"the body has {self.nbytes} bytes, the buffer {body.nbytes}")
        end = crc = 0
        for start, (dtype, data) in self._tensors:
            if end < start:
                gap = bytes(start - end)
                body[end:start] = gap
                crc = _extend(crc, gap)
            end = start + data.nbytes
            if data.nbytes <= _SMALL_BYTES and data.dtype == STORAGE[dtype]:
                octets = data.tobytes()
                body[start:end] = octets
                crc = _extend(crc, octets)
            elif data.flags.c_contiguous and data.dtype == STORAGE[dtype]:
                crc = _copy(_octets(body[start:end]), _octets(data), crc)
            else:
                # One pass makes it contiguous and little-endian.
                place: NDArray = np.ndarray(data.shape, STORAGE[dtype], body, start)
                np.copyto(place, data, casting="equiv")
                crc = crc32c(body[start:end], crc)
        return crc

    def header(
        self,
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
            log_id: The log that the batch belongs to, 32 bytes.
            lane: Its lane.
            offset: Its offset.
            crc: What `write` returned.
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
        message.body_bytes, message.crc32c = self.nbytes, crc
        message.padding, message.epoch = padding, epoch
        for field in self._values:
            message.MergeFromString(field)
        for name, value in sorted(counts.items()):
            if not -(1 << 63) <= value < 1 << 63:
                raise UnsupportedValue(
                    f"count {name!r} of a batch is {value}, which does not fit int64",
                    name=name,
                    type="int",
                )
            count = message.counts.add()
            count.name, count.value = _name(name), value
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
                f"the values {', '.join(self._names)} of a batch make a header of {len(header)} "
                f"bytes, and at most {MAX_HEADER_BYTES} fit a message: send large texts, bytes and "
                "lists as arrays, such as np.frombuffer(data, 'uint8'), or make batches smaller",
                name=", ".join(self._names),
                type="header",
            )
        return header


def _named(message: feed_pb2.BatchHeader, name: str, host: bool) -> feed_pb2.Value:
    """Add a name to the values of a header; return the message of its value."""
    named = message.values.add(name=name)
    if host:
        named.place = feed_pb2.PLACE_HOST
    return named.value


def _put_tensor(
    tensor: feed_pb2.Tensor, dtype: str, shape: tuple[int, ...], start: int, nbytes: int
) -> None:
    tensor.dtype, tensor.start, tensor.nbytes = dtype, start, nbytes
    tensor.shape.extend(shape)


@lru_cache(1024)  # the same few at every batch, as long as shapes are
def _tensor_field(
    name: str, host: bool, dtype: np.dtype[Any], shape: tuple[int, ...], start: int
) -> tuple[str, bytes] | None:
    """Return the dtype's name on the wire, and the header's entry for such an array.

    None where an array like this does not travel as it is.
    """
    wire = wire_name(dtype)
    if wire is None or wire == BFLOAT16 or len(shape) > MAX_DIMENSIONS:
        return None
    message = feed_pb2.BatchHeader()
    nbytes = dtype.itemsize * math.prod(shape)
    _put_tensor(_named(message, name, host).tensor, wire, shape, start, nbytes)
    return wire, message.SerializeToString()


@lru_cache(1024)
def _name(name: str) -> str:
    """Return a name, which travels as text: so what a text may not hold it may not hold either."""
    return str(to_plain(name, name))


def _copy(into: NDArray, data: NDArray, crc: int) -> int:
    """Copy in pieces that the cache still holds when their crc32c is taken; return the whole's."""
    for start in range(0, len(data), _CACHED_BYTES):
        piece = into[start : start + _CACHED_BYTES]
        piece[:] = data[start : start + _CACHED_BYTES]
        crc = _extend(crc, piece)
    return crc


def layout(values: Mapping[str, Any], host: Collection[str] = ()) -> Layout:
    """Return where each value of a batch will lie.

    Args:
        values: Name -> value, in the order of the batch: see `penstock.wire.values`.
        host: Names that the trainer reads in Python, which stay off the device.

    Raises:
        UnsupportedValue: A value has no form on the wire, or a name is not a str.
    """
    found = Layout()
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise UnsupportedValue(
                f"a value of a batch is named {name!r}: names are str of at least 1 character",
                name=repr(name),
                type=type(name).__name__,
            )
        found.add(_name(name), value, name in host)
    return found


def with_position(header: bytes, position: int) -> bytes:
    """Return `header`, which has neither yet, with its position and its own checksum at the end.

    Both stand as protobuf writes them. The checksum covers every byte before its tag.
    """
    placed = header + b"\x70" + _uvarint(position) if position else header
    return placed + _SEAL_TAG + int(google_crc32c.value(placed)).to_bytes(4, "little")


# --- the server's edge --------------------------------------------------------------------------


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
    head = b"\x12" + _uvarint(len(header)) + header
    if isinstance(body, feed_pb2.Lent):
        yield head + _lent(body)
        return
    view = _octets(body).data
    if not view:
        yield head
        return
    address = (b"\x08" + _uvarint(lane) if lane else b"") + (
        b"\x10" + _uvarint(offset) if offset else b""
    )
    for start in range(0, len(view), chunk_bytes):
        data = view[start : start + chunk_bytes]
        fields = address + (b"\x18" + _uvarint(start) if start else b"")
        fields += b"\x7a" + _uvarint(len(data))
        # One join, not additions: each addition would copy the chunk again.
        yield b"".join((head, b"\x7a", _uvarint(len(fields) + len(data)), fields, data))
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
        head = b"\x12" + _uvarint(len(header)) + header
        if isinstance(body, feed_pb2.Lent):
            head += _lent(body)
            parts += (b"\x82\x01", _uvarint(len(head)), head)
            continue
        view = _octets(body).data
        size = len(head)
        if view:
            fields = (b"\x08" + _uvarint(lane) if lane else b"") + (
                b"\x10" + _uvarint(offset) if offset else b""
            )
            fields += b"\x7a" + _uvarint(len(view))
            head += b"\x7a" + _uvarint(len(fields) + len(view)) + fields
            size = len(head) + len(view)
        parts += (b"\x82\x01", _uvarint(size), head, view)
    return b"".join(parts)


def _lent(lent: feed_pb2.Lent) -> bytes:
    data = lent.SerializeToString()
    return b"\x8a\x01" + _uvarint(len(data)) + data


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- the client: messages -----------------------------------------------------------------------


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
_MAX_GROUP_DEPTH = 100


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
        field, wire, at = _tag(view, at, end)
        if field != _MORE or wire != 2:
            _bad(f"a bundle carries field {field} beside `more`")
        start, at = _length(view, at, end)
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
        field, wire, at = _tag(view, at, end)
        if wire != 2:
            at = _skip(view, at, end, field, wire)
            continue
        start, at = _length(view, at, end)
        if field == _CHUNK:
            chunk = _chunk(view, start, at, chunk)
        elif field == _MORE:
            _bad("a bundle stands where one reply was expected, or behind something else")
        elif field in (_HEADER, _LENT) or field in _OTHERS:
            parts.setdefault(field, []).append(view[start:at])
    if chunk is not None or _HEADER in parts or _LENT in parts:
        encoded, place = parts.pop(_HEADER, None), parts.pop(_LENT, None)
        if parts:
            _bad("a message of the feed carries a batch and something else")
        if place is not None and (encoded is None or chunk is not None):
            _bad("a batch is lent without its header, or lent and sent")
        header = None if encoded is None else _decode_header(encoded)
        lent = None if place is None else _decode(feed_pb2.Lent, place)
        return Reply("batch", header, chunk, lent=lent)
    if len(parts) != 1:
        _bad(f"a message of the feed carries {len(parts)} things that are known, not 1")
    field, encoded = parts.popitem()
    kind, cls = _OTHERS[field]
    return Reply(kind, message=_decode(cls, encoded))


def _decode(cls: Any, parts: list[memoryview]) -> Any:
    # Protobuf merges a repeated message as if its encodings stood behind each other.
    try:
        return cls.FromString(b"".join(parts))
    except DecodeError as error:
        raise BadFrame(
            f"a message of the feed holds no valid {cls.DESCRIPTOR.name}: {error}; "
            "check that nothing between server and client changes bytes"
        ) from error


def _decode_header(parts: list[memoryview]) -> feed_pb2.BatchHeader:
    """Return a header whose checksum, where it ends with one, is right."""
    encoded = b"".join(parts)
    if encoded[-_SEAL_BYTES:-4] == _SEAL_TAG:
        expected = int.from_bytes(encoded[-4:], "little")
        got = int(google_crc32c.value(encoded[:-_SEAL_BYTES]))
        if got != expected:
            raise _damaged(f"arrived with crc32c {got:08x}, and was sent with {expected:08x}")
    header: feed_pb2.BatchHeader = _decode(feed_pb2.BatchHeader, [memoryview(encoded)])
    return header


def check_sealed(header: feed_pb2.BatchHeader) -> None:
    """Refuse a header that came without its checksum: what it says may be damaged.

    Raises:
        ChecksumMismatch: `parse_reply` had nothing to check it by.
    """
    if not header.HasField("header_crc32c"):
        raise _damaged("arrived without its checksum")


def _damaged(how: str) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"the header of a batch {how}: read it again; if that fails too, check memory and network, "
        "and that both sides run the same version"
    )


def _chunk(view: memoryview, at: int, end: int, before: ChunkView | None) -> ChunkView:
    lane, offset, first, data = before or (0, 0, 0, view[:0])
    while at < end:
        field, wire, at = _tag(view, at, end)
        if wire == 0 and field <= 3:
            value, at = _varint(view, at, end)
            if field == 1:
                lane = value & 0xFFFFFFFF
            elif field == 2:
                offset = value
            else:
                first = value
        elif wire == 2 and field == 15:
            start, at = _length(view, at, end)
            data = view[start:at]
        else:
            at = _skip(view, at, end, field, wire)
    return ChunkView(lane, offset, first, data)


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    _bad("a message of the feed ends within a number, or a number is too long")


def _tag(view: memoryview, at: int, end: int) -> tuple[int, int, int]:
    tag, at = _varint(view, at, end)
    if not 8 <= tag < 1 << 32:
        _bad(f"a message of the feed has the tag {tag}, which protobuf does not know")
    return tag >> 3, tag & 7, at


def _length(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """The first and the last-plus-one byte of a length-delimited field."""
    length, at = _varint(view, at, end)
    if length > end - at:
        _bad(f"a message of the feed is cut: {length} bytes are announced and {end - at} are there")
    return at, at + length


def _skip(view: memoryview, at: int, end: int, field: int, wire: int) -> int:
    groups = [field] if wire == 3 else []
    if wire != 3:
        at = _skip_plain(view, at, end, wire)
    while groups:
        field, wire, at = _tag(view, at, end)
        if wire == 3:
            groups.append(field)
            if len(groups) > _MAX_GROUP_DEPTH:
                _bad(f"a message of the feed nests groups deeper than {_MAX_GROUP_DEPTH}")
        elif wire == 4:
            if groups.pop() != field:
                _bad("a message of the feed ends a group that it did not begin")
        else:
            at = _skip_plain(view, at, end, wire)
    return at


def _skip_plain(view: memoryview, at: int, end: int, wire: int) -> int:
    if wire == 0:
        return _varint(view, at, end)[1]
    if wire == 2:
        return _length(view, at, end)[1]
    if wire not in (1, 5):
        _bad(f"a message of the feed has a field of the wire type {wire}, which cannot stand there")
    at += 8 if wire == 1 else 4
    if at > end:
        _bad("a message of the feed ends within a number")
    return at


def _bad(message: str, **fields: Any) -> NoReturn:
    raise BadFrame(f"{message}; check that both sides run the same version", **fields)


# --- the client: headers and bodies -------------------------------------------------------------


def check_header(header: feed_pb2.BatchHeader, *, max_body_bytes: int) -> None:
    """Refuse a header that does not describe a batch, before anything is allocated for it.

    Args:
        header: From `parse_reply`.
        max_body_bytes: The largest body that the caller is ready to hold.

    Raises:
        BadFrame: The body is too large; a tensor is of an unknown dtype, outside the body, over
            another, misaligned or of another length than its shape; a value says nothing, or lists
            nest too deep; a name is empty or doubled.
    """
    body_bytes = header.body_bytes
    if body_bytes > max_body_bytes:
        _bad(
            f"a batch announces a body of {body_bytes} bytes, "
            f"and at most {max_body_bytes} are allowed",
            body_bytes=body_bytes,
            max_body_bytes=max_body_bytes,
        )
    if header.position > MAX_POSITION or header.offset > MAX_POSITION:
        _bad(f"a batch announces position {header.position} and offset {header.offset}")
    names: set[str] = set()
    spans: list[tuple[int, int]] = []
    for named in header.values:
        name = named.name
        if not name or name in names:
            _bad(f"a batch has a value whose name {name!r} is empty or doubled")
        names.add(name)
        _check_value(named.value, name, body_bytes, spans, 0)
    spans.sort()
    end = 0
    for start, stop in spans:
        if start < end:
            _bad(f"two tensors of a batch lie over each other at byte {start} of its body")
        end = stop


def _check_value(
    value: feed_pb2.Value, name: str, body_bytes: int, spans: list[tuple[int, int]], depth: int
) -> None:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        _check_tensor(value.tensor, name, body_bytes, spans)
    elif kind == "list":
        if depth == MAX_LIST_DEPTH:
            _bad(f"value {name!r} nests lists deeper than {MAX_LIST_DEPTH}")
        for inner in value.list.values:
            _check_value(inner, name, body_bytes, spans, depth + 1)
    elif kind is None:
        _bad(f"value {name!r} has no kind that is known here")


def _check_tensor(
    tensor: feed_pb2.Tensor, name: str, body_bytes: int, spans: list[tuple[int, int]]
) -> None:
    storage = STORAGE.get(tensor.dtype)
    if storage is None:
        _bad(f"tensor {name!r} has the dtype {tensor.dtype[:40]!r}, which is not known here")
    shape = tensor.shape
    if len(shape) > MAX_DIMENSIONS:
        _bad(
            f"tensor {name!r} has {len(shape)} dimensions, and at most {MAX_DIMENSIONS} are allowed"
        )
    start, nbytes = tensor.start, tensor.nbytes
    if start % ALIGNMENT or start + nbytes > body_bytes:
        _bad(
            f"tensor {name!r} lies at bytes {start} to {start + nbytes} of a body of {body_bytes}: "
            f"outside of it, or not at a multiple of {ALIGNMENT}"
        )
    # Dimensions beside a 0 must still be countable: NumPy refuses to view what overflows.
    extent, empty = storage.itemsize, False
    for size in shape:
        extent *= size or 1
        empty |= size == 0
        if extent > MAX_POSITION:
            _bad(f"tensor {name!r} has the shape {list(shape)}, which no memory holds")
    if nbytes != (0 if empty else extent):
        _bad(f"tensor {name!r} of shape {list(shape)} and {tensor.dtype} claims {nbytes} bytes")
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
        _bad(
            f"lane {chunk.lane}, offset {chunk.offset} sent {len(chunk.data)} bytes from byte "
            f"{chunk.start}, where byte {filled} of the {header.body_bytes} of lane {header.lane}, "
            f"offset {header.offset} was due"
        )
    return after


def crc32c(body: Buffer, crc: int = 0) -> int:
    """Return the crc32c of contiguous bytes that follow those of `crc`, without copying them."""
    return _extend(crc, _octets(body))


def _octets(buffer: Any) -> NDArray:
    """The bytes of a contiguous buffer as a flat uint8 array; writable if the buffer is."""
    view = memoryview(buffer)
    # NumPy and memoryview each refuse to flatten nothing.
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


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
    octets = _octets(body)
    if len(octets) != header.body_bytes:
        _bad(f"a body of {header.body_bytes} bytes was announced, and {len(octets)} are there")
    got = crc32c(octets) if got is None else got
    if got != header.crc32c:
        raise ChecksumMismatch(
            f"the batch at position {header.position} arrived with crc32c {got:08x}, and was sent "
            f"with {header.crc32c:08x}: read it again; if that fails too, check memory and network",
            position=header.position,
            expected=header.crc32c,
            got=got,
        )


TensorMaker: TypeAlias = Callable[[str, tuple[int, ...], int, int], Any]
"""(dtype name, shape, first byte in the body, length in bytes) -> the tensor."""


def decode_values(
    header: feed_pb2.BatchHeader, body: Buffer, tensor: TensorMaker | None = None
) -> dict[str, Any]:
    """Return the values of a batch, in its order; tensors are views into `body`.

    Args:
        header: A header that `check_header` has passed.
        body: The whole body. Tensors keep it alive, and are writable if it is.
        tensor: Makes a tensor of its place in the body; by default a NumPy view, for bfloat16 with
            the dtype of ml_dtypes.

    Raises:
        BadFrame: A JSON text is none.
        MissingExtra: A tensor is bfloat16, ml_dtypes is not installed, and no `tensor` was given.
    """
    make = tensor or _numpy_maker(body)
    return {named.name: _value(named.value, named.name, make) for named in header.values}


def _value(value: feed_pb2.Value, name: str, make: TensorMaker) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        found = value.tensor
        return make(found.dtype, tuple(found.shape), found.start, found.nbytes)
    if kind == "list":
        return [_value(inner, name, make) for inner in value.list.values]
    if kind == "none":
        return None
    if kind == "json":
        return _json_object(value.json, name)
    return getattr(value, kind)


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"value {name!r} is announced as JSON and is none: {error}") from error
    if not isinstance(found, dict):
        _bad(f"value {name!r} is JSON of type {type(found).__name__}, not an object")
    return found


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")


def _numpy_maker(body: Buffer) -> TensorMaker:
    def make(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        found = bfloat16_dtype() if dtype == BFLOAT16 else STORAGE[dtype]
        return np.ndarray(shape, found, body, start)

    return make


def bfloat16_dtype() -> np.dtype[Any]:
    """Return NumPy's dtype for bfloat16.

    Raises:
        MissingExtra: ml_dtypes is not installed.
    """
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingExtra(
            "a batch holds bfloat16, which NumPy lacks: pip install ml-dtypes, or read with torch",
            package="ml-dtypes",
            extra="server",
        ) from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


# --- for people and scripts ---------------------------------------------------------------------


def describe_values(header: feed_pb2.BatchHeader) -> dict[str, dict[str, Any]]:
    """Return `{name: {"kind", "dtype", "shape"}}`; `""` and `[]` where a value is no tensor."""
    found: dict[str, dict[str, Any]] = {}
    for named in header.values:
        field = named.value.WhichOneof("kind")
        tensor = named.value.tensor if field == "tensor" else None
        found[named.name] = {
            "kind": _KINDS[field] if field else "none",
            "dtype": tensor.dtype if tensor else "",
            "shape": list(tensor.shape) if tensor else [],
        }
    return found


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
    "Buffer",
    "ChunkView",
    "Layout",
    "Reply",
    "TensorMaker",
    "batch_messages",
    "batch_record",
    "bfloat16_dtype",
    "bundle",
    "check_chunk",
    "check_crc",
    "check_header",
    "check_sealed",
    "crc32c",
    "decode_values",
    "describe_values",
    "layout",
    "parse_replies",
    "parse_reply",
    "with_position",
]
