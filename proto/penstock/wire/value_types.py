"""What a batch may hold: the values that can be sent, and how objects become such values.

A value is a tensor, a list of values (ragged, nested, with None), an int, a float, a bool, a str,
bytes, or a JSON object. Tensors of torch, images of PIL and anything else with `__array__` or
DLPack become tensors. Nothing here imports torch: there are tensors only if it is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from penstock.wire.errors import UnsupportedValue

NDArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DATASET_NAME = "dataset_name"
"""The value of a joint job's batches that names the set of roles which made it."""

BFLOAT16 = "bfloat16"

STORAGE: dict[str, np.dtype[Any]] = {
    "bool": np.dtype("?"),
    "int8": np.dtype("i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "uint64": np.dtype("<u8"),
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "complex64": np.dtype("<c8"),
    "complex128": np.dtype("<c16"),
    # NumPy has no bfloat16 of its own: its bits travel, and are copied, as uint16.
    BFLOAT16: np.dtype("<u2"),
}
"""Name on the wire -> the NumPy dtype that holds its bytes."""

_NAMES = {(dtype.kind, dtype.itemsize): name for name, dtype in STORAGE.items() if name != BFLOAT16}

MAX_LIST_DEPTH = 32
"""Lists within lists. Protobuf readers stop at 100 nested messages, and a level costs two."""

MAX_JSON_DEPTH = 64

MAX_DIMENSIONS = 32
"""The most that NumPy 1 can view; NumPy 2 has 64."""

_INT64 = range(-(1 << 63), 1 << 63)


class Array(NamedTuple):
    """A tensor on its way to the wire.

    Attributes:
        dtype: Its name on the wire, a key of `STORAGE`.
        data: Elements of `STORAGE[dtype]`'s kind and size, in any strides and byte order.
    """

    dtype: str
    data: NDArray


class Json(NamedTuple):
    """A JSON object as canonical text: keys sorted, no blanks."""

    text: str


Plain: TypeAlias = "bool | int | float | str | bytes | Json | Array | list[Plain] | None"


def to_plain(value: Any, name: str) -> Plain:
    """Return `value` as a value that can be sent.

    Args:
        value: Whatever a collator has put into a batch.
        name: The key of the batch that holds it, for the error's message.

    Raises:
        UnsupportedValue: It cannot be. Fields `name` and `type`.
    """
    return _plain(value, name, 0)


def _plain(value: Any, where: str, depth: int) -> Plain:
    kind = type(value)  # first the kind that nearly every value of a batch has
    if kind is np.ndarray:
        return _numpy_array(value, value, where)
    if kind is str:
        return _text(value, where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic):
        return _scalar(value, where)
    if isinstance(value, int):
        return _integer(int(value), where)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _text(str.__str__(value), where)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        if depth == MAX_LIST_DEPTH:
            raise _unsupported(
                where, value, f"lists nest deeper than {MAX_LIST_DEPTH} levels: flatten them"
            )
        return [_plain(inner, f"{where}[{i}]", depth + 1) for i, inner in enumerate(value)]
    if isinstance(value, Mapping):
        return Json(_json_text(value, where))
    return _array(value, where)


def _scalar(value: Any, where: str) -> Plain:
    kind = value.dtype.kind
    if kind == "b":
        return bool(value)
    if kind in "iu":
        return _integer(int(value), where)
    if kind == "f" and value.dtype.itemsize <= 8:
        return float(value)
    if kind == "U":
        return _text(str.__str__(str(value)), where)
    if kind == "S":
        return bytes(value)
    if kind == "c":
        return _array(np.asarray(value), where)
    if value.dtype.name == BFLOAT16:
        return float(value)
    raise _unsupported(where, value, _dtype_remedy(value.dtype))


def _integer(value: int, where: str) -> int:
    if value not in _INT64:
        raise _unsupported(where, value, f"{value} does not fit int64: send it as a str")
    return value


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _unsupported(
            where,
            value,
            f"it holds half a surrogate pair at index {error.start}, which is not Unicode: "
            "decode it with errors='replace', or send bytes",
        ) from error
    return value


def _array(value: Any, where: str) -> Array:
    torch: Any = sys.modules.get("torch")
    # Another thread may be importing torch right now: then no value here is a tensor of it yet.
    if hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
        return _torch_array(value, torch, where)
    if isinstance(value, np.ma.MaskedArray):
        raise _unsupported(where, value, "a mask has no form on the wire: send .data and .mask")
    if isinstance(value, np.ndarray):
        data: NDArray = value
    else:
        try:
            if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
                data = np.asarray(value)
            elif hasattr(value, "__dlpack__"):
                data = np.from_dlpack(value)
            else:
                raise _unsupported(
                    where,
                    value,
                    "send an array, a list, a number, a str, bytes, None or a dict of JSON",
                )
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise _unsupported(
                where, value, f"it does not become a NumPy array ({error}): convert it yourself"
            ) from error
    return _numpy_array(data, value, where)


def _numpy_array(data: NDArray, value: Any, where: str) -> Array:
    """Return a value that is an array, or becomes one."""
    name = wire_name(data.dtype)
    if name is None:
        raise _unsupported(where, value, _dtype_remedy(data.dtype), dtype=data.dtype.name)
    return _bounded(name, data if name != BFLOAT16 else data.view(np.uint16), where)


@lru_cache(256)
def wire_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name on the wire of a dtype in either byte order; None = it has none."""
    name = _NAMES.get((dtype.kind, dtype.itemsize)) if dtype.kind in "biufc" else None
    return BFLOAT16 if name is None and dtype.name == BFLOAT16 else name


def _torch_array(value: Any, torch: Any, where: str) -> Array:
    if value.layout is not torch.strided or value.is_quantized:
        raise _unsupported(
            where, value, "only dense tensors travel: call .to_dense() or .dequantize()"
        )
    name = BFLOAT16 if value.dtype is torch.bfloat16 else None
    try:
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        data: NDArray = (tensor.view(torch.int16) if name else tensor).numpy()
    except (TypeError, RuntimeError) as error:
        raise _unsupported(
            where,
            value,
            f"dtype {value.dtype} on device {value.device} has no form on the wire ({error}): "
            "call .view(torch.uint8) or .to(...)",
            dtype=str(value.dtype),
        ) from error
    if name:
        return _bounded(name, data.view(np.uint16), where)
    return _bounded(_NAMES[data.dtype.kind, data.dtype.itemsize], data, where)


def _bounded(name: str, data: NDArray, where: str) -> Array:
    if data.ndim > MAX_DIMENSIONS:
        raise _unsupported(
            where,
            data,
            f"it has {data.ndim} dimensions, at most {MAX_DIMENSIONS} travel: reshape it",
        )
    return Array(name, data)


def _dtype_remedy(dtype: np.dtype[Any]) -> str:
    remedies = {
        "O": "an array of objects is not data: send a list of arrays, or stack them to one dtype",
        "U": "send .tolist(): a list of str",
        "S": "send .tolist(): a list of bytes",
        "T": "send .tolist(): a list of str",
        "M": "send .astype('int64'), and its unit as a value of its own",
        "m": "send .astype('int64'), and its unit as a value of its own",
        "f": "its width differs between machines: send .astype('float64')",
        "c": "its width differs between machines: send .astype('complex128')",
    }
    remedy = remedies.get(dtype.kind, "send .view('uint8'), or each field as a value of its own")
    return f"dtype {dtype.name} has no form on the wire: {remedy}"


def _json_text(value: Any, where: str) -> str:
    text = json.dumps(
        _json(value, where, 0), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return _text(text, where)


def _json(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return _json(value.item(), where, depth)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise _unsupported(
                where, value, f"JSON has no {value}: send None, or the number as a value of its own"
            )
        return float(value)
    if depth == MAX_JSON_DEPTH:
        raise _unsupported(where, value, f"JSON nests deeper than {MAX_JSON_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return [_json(inner, f"{where}[{i}]", depth + 1) for i, inner in enumerate(value)]
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _unsupported(
                    where,
                    key,
                    f"a JSON object has str keys, not {key!r} of type {type(key).__name__}",
                )
            plain[str.__str__(key)] = _json(inner, f"{where}.{key}", depth + 1)
        return plain
    raise _unsupported(
        where,
        value,
        "a dict travels as JSON, which has no such value: give it a key of its own in the batch",
    )


def _unsupported(where: str, value: Any, remedy: str, dtype: str | None = None) -> UnsupportedValue:
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return UnsupportedValue(
        f"value {where!r} of a batch is of type {name}: {remedy}",
        name=where,
        type=name,
        dtype=dtype,
    )
