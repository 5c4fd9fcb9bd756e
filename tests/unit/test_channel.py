"""Messages as bytes: cut anywhere, and refused where no process of ours has written them."""

from __future__ import annotations

import json
import struct
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.node.channel import FROM_SERVER, FROM_WORKER, Decoder, encode
from penstock.server.node.messages import (
    Body,
    Done,
    FromServer,
    FromWorker,
    Judge,
    KnowJob,
    Planned,
    Produce,
    Ready,
    Snapshot,
    TicketFailed,
)

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


def frame(rows: Any, tail: bytes = b"") -> bytes:
    """Return a frame of any JSON."""
    text = json.dumps(rows).encode()
    return struct.pack("<II", len(text), len(tail)) + text + tail


def test_a_stream_cut_at_any_byte_gives_the_same_messages() -> None:
    """Wherever the bytes are cut, messages come out whole, in order, with their byte strings."""
    data = encode(MESSAGES[:2])[0] + encode(MESSAGES[2:])[0]

    for cut in range(len(data) + 1):
        decoder = Decoder(FROM_WORKER)
        assert [*decoder.feed(data[:cut]), *decoder.feed(data[cut:])] == MESSAGES, cut
    decoder = Decoder(FROM_WORKER)
    assert [message for byte in data for message in decoder.feed(bytes([byte]))] == MESSAGES


@given(
    st.lists(st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=4), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_any_messages_in_any_pieces(frames: list[list[list[bytes]]], pieces: list[int]) -> None:
    """However many go together: random byte strings in random pieces come back as they were."""
    sent = [[Planned(n, tuple(one), False, ()) for n, one in enumerate(f)] for f in frames]
    data = b"".join(encode(messages)[0] for messages in sent)
    decoder, at, turn = Decoder(FROM_WORKER), 0, 0
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
    fields = [one for one in Produce.__slots__ if one != "log_id"]
    named = [
        {"log_id": ticket.log_id.hex(), **{one: getattr(ticket, one) for one in fields}}
        for ticket in tickets
    ]

    assert len(encode(tickets)[0]) < len(frame(named)) / 2


def test_a_side_hears_what_the_other_may_say() -> None:
    """No message is meant for both, and each is known by its name."""
    assert set(FROM_SERVER) == {made.__name__ for made in get_args(FromServer)}
    assert set(FROM_WORKER) == {made.__name__ for made in get_args(FromWorker)}
    assert not set(FROM_SERVER) & set(FROM_WORKER)


DONE = ["Done", 3, [0, 64, 5], 0, None, {}, False, []]


@pytest.mark.parametrize(
    ("rows", "tail"),
    [
        ({}, b""),
        (3, b""),
        ([3], b""),
        ([[]], b""),
        ([[["Ready"]]], b""),
        ([["Nothing"]], b""),
        ([["Hurry", 3]], b"log"),
        ([["Ready", 1]], b""),
        ([["Ready"]], b"x"),
        ([DONE[:-1]], b""),
        ([[*DONE[:1], True, *DONE[2:]]], b""),
        ([[*DONE[:1], "3", *DONE[2:]]], b""),
        ([[*DONE[:2], [0, 64], *DONE[3:]]], b""),
        ([[*DONE[:2], [0, 64, -1], *DONE[3:]]], b""),
        ([[*DONE[:2], [0, 64, 1 << 63], *DONE[3:]]], b""),
        ([[*DONE[:2], 7, *DONE[3:]]], b""),
        ([[*DONE[:3], 1, *DONE[4:]]], b""),
        ([[*DONE[:3], -1, *DONE[4:]]], b"x"),
        ([[*DONE[:3], True, *DONE[4:]]], b"x"),
        ([[*DONE[:5], {"tokens": 0.5}, *DONE[6:]]], b""),
        ([[*DONE[:5], [], *DONE[6:]]], b""),
        ([[*DONE[:6], 0, *DONE[7:]]], b""),
        ([[*DONE[:7], [[1]]]], b""),
        ([[*DONE[:7], [[-1, 0]]]], b""),
        ([["Judge", 3, None, ["draw"]]], b"log"),
        ([["Warned", None]], b""),
        ([["NewArena", 0, 4096, None]], b""),
        ([["Cost", 3, 1, {"fetch": "long"}, 0, 0]], b"log"),
        ([["Cost", "log", 1, {}, 0, 0]], b""),
    ],
)
def test_what_no_process_of_ours_writes_breaks_the_stream(rows: Any, tail: bytes) -> None:
    """All of its frame is refused, after the good messages before it, and nothing follows."""
    decoder = Decoder(FROM_WORKER)

    found = decoder.feed(encode([Ready()])[0] + frame(rows, tail) + encode([Ready()])[0])

    assert found == [Ready()]
    assert decoder.broken is not None
    assert decoder.feed(encode([Ready()])[0]) == []


PLACE: dict[str, Any] = {"lane": 1, "offset": 2, "above": 3, "released": None, "number": 5}
VERDICT = Verdict("exit", ItemRef("main", 3, 1), "00ff", "ValueError: no", True, **PLACE)


def test_a_verdict_has_one_form() -> None:
    """What a worker says, what it is told, and what a store keeps is the same list."""
    from penstock.server.store.rules import verdicts

    form = [5, "exit", "main", 3, 1, 1, 1, 2, 3, -1, "00ff", "ValueError: no"]

    assert list(VERDICT.encode()) == form
    assert Verdict.decode(form) == VERDICT
    for message in (
        Judge(b"log", None, VERDICT),
        KnowJob(b"", b"", None, 1, (VERDICT,), False),
    ):
        assert json.dumps(form, separators=(",", ":")).encode() in encode([message])[0]
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
