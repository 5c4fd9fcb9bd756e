"""The values of a batch, as they are read: views of its body, and what its header holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import numpy as np

from penstock.wire.errors import BadFrame, MissingExtra
from penstock.wire.frame.completing import completed
from penstock.wire.frame.entries import Entries, read_entries
from penstock.wire.frame.octets import Buffer, refuse
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import BFLOAT16, STORAGE

TensorMaker: TypeAlias = Callable[[str, tuple[int, ...], int, int], Any]
"""(dtype name, shape, first byte in the body, length in bytes) -> the tensor."""


def decode_values(
    header: feed_pb2.BatchHeader, body: Buffer, tensor: TensorMaker | None = None
) -> dict[str, Any]:
    """Return the values of a batch, as `decode_entries` does, where its header is all there is.

    Args:
        header: A header that `check_header` has passed.
        body: The whole body, or what was sent in its place.
        tensor: Makes tensors.

    Raises:
        BadFrame, MissingExtra: As `decode_entries`.
    """
    return decode_entries(read_entries(header), completed(header, body), tensor)


def decode_entries(
    entries: Entries, body: Buffer, tensor: TensorMaker | None = None
) -> dict[str, Any]:
    """Return the values of a batch, in its order; tensors are views into `body`.

    Args:
        entries: What `check_header` returns.
        body: The whole body. Tensors keep it alive, and are writable if it is.
        tensor: Makes a tensor of its place in the body; by default a NumPy view, for bfloat16 with
            the dtype of ml_dtypes.

    Raises:
        BadFrame: A JSON text is none.
        MissingExtra: A tensor is bfloat16, ml_dtypes is not installed, and no `tensor` was given.
    """
    make = tensor or numpy_maker(body)
    return {
        entry.name: make(*entry.content)
        if entry.kind == "tensor"
        else _value(entry.kind, entry.content, entry.name, make)
        for entry in entries
    }


def _value(kind: str, content: Any, name: str, make: TensorMaker) -> Any:
    if kind == "tensor":
        return make(*content)
    if kind == "list":
        return [_value(inner.kind, inner.content, name, make) for inner in content]
    return _json_object(content, name) if kind == "json" else content


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


def numpy_maker(body: Buffer) -> TensorMaker:
    """Return what makes arrays as views of a body, for bfloat16 with the dtype of ml_dtypes."""

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
