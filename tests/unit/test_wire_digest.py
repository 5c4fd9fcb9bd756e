"""The digest of a batch: whatever differs in what it says differs in it, and nothing else does."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest

from penstock.wire.digest import batch_digest
from penstock.wire.errors import BadFrame, ChecksumMismatch
from penstock.wire.frame import (
    BodyLayout,
    batch_messages,
    check_sealed,
    parse_reply,
    with_position,
    write_body,
    write_header,
)
from penstock.wire.v1 import feed_pb2

VALUES: dict[str, Any] = {
    "x": np.arange(6, dtype=np.int16).reshape(2, 3),
    "text": "hello",
    "n": 7,
    "r": 0.5,
    "yes": True,
    "raw": b"ab",
    "json": {"a": [1, {"b": None}]},
    "list": [np.zeros(2, np.float32), ["a", "b"], None],
    "nothing": None,
}
COUNTS = {"tokens": 5, "samples": 2}


def digest(
    values: dict[str, Any] | None = None,
    counts: dict[str, int] | None = None,
    *,
    where: int = 0,
    padding: bool = False,
    host: tuple[str, ...] = (),
) -> str:
    """The digest of a batch at some place."""
    plan = BodyLayout(VALUES if values is None else values, host)
    body = bytearray(plan.nbytes)
    crc = write_body(plan, memoryview(body))
    samples = [(0, "source", where, 0, 0, None)] * where
    counts = COUNTS if counts is None else counts
    encoded = write_header(plan, bytes([where]) * 32, where, where, crc, counts, samples, padding)
    return batch_digest(feed_pb2.BatchHeader.FromString(with_position(encoded, where)), body)


CHANGES: dict[str, dict[str, Any]] = {
    "a letter of a text": {"text": "hellp"},
    "a text's kind": {"text": b"hello"},
    "an integer": {"n": 8},
    "an integer's kind": {"n": 7.0},
    "a truth": {"yes": False},
    "a truth's kind": {"yes": 1},
    "a real in its last bit": {"r": np.nextafter(0.5, 1)},
    "a byte": {"raw": b"ac"},
    "a number in a JSON object": {"json": {"a": [1, {"b": 0}]}},
    "a text in a list": {"list": [np.zeros(2, np.float32), ["a", "c"], None]},
    "how a list nests": {"list": [np.zeros(2, np.float32), ["a", "b", None]]},
    "where a list's texts are cut": {"list": [np.zeros(2, np.float32), ["ab", ""], None]},
    "an element": {"x": np.array([[0, 1, 2], [3, 4, 6]], np.int16)},
    "a shape": {"x": np.arange(6, dtype=np.int16).reshape(3, 2)},
    "a dtype": {"x": np.arange(6, dtype=np.uint16).reshape(2, 3)},
    "an element of a tensor in a list": {"list": [np.ones(2, np.float32), ["a", "b"], None]},
    "nothing": {"nothing": 0},
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_value_counts(change: str) -> None:
    """Also those that travel in the header."""
    assert digest(VALUES | CHANGES[change]) != digest()


def test_names_their_order_counts_and_padding_count() -> None:
    renamed = {("y" if name == "x" else name): value for name, value in VALUES.items()}
    found = {
        digest(),
        digest(renamed),
        digest(dict(reversed(VALUES.items()))),
        digest({name: value for name, value in VALUES.items() if name != "nothing"}),
        digest(counts=COUNTS | {"tokens": 6}),
        digest(counts={"tokens": 5}),
        digest(padding=True),
    }

    assert len(found) == 7


def test_where_a_batch_stands_does_not_count() -> None:
    """Neither log, address, position, items nor the place of values: equal content is equal."""
    assert digest(where=3) == digest()
    assert digest(host=("x", "n")) == digest()
    assert digest(counts=dict(reversed(COUNTS.items()))) == digest()


def test_a_batch_of_texts_alone_is_seen() -> None:
    assert digest({"text": "a"}, {}) != digest({"text": "b"}, {})


def test_the_encoding_is_the_one_that_is_written_down() -> None:
    """By hand, as another language would do it; a change here breaks every digest ever noted."""

    def text(letters: str) -> bytes:
        return struct.pack("<Q", len(letters.encode())) + letters.encode()

    number = struct.Struct("<Q").pack
    by_hand = (
        text("penstock batch 1")
        + number(3)
        + (text("x") + b"t" + text("int16") + number(1) + number(2) + number(4) + b"\1\0\2\0")
        + (text("é") + b"l" + number(2) + b"i" + struct.pack("<q", -3) + b"n")
        + (text("j") + b"j" + text('{"a":1}'))
        + number(1)
        + (text("tokens") + struct.pack("<q", 9))
        + b"\0"
    )

    values = {"x": np.array([1, 2], np.int16), "é": [-3, None], "j": {"a": 1}}
    assert digest(values, {"tokens": 9}) == hashlib.sha256(by_hand).hexdigest()
    assert digest(values, {"tokens": 9}).startswith("9ef6a88aef1f4a37")


# --- the header's own checksum --------------------------------------------------------------------


def sealed() -> bytes:
    plan = BodyLayout({"text": "hello", "n": 7})
    return with_position(write_header(plan, bytes(32), 1, 2, 0, COUNTS, []), 700)


def received(header: bytes) -> feed_pb2.BatchHeader:
    """What a client makes of a header."""
    (message,) = batch_messages(header, 1, 2, b"")
    found = parse_reply(message).header
    assert found is not None
    check_sealed(found)
    return found


def test_no_flipped_bit_of_a_header_goes_unnoticed() -> None:
    header = sealed()
    assert received(header).position == 700

    for bit in range(8 * len(header)):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((ChecksumMismatch, BadFrame)):
            received(bytes(damaged))


def test_a_header_without_its_checksum_is_refused() -> None:
    header = feed_pb2.BatchHeader.FromString(sealed())
    header.ClearField("header_crc32c")

    with pytest.raises(ChecksumMismatch, match="without its checksum"):
        received(header.SerializeToString())


def test_a_client_without_the_encoded_bytes_can_check_as_well() -> None:
    """It clears the field and serializes: fields stand by their number."""
    encoded = sealed()
    header = feed_pb2.BatchHeader.FromString(encoded)
    header.ClearField("header_crc32c")

    assert header.SerializeToString() == encoded[:-5]
