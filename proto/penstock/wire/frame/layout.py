"""The layout of a batch: its values' names, kinds, dtypes and shapes, and where they lie.

The tensors lie in the body, one after another, each at a multiple of 64 bytes with zeros between
them; every other value is in the header.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import numpy as np

from penstock.wire import ALIGNMENT
from penstock.wire.errors import BadFrame, MissingExtra, UnsupportedValue
from penstock.wire.frame.octets import Buffer, refuse
from penstock.wire.order import MAX_POSITION
from penstock.wire.v1 import feed_pb2
from penstock.wire.values import (
    BFLOAT16,
    MAX_DIMENSIONS,
    MAX_LIST_DEPTH,
    STORAGE,
    Array,
    Json,
    Plain,
    to_plain,
    wire_name,
)

_KINDS = {
    "tensor": "tensor",
    "list": "list",
    "integer": "int",
    "real": "float",
    "truth": "bool",
    "text": "str",
    "raw": "bytes",
    "json": "json",
    "none": "none",
}
"""Field of `Value` -> the kind's name in Describe and in records."""


# --- where the maker puts each value --------------------------------------------------------------


class Layout:
    """Where every value of one batch lies; used by one thread.

    Args:
        values: Name -> value, in the order of the batch: see `penstock.wire.values`.
        host: Names that the trainer reads in Python, which stay off the device.

    Attributes:
        nbytes: The length of the body: the end of the last tensor, 0 without tensors.
        tensors: (first byte in the body, tensor) of each, ascending.
        entries: What the header says of each value, serialized, in the batch's order.
        names: Their names.

    Raises:
        UnsupportedValue: A value has no form on the wire, or a name is not a str.
    """

    def __init__(self, values: Mapping[str, Any], host: Collection[str] = ()) -> None:
        self.nbytes = 0
        self.tensors: list[tuple[int, Array]] = []
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

    def _add(self, name: str, value: Any, host: bool) -> None:
        """Append a value; `host` = it stays off the device."""
        found = None
        if type(value) is np.ndarray:
            start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            found = _tensor_field(name, host, value.dtype, value.shape, start)
        if found is not None:
            dtype, field = found
            self.tensors.append((start, Array(dtype, value)))
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
            self.tensors.append((start, plain))
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


# --- what a client accepts ------------------------------------------------------------------------


def check_layout(header: feed_pb2.BatchHeader) -> None:
    """Refuse a header whose values do not lie in its body, one after another.

    Raises:
        BadFrame: A tensor is of an unknown dtype, outside the body, over another, misaligned or of
            another length than its shape; a value says nothing, or lists nest too deep; a name is
            empty or doubled.
    """
    names: set[str] = set()
    spans: list[tuple[int, int]] = []
    for named in header.values:
        name = named.name
        if not name or name in names:
            refuse(f"a batch has a value whose name {name!r} is empty or doubled")
        names.add(name)
        _check_value(named.value, name, header.body_bytes, spans, 0)
    spans.sort()
    end = 0
    for start, stop in spans:
        if start < end:
            refuse(f"two tensors of a batch lie over each other at byte {start} of its body")
        end = stop


def _check_value(
    value: feed_pb2.Value, name: str, body_bytes: int, spans: list[tuple[int, int]], depth: int
) -> None:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        _check_tensor(value.tensor, name, body_bytes, spans)
    elif kind == "list":
        if depth == MAX_LIST_DEPTH:
            refuse(f"value {name!r} nests lists deeper than {MAX_LIST_DEPTH}")
        for inner in value.list.values:
            _check_value(inner, name, body_bytes, spans, depth + 1)
    elif kind is None:
        refuse(f"value {name!r} has no kind that is known here")


def _check_tensor(
    tensor: feed_pb2.Tensor, name: str, body_bytes: int, spans: list[tuple[int, int]]
) -> None:
    storage = STORAGE.get(tensor.dtype)
    if storage is None:
        refuse(f"tensor {name!r} has the dtype {tensor.dtype[:40]!r}, which is not known here")
    shape = tensor.shape
    if len(shape) > MAX_DIMENSIONS:
        refuse(
            f"tensor {name!r} has {len(shape)} dimensions, and at most {MAX_DIMENSIONS} are allowed"
        )
    start, nbytes = tensor.start, tensor.nbytes
    if start % ALIGNMENT or start + nbytes > body_bytes:
        refuse(
            f"tensor {name!r} lies at bytes {start} to {start + nbytes} of a body of {body_bytes}: "
            f"outside of it, or not at a multiple of {ALIGNMENT}"
        )
    # Dimensions beside a 0 must still be countable: NumPy refuses to view what overflows.
    extent, empty = storage.itemsize, False
    for size in shape:
        extent *= size or 1
        empty |= size == 0
        if extent > MAX_POSITION:
            refuse(f"tensor {name!r} has the shape {list(shape)}, which no memory holds")
    if nbytes != (0 if empty else extent):
        refuse(f"tensor {name!r} of shape {list(shape)} and {tensor.dtype} claims {nbytes} bytes")
    if nbytes:
        spans.append((start, start + nbytes))


# --- values, as they are read ---------------------------------------------------------------------

TensorMaker: TypeAlias = Callable[[str, tuple[int, ...], int, int], Any]
"""(dtype name, shape, first byte in the body, length in bytes) -> the tensor."""


def decode_values(
    header: feed_pb2.BatchHeader, body: Buffer, tensor: TensorMaker | None = None
) -> dict[str, Any]:
    """Return the values of a batch, in its order; tensors are views into `body`.

    Args:
        header: A header that `check_header` has passed.
        body: The whole body. Tensors keep it alive, and are writable if it is.
        tensor: Makes a tensor of its place in the body; by default a NumPy view, for bfloat16 with
            the dtype of ml_dtypes.

    Raises:
        BadFrame: A JSON text is none.
        MissingExtra: A tensor is bfloat16, ml_dtypes is not installed, and no `tensor` was given.
    """
    make = tensor or _numpy_maker(body)
    return {named.name: _value(named.value, named.name, make) for named in header.values}


def _value(value: feed_pb2.Value, name: str, make: TensorMaker) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        found = value.tensor
        return make(found.dtype, tuple(found.shape), found.start, found.nbytes)
    if kind == "list":
        return [_value(inner, name, make) for inner in value.list.values]
    if kind == "none":
        return None
    if kind == "json":
        return _json_object(value.json, name)
    return getattr(value, kind)


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"value {name!r} is announced as JSON and is none: {error}") from error
    if not isinstance(found, dict):
        refuse(f"value {name!r} is JSON of type {type(found).__name__}, not an object")
    return found


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")


def _numpy_maker(body: Buffer) -> TensorMaker:
    def make(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        found = bfloat16_dtype() if dtype == BFLOAT16 else STORAGE[dtype]
        return np.ndarray(shape, found, body, start)

    return make


def bfloat16_dtype() -> np.dtype[Any]:
    """Return NumPy's dtype for bfloat16.

    Raises:
        MissingExtra: ml_dtypes is not installed.
    """
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingExtra(
            "a batch holds bfloat16, which NumPy lacks: pip install ml-dtypes, or read with torch",
            package="ml-dtypes",
            extra="server",
        ) from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def describe_values(header: feed_pb2.BatchHeader) -> dict[str, dict[str, Any]]:
    """Return `{name: {"kind", "dtype", "shape"}}`; `""` and `[]` where a value is no tensor."""
    found: dict[str, dict[str, Any]] = {}
    for named in header.values:
        field = named.value.WhichOneof("kind")
        tensor = named.value.tensor if field == "tensor" else None
        found[named.name] = {
            "kind": _KINDS[field] if field else "none",
            "dtype": tensor.dtype if tensor else "",
            "shape": list(tensor.shape) if tensor else [],
        }
    return found


__all__ = [
    "Layout",
    "TensorMaker",
    "bfloat16_dtype",
    "check_layout",
    "decode_values",
    "describe_values",
    "plain_name",
]
