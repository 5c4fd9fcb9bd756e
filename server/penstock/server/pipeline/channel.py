"""How the server process and a worker talk: a socket pair, and JSON with byte strings behind.

Nothing is pickled. A message is two lengths (uint32, little-endian), JSON, and the byte strings
whose lengths the JSON's key `blobs` gives. File descriptors ride along where an arena is passed.
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

Message = dict[str, Any]

_ENCODE, _DECODE = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().decode


def pack(message: Message, blobs: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of one message; `blobs` come back under the key `blobs`."""
    text = _ENCODE({**message, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_HEAD.pack(len(text), sum(map(len, blobs))), text, *blobs))


class Unpacker:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes; return every message that is complete."""
        self._buffer += data
        messages: list[Message] = []
        start = 0
        while len(self._buffer) - start >= _HEAD.size:
            text_bytes, tail_bytes = _HEAD.unpack_from(self._buffer, start)
            end = start + _HEAD.size + text_bytes + tail_bytes
            if len(self._buffer) < end:
                break
            text_end = start + _HEAD.size + text_bytes
            message: Message = _DECODE(self._buffer[start + _HEAD.size : text_end].decode())
            blobs, place = [], text_end
            for length in message["blobs"]:
                blobs.append(bytes(self._buffer[place : place + length]))
                place += length
            message["blobs"] = blobs
            start = end
            messages.append(message)
        del self._buffer[:start]
        return messages


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


__all__ = ["Message", "Unpacker", "pack", "receive", "send_with_fd"]
