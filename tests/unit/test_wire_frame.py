"""The hand-made messages are protobuf's own, byte for byte, and any of protobuf's are read."""

from __future__ import annotations

import json
from typing import Any

import google_crc32c
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES, frame
from penstock.wire.describe import batch_record, describe_values
from penstock.wire.digest import batch_digest
from penstock.wire.errors import BadFrame, ChecksumMismatch, UnsupportedValue
from penstock.wire.frame import (
    MAX_HEADER_BYTES,
    BodyLayout,
    ChunkView,
    Reply,
    batch_messages,
    check_chunk,
    check_crc,
    crc32c,
    parse_reply,
    with_position,
    write_body,
    write_header,
)
from penstock.wire.v1 import feed_pb2

LOG_ID = bytes(range(32))
VARINT_EDGES = [0, 1, 127, 128, 16383, 16384, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]


def payload(size: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(size))


def expected_messages(header: bytes, lane: int, offset: int, body: bytes, size: int) -> list[bytes]:
    """The messages of a batch as generated code alone writes them."""
    replies = [
        feed_pb2.ReadReply(
            chunk=feed_pb2.Chunk(lane=lane, offset=offset, start=s, data=body[s : s + size])
        )
        for s in range(0, len(body), size)
    ] or [feed_pb2.ReadReply()]
    replies[0].header.MergeFromString(header)
    # A present but empty header still has its tag.
    replies[0].header.SetInParent()
    return [reply.SerializeToString() for reply in replies]


@pytest.mark.parametrize("position", VARINT_EDGES)
@pytest.mark.parametrize("padding", [False, True])
def test_a_header_is_what_protobuf_writes(position: int, padding: bool) -> None:
    """Fields written apart, the position last, make the canonical bytes of the whole message."""
    plan = BodyLayout({"x": np.arange(5, dtype=np.int16), "n": 3, "l": [None, "é"]}, host={"n"})
    body = bytearray(plan.nbytes)
    crc = write_body(plan, memoryview(body))
    counts = {"tokens": 5, "below": -7, "none": 0}
    samples = [(0, "code", 0, 0, 0, None), (1, "", 1 << 40, 3, 2, (0, 9)), (1, "a", 1, 1, 1, None)]

    header = with_position(
        write_header(plan, LOG_ID, 3, 1 << 33, crc, counts, samples, padding=padding, epoch=2),
        position,
    )

    expected = feed_pb2.BatchHeader(
        log_id=LOG_ID,
        lane=3,
        offset=1 << 33,
        body_bytes=10,
        crc32c=crc,
        values=[
            feed_pb2.NamedValue(
                name="x",
                value=feed_pb2.Value(
                    tensor=feed_pb2.Tensor(dtype="int16", shape=[5], start=0, nbytes=10)
                ),
            ),
            feed_pb2.NamedValue(
                name="n", value=feed_pb2.Value(integer=3), place=feed_pb2.PLACE_HOST
            ),
            feed_pb2.NamedValue(
                name="l",
                value=feed_pb2.Value(
                    list=feed_pb2.List(
                        values=[
                            feed_pb2.Value(none=feed_pb2.Nothing()),
                            feed_pb2.Value(text="é"),
                        ]
                    )
                ),
            ),
        ],
        counts=[
            feed_pb2.Count(name="below", value=-7),
            feed_pb2.Count(name="none", value=0),
            feed_pb2.Count(name="tokens", value=5),
        ],
        samples=[
            feed_pb2.Sample(row=0, source="code", index=0, epoch=0, part=0),
            feed_pb2.Sample(row=1, source="", index=1 << 40, epoch=3, part=2, start=0, stop=9),
            feed_pb2.Sample(row=1, source="a", index=1, epoch=1, part=1),
        ],
        padding=padding,
        epoch=2,
        position=position,
    )
    expected.header_crc32c = google_crc32c.value(expected.SerializeToString())
    assert header == expected.SerializeToString()


def test_an_empty_batch_has_an_empty_header() -> None:
    """Nothing is written for what is nothing."""
    assert write_header(BodyLayout({}), b"", 0, 0, 0, {}, []) == b""


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_count_that_is_too_large_is_refused_by_name(value: int) -> None:
    """Counts are int64."""
    with pytest.raises(UnsupportedValue, match="'tokens'"):
        write_header(BodyLayout({}), LOG_ID, 0, 0, 0, {"tokens": value}, [])


def test_a_header_that_fits_no_message_is_refused() -> None:
    """The largest header travels with a full chunk; one byte more is refused with a way out."""
    slack = len(write_header(BodyLayout({"x": bytes(1 << 22)}), b"", 0, 0, 0, {}, [])) - (1 << 22)
    largest = write_header(BodyLayout({"x": bytes(MAX_HEADER_BYTES - slack)}), b"", 0, 0, 0, {}, [])

    message = next(batch_messages(with_position(largest, 1 << 62), 9, 1 << 62, bytes(CHUNK_BYTES)))

    assert len(largest) == MAX_HEADER_BYTES
    assert len(message) <= MAX_MESSAGE_BYTES
    with pytest.raises(UnsupportedValue, match="'uint8'"):
        write_header(BodyLayout({"x": bytes(MAX_HEADER_BYTES - slack + 1)}), b"", 0, 0, 0, {}, [])


@pytest.mark.parametrize("chunk_bytes", [1, 7, 127, 128, 129, 16384])
@pytest.mark.parametrize("size", [0, 1, 2, 127, 128, 129, 255, 256])
def test_the_messages_of_a_batch_are_what_protobuf_writes(size: int, chunk_bytes: int) -> None:
    """Header and chunks, around every edge of a length that these sizes reach."""
    header, body = (
        with_position(write_header(BodyLayout({"n": 1}), LOG_ID, 1, 2, 3, {}, []), 9),
        payload(size),
    )

    messages = list(batch_messages(header, 1, 2, body, chunk_bytes=chunk_bytes))

    assert messages == expected_messages(header, 1, 2, body, chunk_bytes)


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("size", [1 << 14, 1 << 20, 1 << 21, 3 << 20])
def test_large_bodies_are_what_protobuf_writes(size: int, extra: int) -> None:
    """The same for chunks of the real size, around the edges of longer lengths."""
    header, body = write_header(BodyLayout({"n": 1}), LOG_ID, 1, 2, 3, {}, []), bytes(size + extra)

    messages = list(batch_messages(header, 1, 2, body))

    assert messages == expected_messages(header, 1, 2, body, CHUNK_BYTES)


@pytest.mark.parametrize("offset", VARINT_EDGES)
@pytest.mark.parametrize("lane", [0, 1, 127, 128, (1 << 32) - 1])
def test_addresses_are_what_protobuf_writes(lane: int, offset: int) -> None:
    """Lane and offset around every edge of a varint, zero left out."""
    header, body = b"", payload(10)

    messages = list(batch_messages(header, lane, offset, body, chunk_bytes=4))

    assert messages == expected_messages(header, lane, offset, body, 4)
    for message, start in zip(messages, (0, 4, 8), strict=True):
        chunk = parse_reply(message).chunk
        assert chunk == ChunkView(lane, offset, start, memoryview(body[start : start + 4]))


def test_a_body_may_be_any_buffer() -> None:
    """Bytes, arrays of any shape and memoryviews give the same messages."""
    body = payload(24)
    forms: list[Any] = [
        bytearray(body),
        memoryview(body),
        np.frombuffer(body, np.uint8),
        np.frombuffer(body, np.int32).reshape(2, 3),
    ]

    for form in forms:
        assert list(batch_messages(b"", 1, 1, form, chunk_bytes=10)) == expected_messages(
            b"", 1, 1, body, 10
        )
        assert crc32c(form) == crc32c(body)


def test_generated_code_alone_reads_a_batch() -> None:
    """A client in any language needs nothing but the .proto; here protobuf does all the reading."""
    plan = BodyLayout({"x": np.arange(1000, dtype=np.int32)})
    body = bytearray(plan.nbytes)
    header = with_position(
        write_header(plan, LOG_ID, 1, 2, write_body(plan, memoryview(body)), {}, []), 1 << 20
    )

    received = bytearray()
    for message in batch_messages(header, 1, 2, body, chunk_bytes=999):
        reply = feed_pb2.ReadReply.FromString(message)
        if reply.HasField("header"):
            tensor = reply.header.values[0].value.tensor
            assert reply.header.position == 1 << 20
        assert reply.chunk.start == len(received)
        received += reply.chunk.data

    found = np.frombuffer(received, tensor.dtype, offset=tensor.start).reshape(tensor.shape)
    assert found.tolist() == list(range(1000))


def test_a_chunk_is_read_without_a_copy() -> None:
    """The data lie in the message that brought them."""
    message = next(batch_messages(b"", 1, 1, payload(100)))

    chunk = parse_reply(message).chunk

    assert chunk is not None
    assert chunk.data.obj is message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("opened", feed_pb2.Opened(log_id=LOG_ID, lanes=3, batches=0, node="n")),
        ("waiting", feed_pb2.Waiting(lane=1, stage="retrying", since_s=2.5)),
        ("waiting", feed_pb2.Waiting()),
        ("draining", feed_pb2.Draining(detail="node is stopping")),
        ("end", feed_pb2.End(batches=9, steps=3, dropped_batches=1)),
    ],
)
def test_other_messages_are_read(kind: str, message: Any) -> None:
    """What is no batch arrives as its own message, an empty one too."""
    reply = parse_reply(feed_pb2.ReadReply(**{kind: message}).SerializeToString())

    assert reply == Reply(kind, message=message)  # type: ignore[arg-type]


# --- any encoding that protobuf reads -----------------------------------------------------------


def varint(value: int, padding: int = 0) -> bytes:
    """A varint, not in its shortest form if there is padding."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    if padding:
        out.append(value | 0x80)
        out += b"\x80" * (padding - 1) + b"\x00"
    else:
        out.append(value)
    return bytes(out)


def delimited(field: int, data: bytes, padding: int = 0) -> bytes:
    return varint(field << 3 | 2, padding) + varint(len(data), padding) + data


numbers = st.sampled_from(VARINT_EDGES) | st.integers(0, (1 << 64) - 1)
paddings = st.integers(0, 3)
unknown_fields = st.sampled_from([6, 7, 14, 18, 100, (1 << 29) - 1])
unknown = st.recursive(
    st.builds(lambda f, n: varint(f << 3) + varint(n), unknown_fields, numbers)
    | st.builds(
        lambda f, d: varint(f << 3 | 1) + d, unknown_fields, st.binary(min_size=8, max_size=8)
    )
    | st.builds(
        lambda f, d: varint(f << 3 | 5) + d, unknown_fields, st.binary(min_size=4, max_size=4)
    )
    | st.builds(delimited, unknown_fields, st.binary(max_size=5)),
    lambda inner: st.builds(
        lambda f, parts: varint(f << 3 | 3) + b"".join(parts) + varint(f << 3 | 4),
        unknown_fields,
        st.lists(inner, max_size=3),
    ),
    max_leaves=4,
)
# A known field's number with another wire type than its own is an unknown field, too.
mistyped = st.sampled_from([2, 15]).map(lambda f: varint(f << 3) + varint(300))
chunks = st.lists(
    st.builds(
        lambda f, n, p: varint(f << 3, p) + varint(n, min(p, 1)),
        st.integers(1, 3),
        st.integers(0, (1 << 56) - 1),
        paddings,
    )
    | st.builds(delimited, st.just(15), st.binary(max_size=8), paddings)
    | unknown,
    max_size=6,
).map(b"".join)
headers = st.builds(
    lambda lane, offset, name, position: feed_pb2.BatchHeader(
        lane=lane,
        offset=offset,
        position=position,
        values=[feed_pb2.NamedValue(name=name, value=feed_pb2.Value(integer=3))],
    ).SerializeToString(),
    st.integers(0, 9),
    numbers,
    st.sampled_from(["", "x"]),
    numbers,
)
batch_encodings = st.lists(
    st.builds(delimited, st.just(15), chunks, paddings)
    | st.builds(delimited, st.just(2), headers, paddings)
    | unknown
    | mistyped,
    max_size=6,
).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(batch_encodings)
def test_any_encoding_of_a_batch_is_read_as_protobuf_reads_it(message: bytes) -> None:
    """Fields in any order, repeated, unknown, and numbers not in their shortest form."""
    expected = feed_pb2.ReadReply.FromString(message)
    if not (expected.HasField("chunk") or expected.HasField("header")):
        with pytest.raises(BadFrame, match="0 things that are known"):
            parse_reply(message)
        return

    reply = parse_reply(message)

    assert reply.kind == "batch"
    assert reply.message is None
    assert (reply.header is not None) == expected.HasField("header")
    assert reply.header is None or reply.header == expected.header
    assert (reply.chunk is not None) == expected.HasField("chunk")
    if reply.chunk is not None:
        there = expected.chunk
        assert reply.chunk[:3] == (there.lane, there.offset, there.start)
        assert bytes(reply.chunk.data) == there.data


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=40) | st.tuples(batch_encodings, st.binary(max_size=4)).map(b"".join))
def test_what_protobuf_refuses_is_refused(message: bytes) -> None:
    """Whatever is no `ReadReply` is a `BadFrame`, and never another error."""
    try:
        feed_pb2.ReadReply.FromString(message)
    except DecodeError:
        with pytest.raises(BadFrame):
            parse_reply(message)


def test_a_lent_body_comes_with_its_header() -> None:
    """Alone or in a bundle it says where the body lies, as protobuf would."""
    lent = feed_pb2.Lent(lane=3, offset=1 << 40, loan=7, arena=2, start=1 << 33)
    header = with_position(feed_pb2.BatchHeader(lane=3, offset=1 << 40).SerializeToString(), 5)
    [message] = batch_messages(header, 3, 1 << 40, lent)
    whole = feed_pb2.ReadReply.FromString(message)
    assert (whole.lent, whole.header.position) == (lent, 5)
    assert parse_reply(message).lent == lent
    bundled = frame.bundle([(header, 3, 1 << 40, lent), (header, 3, 1 << 40, b"x")])
    assert len(feed_pb2.ReadReply.FromString(bundled).more) == 2
    first, second = frame.parse_replies(bundled)
    assert (first.lent, first.chunk, second.lent) == (lent, None, None)
    for fields in ({}, {"header": whole.header, "chunk": feed_pb2.Chunk(data=b"x")}):
        with pytest.raises(BadFrame, match="lent"):
            parse_reply(feed_pb2.ReadReply(lent=lent, **fields).SerializeToString())


def test_a_message_says_one_thing() -> None:
    """Two things at once are refused, whichever they are; so is nothing."""
    batch = {"chunk": feed_pb2.Chunk(data=b"x")}
    end, opened = {"end": feed_pb2.End()}, {"opened": feed_pb2.Opened()}

    for fields in (batch | end, {"header": feed_pb2.BatchHeader()} | opened, end | opened, {}):
        with pytest.raises(BadFrame):
            parse_reply(feed_pb2.ReadReply(**fields).SerializeToString())


# --- chunks and checksums -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunk",
    [
        ChunkView(1, 2, 0, memoryview(b"abc")),
        ChunkView(1, 2, 5, memoryview(b"abc")),
        ChunkView(1, 2, 4, memoryview(b"abcdefg")),
        ChunkView(1, 2, 4, memoryview(b"")),
        ChunkView(0, 2, 4, memoryview(b"abc")),
        ChunkView(1, 3, 4, memoryview(b"abc")),
    ],
    ids=["repeated", "gap", "past the end", "empty", "other lane", "other offset"],
)
def test_only_the_next_chunk_is_taken(chunk: ChunkView) -> None:
    """A chunk that does not go on where the last one ended is refused, before any copy."""
    header = feed_pb2.BatchHeader(lane=1, offset=2, body_bytes=10)

    assert check_chunk(header, ChunkView(1, 2, 4, memoryview(b"abcdef")), 4) == 10
    with pytest.raises(BadFrame, match="was due"):
        check_chunk(header, chunk, 4)


def test_every_flipped_bit_of_a_body_is_noticed() -> None:
    """The error says where, what was expected and what came."""
    body = bytearray(payload(100))
    header = feed_pb2.BatchHeader(body_bytes=100, crc32c=crc32c(body), position=12)
    check_crc(header, body)

    for bit in range(800):
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumMismatch, match="position 12") as caught:
            check_crc(header, body)
        assert caught.value.fields == {
            "position": 12,
            "expected": header.crc32c,
            "got": crc32c(body),
        }
        body[bit // 8] ^= 1 << bit % 8


def test_a_body_of_another_length_is_refused() -> None:
    """A cut body is no checksum's business: it is a bad frame."""
    header = feed_pb2.BatchHeader(body_bytes=10, crc32c=crc32c(payload(10)))

    with pytest.raises(BadFrame, match="10 bytes was announced"):
        check_crc(header, payload(9))


def test_crc32c_is_the_published_one() -> None:
    """RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and ascending."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


# --- for people and scripts ---------------------------------------------------------------------


def test_a_record_holds_the_fixed_keys() -> None:
    """What `cat --json` prints for a batch: keys in their order, one entry for each sample ref."""
    plan = BodyLayout({"x": np.zeros((2, 3), np.float16), "n": 1, "s": ["a"], "m": {}, "o": None})
    body = bytearray(plan.nbytes)
    samples = [
        (0, "b", 7, 1, 0, (0, 5)),
        (0, "b", 7, 1, 0, (5, 9)),
        (1, "a", 3, 0, 0, None),
    ]
    crc = write_body(plan, memoryview(body))
    header = feed_pb2.BatchHeader.FromString(
        with_position(
            write_header(plan, LOG_ID, 2, 5, crc, {"tokens": 6, "samples": 3}, samples), 17
        )
    )

    record = batch_record(header, body, step=4)

    empty = {"dtype": "", "shape": []}
    assert json.loads(json.dumps(record)) == record
    assert list(record.items()) == [
        ("position", 17),
        ("step", 4),
        ("lane", 2),
        ("offset", 5),
        ("digest", batch_digest(header, body)),
        (
            "values",
            {
                "x": {"kind": "tensor", "dtype": "float16", "shape": [2, 3]},
                "n": {"kind": "int", **empty},
                "s": {"kind": "list", **empty},
                "m": {"kind": "json", **empty},
                "o": {"kind": "none", **empty},
            },
        ),
        ("counts", {"samples": 3, "tokens": 6}),
        ("items", [["b", 7, 1], ["b", 7, 1], ["a", 3, 0]]),
        ("bytes", 12),
        ("accounting", {}),
    ]


def test_every_kind_of_value_has_a_name_for_people() -> None:
    """The kinds are those that Describe announces."""
    values = {"i": 1, "f": 0.5, "b": True, "s": "", "y": b"", "l": [], "j": {}, "n": None}
    values["t"] = np.zeros(1)

    header = feed_pb2.BatchHeader.FromString(write_header(BodyLayout(values), b"", 0, 0, 0, {}, []))

    kinds = [described["kind"] for described in describe_values(header).values()]
    assert kinds == ["int", "float", "bool", "str", "bytes", "list", "json", "none", "tensor"]


# --- bundles ------------------------------------------------------------------------------------


def small_batches(sizes: list[int]) -> list[tuple[bytes, int, int, bytes]]:
    """(header, lane, offset, body) of batches with bodies of these sizes."""
    found = []
    for number, size in enumerate(sizes):
        laid = frame.BodyLayout({"x": np.arange(size, dtype=np.uint8), "n": number})
        body = bytearray(laid.nbytes)
        crc = write_body(laid, memoryview(body))
        header = write_header(laid, b"\1" * 32, number % 3, number, crc, {}, [])
        found.append((frame.with_position(header, number), number % 3, number, bytes(body)))
    return found


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([0, 1, 100, 127, 128, 16_383, 16_384]), min_size=1, max_size=6))
def test_a_bundle_is_the_message_that_protobuf_makes_and_holds_every_batch(
    sizes: list[int],
) -> None:
    """Its bytes are protobuf's own, and each reply in it is what it would be alone."""
    batches = small_batches(sizes)
    alone = [b"".join(frame.batch_messages(*batch)) for batch in batches]
    expected = feed_pb2.ReadReply(more=[feed_pb2.ReadReply.FromString(one) for one in alone])

    message = frame.bundle(batches)

    assert message == expected.SerializeToString()
    replies = frame.parse_replies(message)
    assert [reply.header for reply in replies] == [parse_reply(one).header for one in alone]
    for reply, (_, lane, offset, body) in zip(replies, batches, strict=True):
        if body:
            assert reply.chunk is not None
            assert (reply.chunk.lane, reply.chunk.offset, reply.chunk.start) == (lane, offset, 0)
            assert bytes(reply.chunk.data) == body


def test_a_message_that_is_no_bundle_is_one_reply() -> None:
    """`parse_replies` reads what `parse_reply` reads."""
    [message] = frame.batch_messages(*small_batches([10])[0])

    [reply] = frame.parse_replies(message)

    assert reply.header == parse_reply(message).header


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_cut_bundle_is_refused(cut: int) -> None:
    """No prefix of a bundle that ends inside a batch passes for a shorter bundle."""
    message = frame.bundle(small_batches([40, 40]))

    with pytest.raises(BadFrame):
        frame.parse_replies(message[:-cut])


def test_a_bundle_holds_neither_bundles_nor_anything_beside_them() -> None:
    """A batch that would be passed over in silence is refused aloud."""
    bundle = frame.bundle(small_batches([5]))
    [single] = frame.batch_messages(*small_batches([5])[0])
    nested = b"\x82\x01" + varint(len(bundle)) + bundle

    for message in (nested, bundle + single, single + bundle):
        with pytest.raises(BadFrame):
            frame.parse_replies(message)
