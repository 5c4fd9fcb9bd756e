"""Messages as bytes: cut anywhere, and refused where no process of ours has written them."""

from __future__ import annotations

import enum
import json
import math
import struct
from typing import Any, get_args

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack as pack

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.node.protocol.channel import FROM_SERVER, FROM_WORKER, MessageDecoder, encode
from penstock.server.node.protocol.messages import (
    Body,
    CountsSaid,
    Done,
    FromServer,
    FromWorker,
    Planned,
    Produce,
    Ready,
    Snapshot,
    TicketFailed,
)
from penstock.wire.frame import MAX_HEADER_BYTES

MESSAGES: list[FromWorker] = [
    Ready(),
    Done(
        3,
        Body(0, 64, 5, 9),
        bytes(range(256)),
        b"",
        {"samples": 1},
        False,
        (Snapshot(4, b"x"),),
        {},
    ),
    TicketFailed(4, "bad_item", "\u2028 ü ✓", {"a": [1, None]}),
    Planned(5, (b"\0" * 5, b""), True, ()),
]


def frame(rows: Any) -> bytes:
    """Return a frame of anything."""
    return framed(pack.encode(rows))


def framed(data: bytes) -> bytes:
    """Return a frame of any bytes."""
    return struct.pack("<I", len(data)) + data


def test_a_stream_cut_at_any_byte_gives_the_same_messages() -> None:
    """Wherever the bytes are cut, messages come out whole, in order, with their byte strings."""
    data = encode(MESSAGES[:2])[0] + encode(MESSAGES[2:])[0]

    for cut in range(len(data) + 1):
        decoder = MessageDecoder(FROM_WORKER)
        assert [*decoder.feed(data[:cut]), *decoder.feed(data[cut:])] == MESSAGES, cut
    decoder = MessageDecoder(FROM_WORKER)
    assert [message for byte in data for message in decoder.feed(bytes([byte]))] == MESSAGES


class Name(str):
    """A role's text."""

    def __str__(self) -> str:
        return "another"


class Number(int):
    """A role's number."""


def test_texts_and_numbers_of_roles_are_plain_on_the_other_side() -> None:
    """Names and numbers may be of classes that nobody there knows."""
    counts = {Name("tokens"): Number(3), enum.StrEnum("Of", {"A": "a"}).A: 1}  # type: ignore[attr-defined]
    fields = {"is": [Name("a"), numpy.float64(0.5), Number(1)]}
    decoder = MessageDecoder(FROM_WORKER)

    sent = [CountsSaid(b"log", 0, counts, {}), TicketFailed(4, Name("bad_item"), "", fields)]
    [counted, failed] = decoder.feed(encode(sent)[0])

    assert counted.counters == {"tokens": 3, "a": 1}
    assert {type(name) for name in counted.counters} == {str}
    assert (failed.code, failed.fields) == ("bad_item", {"is": ["a", 0.5, 1]})


@given(
    st.lists(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=3)), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_any_messages_in_any_pieces(frames: list[list[list[bytes]]], pieces: list[int]) -> None:
    """However many go together: random byte strings in random pieces come back as they were."""
    sent = [[Planned(n, tuple(one), False, ()) for n, one in enumerate(f)] for f in frames]
    data = b"".join(encode(messages)[0] for messages in sent)
    decoder, at, turn = MessageDecoder(FROM_WORKER), 0, 0
    found: list[Any] = []

    while at < len(data):
        size = pieces[turn % len(pieces)]
        found += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1

    assert found == [message for messages in sent for message in messages]
    assert decoder.broken is None


def test_what_goes_together_is_one_frame() -> None:
    """Twenty tickets take far fewer bytes than twenty frames of objects with named fields."""
    tickets = [Produce(n, bytes(32), n, 0, False, n, False) for n in range(20)]
    fields = [one for one in Produce.__struct_fields__ if one != "log_id"]
    named = [
        {"log_id": ticket.log_id.hex(), **{one: getattr(ticket, one) for one in fields}}
        for ticket in tickets
    ]

    assert len(encode(tickets)[0]) < len(json.dumps(named)) / 2


def test_a_side_hears_what_the_other_may_say() -> None:
    """No message is meant for both, and each is known by its name."""
    assert set(FROM_SERVER) == {made.__name__ for made in get_args(FromServer)}
    assert set(FROM_WORKER) == {made.__name__ for made in get_args(FromWorker)}
    assert not set(FROM_SERVER) & set(FROM_WORKER)


DONE = ["Done", 3, [0, 64, 5, 9], b"", None, {}, False, [], {}]
DRAW = ["draw", ["main", 1, 0], "00", "bad", False, 0, 0, 0, None, 0]


def done(at: int, value: Any) -> list[Any]:
    """Return an answer with another value in one place."""
    return [[*DONE[:at], value, *DONE[at + 1 :]]]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({}, "a dict, not a list"),
        (3, "a int, not a list"),
        ([3], "it says 3, which nobody knows"),
        ([[]], "it says [], which nobody knows"),
        ([[["Ready"]]], "it says [['Ready']], which nobody knows"),
        ([["Nothing"]], "it says ['Nothing'], which nobody knows"),
        ([["MakeSooner", b"log"]], "it says ['MakeSooner', b'log'], which nobody knows"),
        ([["Ready", 1]], "its Ready has 1 fields"),
        ([DONE[:-1]], "its Done has 7 fields"),
        (done(1, True), "its ticket is True: "),
        (done(1, 3.0), "its ticket is 3.0: "),
        (done(1, "3"), "its ticket is '3': "),
        (done(2, [0, 64, 5]), "its body is [0, 64, 5]: "),
        (done(2, [0, 64, 5, 9, 1]), "its body is [0, 64, 5, 9, 1]: "),
        (done(2, [0, 64, -1, 9]), "its body is -1: "),
        (done(2, [0, 64, 0, 9]), "its body is 0: "),
        (done(2, [0, 64, 5, 0]), "its body is 0: "),
        (done(2, [0, 64, 1 << 63, 9]), "its body is 9223372036854775808: "),
        (done(2, 7), "its body is 7: "),
        (done(3, 1), "its header is 1: "),
        (done(3, "text"), "its header is 'text': "),
        (done(3, bytes(MAX_HEADER_BYTES + 1)), "its header is b'"),
        (done(5, {"tokens": 0.5}), "its counts is {'tokens': 0.5}: "),
        (done(5, {"tokens": 1 << 63}), "its counts is {'tokens': 9223372036854775808}: "),
        (done(5, {3: 1}), "its counts is {3: 1}: "),
        (done(5, []), "its counts is []: "),
        (done(6, 0), "its emptied is 0: "),
        (done(7, [[1]]), "its snapshots is [1]: "),
        (done(7, [[-1, b""]]), "its snapshots is -1: "),
        ([["Planned", 1, [], False, []]], "its plans is []: "),
        ([["QuarantineItem", b"log", None, ["draw"]]], "its verdict is ['draw']: "),
        ([["QuarantineItem", b"log", None, [*DRAW[:4], 0, *DRAW[5:]]]], "its verdict is 0: "),
        ([["Warned", None]], "its text is None: "),
        ([["NewArena", 0, 4096, None]], "its memory is None: memory that was not passed"),
        ([["NewArena", 0, 0, None]], "its size bytes is 0: "),
        ([["NewArena", 0, 1 << 46, None]], "its size bytes is 70368744177664: "),
        (
            [["Cost", b"log", 1, {"fetch": "long"}, 0, 0, 0, {}, {}, {}]],
            "its stages s is {'fetch': 'long'}: ",
        ),
        (
            [["Cost", b"log", 1, {"fetch": -1.0}, 0, 0, 0, {}, {}, {}]],
            "its stages s is {'fetch': -1.0}: ",
        ),
        (
            [["Cost", b"log", 1, {"fetch": math.nan}, 0, 0, 0, {}, {}, {}]],
            "its stages s is {'fetch': nan}: ",
        ),
        (
            [["Cost", b"log", 1, {"fetch": 1e12}, 0, 0, 0, {}, {}, {}]],
            "its stages s is {'fetch': 1000",
        ),
        ([["Cost", "log", 1, {}, 0, 0, 0, {}, {}, {}]], "its log id is 'log': "),
        (
            [["Cost", b"log", 1, {}, 0, 0, 0, {}, {"decoded": "x"}, {}]],
            "its video frames is {'decoded': 'x'}: ",
        ),
        (
            [["Cost", b"log", 1, {}, 0, 0, 0, {}, {}, {"decode": "long"}]],
            "its media cpu s is {'decode': 'long'}: ",
        ),
        ([["Libraries", b"log", {str(n): "" for n in range(65)}]], "its versions is {'0': ''"),
        ([["Ready"], ["Ready"], ["Ready", 1]], "its Ready has 1 fields"),
    ],
)
def test_what_no_process_of_ours_writes_breaks_the_stream(rows: Any, sentence: str) -> None:
    """All of its frame is refused, after the good messages before it, and nothing follows."""
    decoder = MessageDecoder(FROM_WORKER)

    found = decoder.feed(encode([Ready()])[0] + frame(rows) + encode([Ready()])[0])

    assert found == [Ready()]
    assert str(decoder.broken).startswith(sentence)
    assert decoder.feed(encode([Ready()])[0]) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"}{",
        pack.encode([["Ready"]]) + b"x",
        pack.encode([["Ready"]])[:-1],
        b"\xdd\xff\xff\xff\xff",
        b"\x91\x95\xacTicketFailed\x01\xa1c\xa1m\xdf\xff\xff\xff\xff",
        b"\x91\x95\xacTicketFailed\x01\xa1c\xa1m\x81\xa1f" + b"\x91" * 60_000 + b"\x01",
        b"\x91\x92\xa6Warned\xa1\xff",
        b"\x91\x92\xa6Warned\x01\xff\xff",
    ],
)
def test_bytes_that_are_no_messages_break_the_stream(data: bytes) -> None:
    """Truncated, too long, nested without an end, or of a length that was never sent."""
    decoder = MessageDecoder(FROM_WORKER)

    assert decoder.feed(encode([Ready()])[0] + framed(data)) == [Ready()]
    assert f"{len(data)} bytes that are not messages" in str(decoder.broken) or data == b"}{"
    assert decoder.broken is not None


PLACE: dict[str, Any] = {"lane": 1, "offset": 2, "above": 3, "released": None, "number": 5}
VERDICT = Verdict("exit", ItemRef("main", 3, 1), "00ff", "ValueError: no", True, **PLACE)


def test_a_verdict_has_one_form() -> None:
    """What a process that counts is told, and what a store keeps, is the same list."""
    from penstock.server.store.rules import verdict_rules as verdicts

    form = [5, "exit", "main", 3, 1, 1, 1, 2, 3, -1, "00ff", "ValueError: no"]

    assert list(VERDICT.encode()) == form
    assert Verdict.decode(form) == VERDICT
    row = verdicts._row(b"log", VERDICT, 9)
    assert list(row[1:-1]) == form
    assert (row.number, row.item, row.every_epoch, row.released) == (5, 3, 1, -1)
    assert verdicts.verdict_of(row) == VERDICT


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("value", [None, True, 0.5, -2, 1 << 63, [], {}])
def test_what_is_no_verdict_is_refused(at: int, value: Any) -> None:
    """Whatever stands in the place of one of its values, or is missing."""
    form: list[Any] = [*VERDICT.encode()]
    with pytest.raises(ValueError, match="a verdict"):
        Verdict.decode([*form[:at], *form[at + 1 :]])
    form[at] = value

    with pytest.raises(ValueError, match="a verdict"):
        Verdict.decode(form)
