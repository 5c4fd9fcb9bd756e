"""How a node lends its memory to processes on its own host: the packets of the memory socket.

A node that listens on `unix:PATH` for gRPC listens on `PATH.memory` as well, a Unix socket that
keeps packets apart (SOCK_SEQPACKET). In the order of a batch's way:

* the node says `hello` with a token; the consumer names it in `Open.borrower`;
* before the node lends from a piece of memory for the first time it sends `arena`, and with it a
  file descriptor for reading;
* `Feed.Read` says which batch lies where (`Lent`), in the order in which batches would be sent;
* the consumer gives loans back by their numbers, several in one packet, in any order;
* the node says `gone` for memory from which it lends no more.

The connection is the loan's life: when it ends, every loan on it has come back. So a consumer ends
it only when it reads nothing of that memory any more, and the node not at all while it lives.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.wire.errors import BadFrame

TOKEN_BYTES = 16

MAX_PACKET_BYTES = 4096
"""The longest packet in either direction."""

RETURNS_AT_ONCE = MAX_PACKET_BYTES // 8
"""Loans that one packet gives back at most."""

_ARENA, _GONE = struct.Struct("<cIQ"), struct.Struct("<cI")


class Hello(NamedTuple):
    """The node's first packet: who this connection is.

    Attributes:
        token: `TOKEN_BYTES` random bytes.
    """

    token: bytes


class Refusal(NamedTuple):
    """The node's only packet if it lends nothing.

    Attributes:
        reason: Why, for people.
    """

    reason: str


class ArenaSent(NamedTuple):
    """A piece of memory; a file descriptor comes with it.

    Attributes:
        number: Its number on this connection.
        size_bytes: How large it is; it never shrinks.
    """

    number: int
    size_bytes: int


class Gone(NamedTuple):
    """A piece of memory from which nothing more is lent.

    Attributes:
        number: Its number.
    """

    number: int


Said = Hello | Refusal | ArenaSent | Gone
"""The packets that a node sends on its memory socket."""


def memory_path(target: str) -> str | None:
    """Return the path of the memory socket of the node at `target`; None if it has none.

    Args:
        target: What gRPC connects to, or what a node listens on.
    """
    scheme, _, path = target.partition(":")
    if scheme != "unix" or not path:
        return None
    return path.removeprefix("//") + ".memory"


def pack(said: Said) -> bytes:
    """Return the packet of a message."""
    match said:
        case Hello(token):
            return b"H" + token
        case Refusal(reason):
            return b"R" + reason.encode()[: MAX_PACKET_BYTES - 1]
        case ArenaSent(number, size_bytes):
            return _ARENA.pack(b"A", number, size_bytes)
        case Gone(number):
            return _GONE.pack(b"G", number)


def parse(packet: bytes) -> Said:
    """Return the message of a node's packet.

    Raises:
        BadFrame: It is not a packet of a node.
    """
    kind, length = packet[:1], len(packet)
    if kind == b"H" and length == 1 + TOKEN_BYTES:
        return Hello(packet[1:])
    if kind == b"R":
        return Refusal(packet[1:].decode(errors="replace"))
    if kind == b"A" and length == _ARENA.size:
        return ArenaSent(*_ARENA.unpack(packet)[1:])
    if kind == b"G" and length == _GONE.size:
        return Gone(_GONE.unpack(packet)[1])
    raise BadFrame(
        f"the node's memory socket says {packet[:20]!r} ({length} bytes), which is nothing that is "
        "known; check that both sides run the same version"
    )


def pack_returns(loans: Sequence[int]) -> bytes:
    """Return the packet that gives at most `RETURNS_AT_ONCE` loans back."""
    return struct.pack(f"<{len(loans)}Q", *loans)


def parse_returns(packet: bytes) -> tuple[int, ...]:
    """Return the loans that a consumer's packet gives back.

    Raises:
        BadFrame: It is not a packet of a consumer.
    """
    if not packet or len(packet) % 8:
        raise BadFrame(f"a packet of {len(packet)} bytes gives no whole number of loans back")
    return struct.unpack(f"<{len(packet) // 8}Q", packet)
