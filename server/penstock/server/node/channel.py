"""Messages as bytes and back, by the types of their fields: the one place that does it.

Nothing is pickled. What is sent together is one frame: two lengths (uint32, little-endian), JSON,
and byte strings. The JSON is a list of messages, each `[kind, field, ...]` in the order of its
class; where a field is a byte string its length stands, and the strings follow in that order. File
descriptors ride along where memory is passed.
"""

from __future__ import annotations

import json
import socket
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from penstock.server.core.verdict import Verdict
from penstock.server.node.memory import Descriptor
from penstock.server.node.messages import Body, FromServer, FromWorker, LineSnapshot, Snapshot
from penstock.wire.order import MAX_POSITION
from penstock.wire.plain import clean_text

_HEAD = struct.Struct("<II")
READ_BYTES = 1 << 18
_MAX_FDS = 4

MAX_FRAME_BYTES = 1 << 28
"""A longer frame is refused: plans and snapshots are far smaller."""

_ENCODE, _DECODE = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().decode


class Misspoken(Exception):
    """The other side sent what none of our processes sends."""


# --- fields --------------------------------------------------------------------------------------


class _Beside:
    """What goes beside the JSON of a frame, in the order in which its fields name it."""

    def __init__(self, tail: bytes, fds: list[Descriptor]) -> None:
        self.strings: list[bytes] = []
        self.fds, self.tail, self._at = fds, tail, 0

    def take(self, length: Any) -> bytes:
        """Return the next byte string."""
        start = self._at
        if type(length) is not int or not 0 <= length <= len(self.tail) - start:
            raise ValueError("not the length of what follows")
        self._at = start + length
        return self.tail[start : self._at]

    @property
    def left(self) -> int:
        """Return how many bytes nothing has named."""
        return len(self.tail) - self._at


def _wholes(values: Iterable[Any]) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value <= MAX_POSITION:
            raise ValueError("not whole numbers")


def _named(value: Any, kinds: tuple[type, ...], what: str) -> Any:
    if type(value) is not dict or not all(type(entry) in kinds for entry in value.values()):
        raise ValueError(f"not {what} by name")
    return value


def _body(value: Any, _: _Beside) -> Body:
    arena, start, nbytes, completed_bytes = value
    if not (  # every batch has one: what `_wholes` says of each takes twice as long
        type(arena) is type(start) is type(nbytes) is type(completed_bytes) is int
        and min(arena, start, nbytes, completed_bytes) >= 0
        and max(arena, start, nbytes, completed_bytes) <= MAX_POSITION
    ):
        raise ValueError("not whole numbers")
    return Body(arena, start, nbytes, completed_bytes)


def _freed(value: Any, _: _Beside) -> tuple[int, int]:
    arena, start = value
    _wholes(value)
    return arena, start


def _whole(value: Any, _: _Beside) -> int:
    _wholes((value,))
    return int(value)


def _bytes(value: Any, beside: _Beside) -> bytes:
    return beside.take(value)


def _snapshot(value: Any, beside: _Beside) -> Snapshot:
    offset, length = value
    _wholes((offset,))
    return Snapshot(offset, beside.take(length))


def _line_snapshot(value: Any, beside: _Beside) -> LineSnapshot:
    line, offset, length = value
    _wholes((line, offset))
    return LineSnapshot(line, offset, beside.take(length))


def _descriptor(_: Any, beside: _Beside) -> Descriptor:
    if not beside.fds:
        raise ValueError("memory that was not passed")
    return beside.fds.pop(0)


def _put_bytes(value: bytes, beside: _Beside) -> int:
    beside.strings.append(value)
    return len(value)


def _put_last(value: Sequence[Any], beside: _Beside) -> list[Any]:
    return [*value[:-1], _put_bytes(value[-1], beside)]


def _put_descriptor(value: Descriptor, beside: _Beside) -> None:
    beside.fds.append(value)


Put = Callable[[Any, _Beside], Any]
Take = Callable[[Any, _Beside], Any]


class _Form(NamedTuple):
    """How a field of a type is written; None = as JSON does; and read, or refused by ValueError."""

    put: Put | None
    take: Take


_PLAIN: dict[str, type] = {"int": int, "bool": bool, "str": str, "Mapping[str, Any]": dict}
"""Fields that are in JSON what they are in a message."""

_FORMS: dict[str, _Form] = {
    "int": _Form(None, _whole),
    "bytes": _Form(_put_bytes, _bytes),
    "Body": _Form(None, _body),
    "Verdict": _Form(lambda value, _: value.encode(), lambda value, _: Verdict.decode(value)),
    "Snapshot": _Form(_put_last, _snapshot),
    "LineSnapshot": _Form(_put_last, _line_snapshot),
    "tuple[int, int]": _Form(None, _freed),
    "Mapping[str, int]": _Form(None, lambda value, _: _named(value, (int,), "whole numbers")),
    "Mapping[str, float]": _Form(None, lambda value, _: _named(value, (int, float), "seconds")),
    "Mapping[str, str]": _Form(None, lambda value, _: _named(value, (str,), "texts")),
    "Descriptor": _Form(_put_descriptor, _descriptor),
}
"""All others, by what a class of `penstock.server.node.messages` says of a field."""


def _form(type_text: str) -> _Form:
    """Return the form of a field whose type may be `X`, `tuple[X, ...]`, or one of them or None."""
    if type_text.endswith(" | None"):
        form = _form(type_text.removesuffix(" | None"))
        return _Form(form.put, partial(_unless_none, form.take))
    if type_text.endswith(", ...]"):
        form = _FORMS[type_text.removeprefix("tuple[").removesuffix(", ...]")]
        return _Form(form.put and partial(_each, form.put), partial(_each, form.take))
    return _FORMS[type_text]


def _unless_none(take: Take, value: Any, beside: _Beside) -> Any:
    return None if value is None else take(value, beside)


def _each(convert: Put | Take, values: Sequence[Any], beside: _Beside) -> tuple[Any, ...]:
    return tuple([convert(value, beside) for value in values]) if values else ()


# --- messages ------------------------------------------------------------------------------------


def _as_tuple(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives some attributes of an object: every message goes through it."""
    match names:
        case []:
            return lambda _: ()
        case [name]:
            get = attrgetter(name)
            return lambda message: (get(message),)
        case _:
            return attrgetter(*names)


class _Kind:
    """How the messages of a class are written and read."""

    def __init__(self, made: Any) -> None:
        self.made, self.name = made, made.__name__
        self.names = [field.name for field in fields(made)]
        self.values_of = _as_tuple(self.names)
        types = [str(field.type) for field in fields(made)]
        forms = [(at, _form(text)) for at, text in enumerate(types, 1) if text not in _PLAIN]
        # By place in a row, which begins with the name.
        self.puts = [(at, form.put) for at, form in forms if form.put is not None]
        self.takes = [(at, form.take) for at, form in forms]
        self.plain = [(at, _PLAIN[text]) for at, text in enumerate(types, 1) if text in _PLAIN]

    def put(self, message: Any, beside: _Beside) -> list[Any]:
        """Return the JSON of a message."""
        row = [self.name, *self.values_of(message)]
        for at, put in self.puts:
            value = row[at]
            if value is not None and value != ():  # these are in JSON what they are here
                row[at] = put(value, beside)
        return row

    def take(self, row: list[Any], beside: _Beside) -> Any:
        """Return the message that a row is.

        Raises:
            Misspoken: It is not of this kind.
        """
        if len(row) != len(self.names) + 1:
            raise Misspoken(f"its {self.name} has {len(row) - 1} fields")
        at = 0
        try:
            for at, kind in self.plain:
                if type(row[at]) is not kind:
                    raise ValueError("of another type")
            for at, take in self.takes:
                row[at] = take(row[at], beside)
        except (TypeError, ValueError) as error:
            value, name = clean_text(repr(row[at]), 100), self.names[at - 1].replace("_", " ")
            raise Misspoken(f"its {name} is {value}: {error}") from None
        return self.made(*row[1:])


_KINDS = {made: _Kind(made) for made in (*get_args(FromServer), *get_args(FromWorker))}


class Kinds(dict[str, _Kind]):
    """The kinds of messages that a side receives, by name.

    Attributes:
        pass_memory: File descriptors may ride along.
    """

    def __init__(self, messages: Any) -> None:
        super().__init__({made.__name__: _KINDS[made] for made in get_args(messages)})
        every = [field.type for made in get_args(messages) for field in fields(made)]
        self.pass_memory = "Descriptor" in every


FROM_SERVER, FROM_WORKER = Kinds(FromServer), Kinds(FromWorker)


def encode(messages: Iterable[FromServer | FromWorker]) -> tuple[bytes, list[Descriptor]]:
    """Return the frame of messages that go together, and the descriptors that ride on it.

    Tickets and answers come several at a time: 20 of them in one frame cost a third of 20 frames,
    on both sides.
    """
    beside = _Beside(b"", [])
    rows = [_KINDS[type(message)].put(message, beside) for message in messages]
    text, strings = _ENCODE(rows).encode(), beside.strings
    return b"".join((_HEAD.pack(len(text), sum(map(len, strings))), text, *strings)), beside.fds


class Decoder:
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
        self.broken: Misspoken | None = None

    def feed(self, data: bytes) -> list[Any]:
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
                text_end = start + _HEAD.size + _HEAD.unpack_from(source, start)[0]
                text = source[start + _HEAD.size : text_end]
                found += self._messages(text, bytes(source[text_end:end]))
                start = end
        except Misspoken as error:
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
        text_bytes, tail_bytes = _HEAD.unpack_from(source, start)
        if text_bytes + tail_bytes > MAX_FRAME_BYTES:
            raise Misspoken(f"a frame of {text_bytes + tail_bytes} bytes")
        end: int = start + _HEAD.size + text_bytes + tail_bytes
        return end if end <= len(source) else None

    def _messages(self, text: bytes | bytearray, tail: bytes) -> list[Any]:
        """Return the messages of one frame: all of them, or none."""
        try:
            rows = _DECODE(text.decode())
        except (ValueError, RecursionError) as error:
            raise Misspoken(f"{len(text)} bytes that are not JSON") from error
        if type(rows) is not list:
            raise Misspoken(f"JSON that is a {type(rows).__name__}, not a list")
        beside = _Beside(tail, self.fds)
        found = [self._kind(row).take(row, beside) for row in rows]
        if beside.left:
            raise Misspoken(f"{beside.left} bytes that belong to no message")
        return found

    def _kind(self, row: Any) -> _Kind:
        name = row[0] if type(row) is list and row else None
        kind = self._kinds.get(name) if type(name) is str else None
        if kind is None:
            raise Misspoken(f"it says {clean_text(repr(row), 100)}, which nobody knows")
        return kind


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


def send_with_fd(sock: socket.socket, data: bytes, fd: int) -> None:
    """Send a message and a file descriptor with its first byte."""
    sent = sock.sendmsg(
        [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]).tobytes())]
    )
    if sent < len(data):
        sock.sendall(data[sent:])


__all__ = [
    "FROM_SERVER",
    "FROM_WORKER",
    "READ_BYTES",
    "Decoder",
    "Kinds",
    "Misspoken",
    "encode",
    "receive",
    "send_with_fd",
]
