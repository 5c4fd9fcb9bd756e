"""Messages as bytes and back: the one place that does it.

Nothing is pickled. What is sent together is one frame: its length (uint32, little-endian) and a
list of messages in MessagePack, each as `penstock.server.node.protocol.messages` says. File
descriptors ride along where memory is passed.
"""

from __future__ import annotations

import re
import socket
import struct
from array import array
from collections.abc import Sequence
from typing import Any, get_args

from msgspec import MsgspecError, ValidationError
from msgspec import msgpack as pack

from penstock.server.node.protocol.messages import FromServer, FromWorker, NewArena
from penstock.server.processes.shared_memory import Descriptor
from penstock.wire.plain import clean_text

_HEAD = struct.Struct("<I")
READ_BYTES = 1 << 18
_MAX_FDS = 4

MAX_FRAME_BYTES = 1 << 28
"""A longer frame is refused: plans and snapshots are far smaller."""


class ProtocolError(Exception):
    """The other side sent what none of our processes sends."""


class Kinds(dict[str, Any]):
    """The classes of messages that a side receives, by name.

    Attributes:
        frame: What a frame holds: a list of them.
        pass_memory: File descriptors may ride along.
    """

    def __init__(self, messages: Any) -> None:
        super().__init__({made.__name__: made for made in get_args(messages)})
        self.frame: Any = list[messages]
        self.pass_memory = NewArena in self.values()


FROM_SERVER, FROM_WORKER = Kinds(FromServer), Kinds(FromWorker)


def _plain(value: Any) -> Any:
    """Return what a value is in a frame that is not of a type of its own there.

    A descriptor rides on the frame; a role's text or number may be of a class of the role's.
    """
    match value:
        case Descriptor():
            return None
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
    raise TypeError(f"a {type(value).__name__}, which no message holds")


_ENCODER = pack.Encoder(enc_hook=_plain)


def encode(messages: Sequence[FromServer | FromWorker]) -> tuple[bytearray, list[Descriptor]]:
    """Return the frame of messages that go together, and the descriptors that ride on it."""
    frame = bytearray(_HEAD.size)
    _ENCODER.encode_into(messages, frame, _HEAD.size)
    _HEAD.pack_into(frame, 0, len(frame) - _HEAD.size)
    return frame, [message.memory for message in messages if isinstance(message, NewArena)]


class MessageDecoder:
    """Cuts a byte stream into messages.

    Args:
        kinds: The kinds that are allowed.

    Attributes:
        fds: What has ridden on the bytes, and no message has taken yet.
        broken: What was wrong with the bytes after the last good frame; nothing follows it.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds, self._rest = kinds, bytearray()
        self.fds: list[Descriptor] = []
        self.broken: ProtocolError | None = None
        fds = self.fds  # a hook that knew this object would keep descriptors from being closed

        def passed(_type: type, _value: Any) -> Descriptor:
            if not fds:
                raise ValueError("memory that was not passed")
            return fds.pop(0)

        self._decode = pack.Decoder(kinds.frame, dec_hook=passed).decode

    def feed(self, data: bytes | bytearray) -> list[Any]:
        """Take bytes; return every message whose frame is complete."""
        if self.broken is not None:
            return []
        if self._rest:
            self._rest += data
        source = self._rest or data
        found: list[Any] = []
        start = 0
        try:
            while (end := self._end(source, start)) is not None:
                found += self._messages(source[start + _HEAD.size : end])
                start = end
        except ProtocolError as error:
            self.broken, start = error, len(source)
        if source is self._rest:
            del self._rest[:start]
        else:
            self._rest += data[start:]
        return found

    def _end(self, source: bytes | bytearray, start: int) -> int | None:
        """Return where the frame that begins at `start` ends, if it is complete."""
        if len(source) - start < _HEAD.size:
            return None
        (nbytes,) = _HEAD.unpack_from(source, start)
        if nbytes > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {nbytes} bytes")
        end: int = start + _HEAD.size + nbytes
        return end if end <= len(source) else None

    def _messages(self, frame: bytes | bytearray) -> list[Any]:
        """Return the messages of one frame: all of them, or none."""
        try:
            return self._decode(frame)  # type: ignore[no-any-return]
        except ValidationError as error:
            raise ProtocolError(self._refusal(frame, str(error))) from None
        except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{len(frame)} bytes that are not messages: {error}") from None

    def _refusal(self, frame: bytes | bytearray, said: str) -> str:
        """Return in words what is wrong in a frame; msgspec tells the path to it."""
        expected, _, path = said.partition(" - at ")
        try:
            rows = pack.decode(frame)
        except (MsgspecError, UnicodeDecodeError, RecursionError):  # further on
            return f"{len(frame)} bytes that are not messages: {said}"
        match [int(step) for step in re.findall(r"\[(\d+)\]", path)]:
            case []:
                return f"a {type(rows).__name__}, not a list"
            case [at]:
                row = rows[at]
                name = row[0] if type(row) is list and row else None
                if type(name) is str and name in self._kinds:
                    return f"its {name} has {len(row) - 1} fields"
            case [at, 0]:
                row = rows[at]
            case [at, place, *steps]:
                row = rows[at]
                value, name = row[place], self._kinds[row[0]].__struct_fields__[place - 1]
                for step in steps:
                    value = value[step]
                shown = clean_text(repr(value), 100)
                return f"its {name.replace('_', ' ')} is {shown}: {expected}"
        return f"it says {clean_text(repr(row), 100)}, which nobody knows"


# --- file descriptors ----------------------------------------------------------------------------


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return bytes and file descriptors from the socket; no bytes = the other side is gone."""
    fds = array("i")
    data, ancillary, _flags, _address = sock.recvmsg(
        READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize)
    )
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


def send_with_fd(sock: socket.socket, data: bytes | bytearray, fd: int) -> None:
    """Send a message and a file descriptor with its first byte."""
    sent = sock.sendmsg(
        [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]).tobytes())]
    )
    if sent < len(data):
        sock.sendall(data[sent:])
