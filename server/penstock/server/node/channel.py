"""How the server process and a worker talk: a socket pair, and JSON with byte strings behind.

Nothing is pickled. A message is two lengths (uint32, little-endian), JSON, and the byte strings
whose lengths the JSON's key `blobs` gives. Messages with the same keys that go together travel as
one: `keys`, and for each of them a row of values in `rows` and `each` byte strings. File
descriptors ride along where an arena is passed.
"""

from __future__ import annotations

import json
import socket
import struct
from array import array
from collections.abc import Sequence
from typing import Any

_HEAD = struct.Struct("<II")
_READ_BYTES = 1 << 18
_MAX_FDS = 4

MAX_MESSAGE_BYTES = 1 << 28
"""A message that says it is longer is none of ours: plans and snapshots are far below."""

Message = dict[str, Any]

_ENCODE, _DECODE = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().decode


class Misspoken(Exception):
    """The other side of the socket said what no process of ours says."""


def pack(message: Message, blobs: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of one message; `blobs` come back under the key `blobs`."""
    text = _ENCODE({**message, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_HEAD.pack(len(text), sum(map(len, blobs))), text, *blobs))


def pack_all(entries: Sequence[tuple[Message, Sequence[bytes]]]) -> bytes:
    """Return the bytes of messages with their byte strings, in order; what is alike goes as one.

    Tickets and answers come several at a time and differ in their values alone: 20 of them as one
    message cost a third of 20 messages, on both sides.
    """
    parts: list[bytes] = []
    start = 0
    while start < len(entries):
        first, blobs = entries[start]
        keys, each, stop = list(first), len(blobs), start + 1
        while (
            stop < len(entries) and len(entries[stop][1]) == each and list(entries[stop][0]) == keys
        ):
            stop += 1
        if stop == start + 1:
            parts.append(pack(first, blobs))
        else:
            rows = [list(message.values()) for message, _ in entries[start:stop]]
            together = [blob for _, blobs in entries[start:stop] for blob in blobs]
            parts.append(pack({"keys": keys, "rows": rows, "each": each}, together))
        start = stop
    return b"".join(parts)


class Unpacker:
    """Cuts a byte stream into messages.

    Attributes:
        broken: What was wrong with the bytes after the last good message; nothing follows it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.broken: Misspoken | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes; return every message that is complete."""
        if self.broken is not None:
            return []
        self._buffer += data
        messages: list[Message] = []
        start = 0
        try:
            while (cut := self._cut(start)) is not None:
                message, start = cut
                if "rows" in message:
                    messages += _apart(message)
                else:
                    messages.append(message)
        except Misspoken as error:
            self.broken = error
            start = len(self._buffer)
        del self._buffer[:start]
        return messages

    def _cut(self, start: int) -> tuple[Message, int] | None:
        """Return the message that begins at `start` and where it ends, if it is complete."""
        if len(self._buffer) - start < _HEAD.size:
            return None
        text_bytes, tail_bytes = _HEAD.unpack_from(self._buffer, start)
        if text_bytes + tail_bytes > MAX_MESSAGE_BYTES:
            raise Misspoken(f"a message of {text_bytes + tail_bytes} bytes")
        text_end = start + _HEAD.size + text_bytes
        end = text_end + tail_bytes
        if len(self._buffer) < end:
            return None
        message = _decode(self._buffer[start + _HEAD.size : text_end])
        lengths = message.get("blobs")
        if (
            not isinstance(lengths, list)
            or not all(type(one) is int and one >= 0 for one in lengths)
            or sum(lengths) != tail_bytes
        ):
            raise Misspoken(f"byte strings of other lengths than the {tail_bytes} bytes they have")
        blobs, place = [], text_end
        for length in lengths:
            blobs.append(bytes(self._buffer[place : place + length]))
            place += length
        message["blobs"] = blobs
        return message, end


def _apart(message: Message) -> list[Message]:
    """Return the messages that travelled as one."""
    keys, rows, each = (message.get(key) for key in ("keys", "rows", "each"))
    blobs: list[bytes] = message["blobs"]
    if not (
        isinstance(keys, list)
        and all(isinstance(key, str) for key in keys)
        and isinstance(rows, list)
        and all(isinstance(row, list) and len(row) == len(keys) for row in rows)
        and type(each) is int
        and each * len(rows) == len(blobs)
    ):
        raise Misspoken("several messages in one that do not fit their keys or byte strings")
    apart: list[Message] = [dict(zip(keys, row, strict=True)) for row in rows]
    for at, one in enumerate(apart):
        one["blobs"] = blobs[at * each : (at + 1) * each]
    return apart


def _decode(text: bytearray) -> Message:
    try:
        message = _DECODE(text.decode())
    except (ValueError, RecursionError) as error:
        raise Misspoken(f"{len(text)} bytes that are not JSON") from error
    if not isinstance(message, dict):
        raise Misspoken(f"JSON that is a {type(message).__name__}, not an object")
    return message


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return bytes and file descriptors from the socket; no bytes = the other side is gone."""
    fds = array("i")
    data, ancillary, _flags, _address = sock.recvmsg(
        _READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize)
    )
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


def send_with_fd(sock: socket.socket, data: bytes, fd: int) -> None:
    """Send a message and a file descriptor with its first byte."""
    sent = sock.sendmsg(
        [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]).tobytes())]
    )
    if sent < len(data):
        sock.sendall(data[sent:])


__all__ = ["Message", "Misspoken", "Unpacker", "pack", "pack_all", "receive", "send_with_fd"]
