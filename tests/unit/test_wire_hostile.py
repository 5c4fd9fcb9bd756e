"""Whatever arrives, a client meets `BadFrame` or a batch, and no announced size costs memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.describe import describe_values
from penstock.wire.errors import BadFrame, ChecksumMismatch
from penstock.wire.frame import (
    BodyLayout,
    batch_messages,
    check_chunk,
    check_crc,
    check_header,
    decode_values,
    parse_reply,
    sent_bytes,
    with_position,
    write_body,
    write_header,
)
from penstock.wire.packed_rows import PER_TOKEN, Derived, PackedRows
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import MAX_DIMENSIONS, MAX_LIST_DEPTH

MAX_BODY_BYTES = 1 << 20


KINDS = {
    "x": np.arange(3, dtype=np.int16),
    "y": [np.zeros((2, 0)), None, [1, "é"]],
    "z": {"a": [1, None]},
    "r": 0.5,
    "b": b"raw",
}
ROWS = PackedRows(
    np.arange(8, dtype=np.int32).reshape(2, 4),
    np.array([0, 2, 4, 8], np.int32),
    np.array([2, 0, 3], np.int32),
)


def of_rows(rule: int) -> Derived:
    return Derived(ROWS, rule, "float32" if rule == feed_pb2.RULE_LEARNED else "int64", (2, 4))


PACKED = {f"p{rule}": of_rows(rule) for rule in PER_TOKEN} | {
    "x": np.arange(3, dtype=np.int16),
    "seams": Derived(ROWS, feed_pb2.RULE_SEAMS, "int32", (5,)),
}


def valid_message(values: dict[str, Any]) -> bytes:
    """One message that holds a whole batch."""
    plan = BodyLayout(values)
    body = bytearray(plan.sent_bytes)
    crc = write_body(plan, memoryview(body))
    header = write_header(plan, b"log", 1, 300, crc, {"tokens": 5}, [(0, "s", 1, 0, 0, (2, 3))])
    # Without a checksum of the header: what is tested here is what stands when that is right.
    placed = feed_pb2.BatchHeader.FromString(with_position(header, 700))
    placed.ClearField("header_crc32c")
    (message,) = batch_messages(placed.SerializeToString(), 1, 300, body)
    return message


MESSAGE = valid_message(KINDS)
MESSAGES = {"a value of every kind": MESSAGE, "packed rows": valid_message(PACKED)}
every_message = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)


def receive(message: bytes) -> None:
    """Do all that a client does with a message that may hold a whole batch."""
    reply = parse_reply(message)
    header, chunk = reply.header, reply.chunk
    if header is None:
        return
    check_header(header, max_body_bytes=MAX_BODY_BYTES)
    describe_values(header)
    body = bytearray(sent_bytes(header))
    if chunk is not None:
        filled = check_chunk(header, chunk, 0)
        body[:filled] = chunk.data
    # A header may be hostile and its body's checksum right: go on as if it were.
    with suppress(ChecksumMismatch):
        check_crc(header, body)
    decode_values(header, body)


def meets_only_bad_frame(message: bytes) -> bool:
    """Tell whether the message was refused; any other error rises."""
    try:
        receive(message)
    except (BadFrame, ChecksumMismatch):
        return True
    return False


@every_message
def test_the_valid_message_is_received(message: bytes) -> None:
    """What the other tests damage is sound to begin with."""
    assert not meets_only_bad_frame(message)


@every_message
def test_every_truncation_is_refused(message: bytes) -> None:
    """No proper prefix passes for the batch, but the one that ends between header and chunk.

    Of packed rows that one is refused, too: there are no seams in nothing.
    """
    whole_header = parse_reply(message).header
    assert whole_header is not None
    between = len(feed_pb2.ReadReply(header=whole_header).SerializeToString())

    passed = [n for n in range(len(message)) if not meets_only_bad_frame(message[:n])]

    assert passed == ([] if whole_header.HasField("packed") else [between])


@every_message
def test_every_flipped_bit_is_survived(message: bytes) -> None:
    """Each single bit of a message, flipped: refused or read, and never another error."""
    refused = 0
    for bit in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        refused += meets_only_bad_frame(bytes(flipped))

    assert refused > len(message)


@every_message
def test_every_byte_at_every_place_is_survived(message: bytes) -> None:
    """Each byte of a message replaced by telling values: edges of varints and of wire types."""
    for place in range(len(message)):
        for byte in (0x00, 0x01, 0x0B, 0x0C, 0x7A, 0x7F, 0x80, 0xFF):
            meets_only_bad_frame(message[:place] + bytes([byte]) + message[place + 1 :])


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=200))
def test_random_bytes_are_survived(message: bytes) -> None:
    """Bytes of no origin at all, as a message and as the header within one."""
    meets_only_bad_frame(message)
    meets_only_bad_frame(b"\x12" + bytes([len(message) & 0x7F]) + message[:127])


@every_message
@settings(deadline=None, max_examples=300)
@given(damages=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=8))
def test_many_damages_at_once_are_survived(message: bytes, damages: list[tuple[int, int]]) -> None:
    """Several bytes replaced together."""
    damaged = bytearray(message)
    for place, byte in damages:
        damaged[place % len(message)] = byte
    meets_only_bad_frame(bytes(damaged))


def tensor(
    dtype: str = "int32", shape: tuple[int, ...] = (4,), start: int = 0, nbytes: int = 16
) -> feed_pb2.Value:
    return feed_pb2.Value(
        tensor=feed_pb2.Tensor(dtype=dtype, shape=shape, start=start, nbytes=nbytes)
    )


def header_of(*values: feed_pb2.Value, body_bytes: int = 256) -> feed_pb2.BatchHeader:
    return feed_pb2.BatchHeader(
        body_bytes=body_bytes,
        values=[feed_pb2.NamedValue(name=f"x{i}", value=value) for i, value in enumerate(values)],
    )


def nested(depth: int) -> feed_pb2.Value:
    value = feed_pb2.Value(integer=1)
    for _ in range(depth):
        value = feed_pb2.Value(list=feed_pb2.List(values=[value]))
    return value


def hostile_headers() -> Iterator[tuple[str, feed_pb2.BatchHeader]]:
    """Headers that lie, each with a part of the sentence that must say how."""
    huge = (1 << 64) - 1
    yield "at most 1048576 are allowed", header_of(body_bytes=MAX_BODY_BYTES + 1)
    yield "at most 1048576 are allowed", header_of(body_bytes=huge)
    yield "dtype 'float7'", header_of(tensor("float7"))
    yield "dtype 'object'", header_of(tensor("object"))
    yield "dtype '<i4'", header_of(tensor("<i4"))
    yield "outside of it", header_of(tensor(start=256))
    yield "outside of it", header_of(tensor(start=64), body_bytes=79)
    yield "outside of it", header_of(tensor(start=huge - 63))
    yield f"claims {huge} bytes", header_of(tensor(nbytes=huge))
    yield "a multiple of 64", header_of(tensor(start=1))
    yield "a multiple of 64", header_of(tensor(start=32))
    yield "claims 16 bytes", header_of(tensor(shape=(5,)))
    yield "claims 16 bytes", header_of(tensor(shape=()))
    yield "claims 16 bytes", header_of(tensor(shape=(4, 0)))
    yield "claims 0 bytes", header_of(tensor(nbytes=0))
    yield "no memory holds", header_of(tensor(shape=(1 << 62,)))
    yield "no memory holds", header_of(tensor(shape=(1 << 32, 1 << 32)))
    yield "no memory holds", header_of(tensor(shape=(huge, huge, 0), nbytes=0))
    yield "no memory holds", header_of(tensor(shape=(0, 1 << 62, 4), nbytes=0))
    yield "dimensions", header_of(tensor(shape=(1,) * (MAX_DIMENSIONS + 1), nbytes=4))
    yield "over each other at byte 0", header_of(tensor(), tensor())
    yield "over each other at byte 64", header_of(tensor(shape=(32,), nbytes=128), tensor(start=64))
    yield "over each other at byte 64", header_of(tensor(start=64), tensor(shape=(32,), nbytes=128))
    yield "no kind", header_of(feed_pb2.Value())
    yield "no kind", header_of(feed_pb2.Value(list=feed_pb2.List(values=[feed_pb2.Value()])))
    yield "deeper than", header_of(nested(MAX_LIST_DEPTH + 1))
    yield (
        "outside of it",
        header_of(feed_pb2.Value(list=feed_pb2.List(values=[tensor(start=64 * 4)]))),
    )
    yield "empty or doubled", feed_pb2.BatchHeader(values=[feed_pb2.NamedValue(name="")])
    yield (
        "empty or doubled",
        feed_pb2.BatchHeader(
            values=[feed_pb2.NamedValue(name="a", value=feed_pb2.Value(integer=1))] * 2
        ),
    )
    yield "position 9223372036854775808", feed_pb2.BatchHeader(position=1 << 63)
    yield "offset 9223372036854775808", feed_pb2.BatchHeader(offset=1 << 63)


@pytest.mark.parametrize(("says", "header"), list(hostile_headers()))
def test_a_header_that_lies_is_refused(says: str, header: feed_pb2.BatchHeader) -> None:
    """Each rule of a header, broken alone, is named in the error."""
    with pytest.raises(BadFrame, match=says):
        check_header(header, max_body_bytes=MAX_BODY_BYTES)


def test_what_keeps_every_rule_to_its_edge_is_decoded() -> None:
    """The rules refuse no more than they must."""
    header = header_of(
        tensor(shape=(1,) * MAX_DIMENSIONS, nbytes=4),
        tensor(start=64, shape=(16,), nbytes=64),
        tensor(start=192, shape=(16,), nbytes=64),
        tensor(start=128, shape=(16,), nbytes=64),
        tensor(start=256, shape=((1 << 61) - 1, 0), nbytes=0),
        tensor(start=64, shape=(0,), nbytes=0),
        nested(MAX_LIST_DEPTH),
    )

    check_header(header, max_body_bytes=256)

    assert len(decode_values(header, bytes(256))) == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "1",
        "null",
        '{"a": NaN}',
        '{"a": -Infinity}',
        pytest.param('{"a":' * 100_000, id="deep"),
        pytest.param('{"a": ' + "9" * 10_000 + "}", id="many digits"),
    ],
)
def test_json_that_is_none_is_refused(text: str) -> None:
    """Neither nonsense, nor another type, nor depth, nor digits get further than `BadFrame`."""
    header = header_of(feed_pb2.Value(json=text))

    with pytest.raises(BadFrame, match="'x0'"):
        decode_values(header, b"")


def nested_group(depth: int) -> bytes:
    return b"\x33" * depth + b"\x34" * depth


@pytest.mark.parametrize(
    "message",
    [
        b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x7a\xff\xff\xff\xff\x07",
        b"\x12\xff\xff\xff\x7f" + bytes(100),
        b"\x80" * 11,
        b"\x30" + b"\x80" * 10 + b"\x00",
        b"\xb0\x80\x80\x80\x80\x01\x00",
        b"\x00\x00",
        b"\x07",
        b"\x34",
        b"\x33\x3c",
        b"\x33",
        b"\x31" + bytes(7),
        b"\x35" + bytes(3),
        pytest.param(nested_group(10_000), id="deep groups"),
        pytest.param(b"\x33" * (1 << 20), id="groups without end"),
        b"\x12\x02\xff\xff",
        b"\x7a\x02\x7a\x05",
    ],
)
def test_hostile_lengths_and_groups_cost_nothing(message: bytes) -> None:
    """Announced gigabytes are compared with what is there before anything is made for them."""
    behind_a_batch = MESSAGE + message
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            parse_reply(message)
        with pytest.raises(BadFrame):
            parse_reply(behind_a_batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_hostile_headers_cost_nothing() -> None:
    """Shapes and bodies of many gigabytes are refused before anything is made for them."""
    tracemalloc.start()
    try:
        for _, header in hostile_headers():
            with pytest.raises(BadFrame):
                check_header(header, max_body_bytes=MAX_BODY_BYTES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000
