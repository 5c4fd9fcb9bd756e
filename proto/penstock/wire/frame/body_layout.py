"""The layout of a batch, as it is made: where each of its values is put.

The tensors lie in the body, one after another, each at a multiple of 64 bytes with zeros between
them; every other value is in the header.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.wire import ALIGNMENT
from penstock.wire.errors import UnsupportedValue
from penstock.wire.frame.completing import packed_form
from penstock.wire.joined import Joined
from penstock.wire.packed_rows import Derived, PackedRows
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import (
    BFLOAT16,
    MAX_DIMENSIONS,
    Array,
    Json,
    Plain,
    to_plain,
    wire_name,
)


class BodyLayout:
    """Where every value of one batch lies; used by one thread.

    Args:
        values: Name -> value, in the order of the batch: see `penstock.wire.value_types`.
        host: Names that the trainer reads in Python, which stay off the device.

    Attributes:
        nbytes: The length of the body: the end of the last tensor, 0 without tensors.
        packed: What the header says of packed rows that travel in its place; None = it travels.
        sent: (first byte in what travels, tensor) of each, ascending.
        sent_bytes: The length of what travels.
        entries: What the header says of each value, serialized, in the batch's order.
        names: Their names.

    Raises:
        UnsupportedValue: A value has no form on the wire, or a name is not a str.
    """

    def __init__(self, values: Mapping[str, Any], host: Collection[str] = ()) -> None:
        self.nbytes = 0
        self.sent: list[tuple[int, Array]] = []
        self.packed: feed_pb2.PackedRows | None = None
        self._rows: PackedRows | None = None
        self.entries: list[bytes] = []
        self.names: list[str] = []
        for name, value in values.items():
            if not isinstance(name, str) or not name:
                raise UnsupportedValue(
                    f"a value of a batch is named {name!r}: names are str of at least 1 character",
                    name=repr(name),
                    type=type(name).__name__,
                )
            self._add(plain_name(name), value, name in host)
        self.sent_bytes = self.nbytes
        if self._rows is not None:
            self.packed, self.sent = packed_form(self._rows, self.sent)
            self.sent_bytes = self.packed.sent_bytes

    def _add(self, name: str, value: Any, host: bool) -> None:
        """Append a value; `host` = it stays off the device."""
        found = None
        if type(value) is Derived and self._rows is None:
            self._rows = value.rows
        kind = type(value)
        if kind in (np.ndarray, Joined) or (kind is Derived and value.rows is self._rows):
            start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            found = _tensor_field(name, host, value.dtype, value.shape, start)
        if found is not None:
            dtype, field = found
            self.sent.append((start, Array(dtype, value)))
            self.nbytes = start + value.nbytes
        else:
            plain = to_plain(value, name)
            message = feed_pb2.BatchHeader()
            self._put(_named(message, name, host), plain)
            field = message.SerializeToString()
        self.entries.append(field)
        self.names.append(name)

    def _put(self, message: feed_pb2.Value, plain: Plain) -> None:
        if plain is None:
            message.none.SetInParent()
        elif isinstance(plain, bool):
            message.truth = plain
        elif isinstance(plain, int):
            message.integer = plain
        elif isinstance(plain, float):
            message.real = plain
        elif isinstance(plain, str):
            message.text = plain
        elif isinstance(plain, bytes):
            message.raw = plain
        elif isinstance(plain, Json):
            message.json = plain.text
        elif isinstance(plain, list):
            message.list.SetInParent()
            add = message.list.values.add
            for inner in plain:
                self._put(add(), inner)
        else:
            start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            _put_tensor(message.tensor, plain.dtype, plain.data.shape, start, plain.data.nbytes)
            self.sent.append((start, plain))
            self.nbytes = start + plain.data.nbytes


def _named(message: feed_pb2.BatchHeader, name: str, host: bool) -> feed_pb2.Value:
    """Add a name to the values of a header; return the message of its value."""
    named = message.values.add(name=name)
    if host:
        named.place = feed_pb2.PLACE_HOST
    return named.value


def _put_tensor(
    tensor: feed_pb2.Tensor, dtype: str, shape: tuple[int, ...], start: int, nbytes: int
) -> None:
    tensor.dtype, tensor.start, tensor.nbytes = dtype, start, nbytes
    tensor.shape.extend(shape)


@lru_cache(1024)  # the same few at every batch, as long as shapes are
def _tensor_field(
    name: str, host: bool, dtype: np.dtype[Any], shape: tuple[int, ...], start: int
) -> tuple[str, bytes] | None:
    """Return the dtype's name on the wire, and the header's entry for such an array.

    None where an array like this does not travel as it is.
    """
    wire = wire_name(dtype)
    if wire is None or wire == BFLOAT16 or len(shape) > MAX_DIMENSIONS:
        return None
    message = feed_pb2.BatchHeader()
    nbytes = dtype.itemsize * math.prod(shape)
    _put_tensor(_named(message, name, host).tensor, wire, shape, start, nbytes)
    return wire, message.SerializeToString()


@lru_cache(1024)
def plain_name(name: str) -> str:
    """Return a name, which travels as text: so what a text may not hold it may not hold either."""
    return str(to_plain(name, name))
