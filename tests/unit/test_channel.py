"""Messages between server and worker, cut anywhere, with file descriptors riding along."""

from __future__ import annotations

import mmap
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.node.arena import ArenaWriter
from penstock.server.node.channel import (
    Message,
    Unpacker,
    pack,
    pack_all,
    receive,
    send_with_fd,
)

MESSAGES: list[tuple[Message, list[bytes]]] = [
    ({"op": "ready", "pid": 7}, []),
    ({"op": "done", "ticket": 3, "where": None}, [b"", b"header", bytes(range(256))]),
    ({"op": "failed", "message": "\u2028 ü ✓", "fields": {"a": [1, None]}}, [b"\0" * 5]),
]


def test_a_stream_cut_at_any_byte_gives_the_same_messages() -> None:
    """Wherever the bytes are cut, messages come out whole, in order, with their byte strings."""
    data = b"".join(pack(message, blobs) for message, blobs in MESSAGES)
    whole = [{**message, "blobs": blobs} for message, blobs in MESSAGES]

    for cut in range(len(data) + 1):
        unpacker = Unpacker()
        assert [*unpacker.feed(data[:cut]), *unpacker.feed(data[cut:])] == whole, cut
    unpacker = Unpacker()
    found = [message for byte in data for message in unpacker.feed(bytes([byte]))]
    assert found == whole


@given(
    st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_any_messages_in_any_pieces(blobs: list[list[bytes]], pieces: list[int]) -> None:
    """Random byte strings in random pieces come back as they were."""
    data = b"".join(pack({"number": number}, one) for number, one in enumerate(blobs))
    unpacker, at, turn = Unpacker(), 0, 0
    found: list[Message] = []

    while at < len(data):
        size = pieces[turn % len(pieces)]
        found += unpacker.feed(data[at : at + size])
        at, turn = at + size, turn + 1

    assert found == [{"number": n, "blobs": one} for n, one in enumerate(blobs)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["op", "ticket", "line"]).flatmap(
                lambda key: st.dictionaries(st.just(key), st.integers(), min_size=1)
            ),
            st.lists(st.binary(max_size=9), max_size=2),
        ),
        max_size=12,
    )
)
def test_messages_that_go_together_come_apart_again(
    entries: list[tuple[Message, list[bytes]]],
) -> None:
    """Whichever of them are alike and share a head, they come in order, each with its bytes."""
    unpacker = Unpacker()

    found = unpacker.feed(pack_all(entries))

    assert found == [{**message, "blobs": blobs} for message, blobs in entries]
    assert unpacker.broken is None


def test_what_is_alike_goes_as_one_message() -> None:
    """Twenty tickets take far fewer bytes than twenty messages."""
    tickets: list[tuple[Message, list[bytes]]] = [
        ({"op": "produce", "ticket": n, "job": "main", "lane": n, "careful": False}, [])
        for n in range(20)
    ]

    alone = b"".join(pack(message) for message, _ in tickets)

    assert len(pack_all(tickets)) < len(alone) / 2


@pytest.mark.parametrize(
    "message",
    [
        {"keys": ["a"], "rows": [[1], [2, 3]], "each": 0},
        {"keys": ["a"], "rows": [[1], 2], "each": 0},
        {"keys": [1], "rows": [[1]], "each": 0},
        {"keys": "a", "rows": [[1]], "each": 0},
        {"keys": ["a"], "rows": {"a": 1}, "each": 0},
        {"keys": ["a"], "rows": [[1]], "each": 1},
        {"keys": ["a"], "rows": [[1]], "each": True},
        {"rows": [[1]], "each": 0},
    ],
)
def test_several_messages_in_one_must_fit_their_keys(message: Message) -> None:
    """What no process of ours sends breaks the stream, after the good messages before it."""
    unpacker = Unpacker()

    found = unpacker.feed(pack({"op": "ready"}) + pack(message))

    assert found == [{"op": "ready", "blobs": []}]
    assert unpacker.broken is not None


@pytest.mark.parametrize("before", [0, 1, 3])
def test_file_descriptors_arrive_in_the_order_of_their_messages(before: int) -> None:
    """Arenas announced behind and between other messages are each mapped by the right message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    arenas = [ArenaWriter(number, 4096 * (number + 1)) for number in range(3)]
    for arena in arenas:
        for _ in range(before):
            theirs.sendall(pack({"op": "note"}, [b"x" * 1000]))
        arena.view[:4] = b"arn%d" % arena.number
        message = pack({"op": "arena", "number": arena.number, "size": arena.size_bytes})
        send_with_fd(theirs, message, arena.fd)
    theirs.close()

    unpacker = Unpacker()
    fds: list[int] = []
    found: list[tuple[int, bytes]] = []
    while True:
        data, new = receive(ours)
        fds += new
        if not data:
            break
        for one in unpacker.feed(data):
            if one["op"] == "arena":
                fd = fds.pop(0)
                with mmap.mmap(fd, one["size"], prot=mmap.PROT_READ) as mapped:
                    found.append((one["number"], mapped[:4]))
                os.close(fd)
    ours.close()
    for arena in arenas:
        os.close(arena.fd)

    assert found == [(0, b"arn0"), (1, b"arn1"), (2, b"arn2")]
    assert fds == []
