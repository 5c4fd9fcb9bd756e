"""Arrays of NumPy, cupy and torch by one text: the few operations that their libraries name apart.

Nothing here imports torch or cupy. NumPy's own functions pass arrays of cupy on to cupy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from penstock.wire.errors import UnsupportedValue
from penstock.wire.frame import bfloat16_dtype
from penstock.wire.value_types import BFLOAT16, STORAGE

Array: TypeAlias = Any
"""Of NumPy, cupy or torch. They share operators, `shape`, `ndim`, `reshape`, and indexing."""


class Arrays(Protocol):
    """What is done alike with arrays of one library; none of it waits for a device.

    What is new lies where the array does that is given, and dtypes have their names on the wire.
    """

    def astype(self, array: Array, dtype: str) -> Array:
        """Return an array of the same elements in another dtype, or this one where it has it."""
        ...

    def empty(self, array: Array, dtype: str) -> Array:
        """Return an array of the same shape, of any content."""
        ...

    def zeros(self, count: int, array: Array) -> Array:
        """Return zeros, int64 (count,)."""
        ...

    def arange(self, count: int, array: Array) -> Array:
        """Return the numbers from 0 on, int64 (count,)."""
        ...

    def cumsum(self, array: Array) -> Array:
        """Return the sums of int64 (n,) up to each element."""
        ...

    def where(self, condition: Array, array: Array, other: int) -> Array:
        """Return the array where the condition holds, else a number."""
        ...

    def numbers(self, numbers: np.ndarray, array: Array) -> Array:
        """Return numbers of the host where the array lies; that may wait for a device."""
        ...

    def new(self, shape: tuple[int, ...], array: Array, dtype: str) -> Array:
        """Return an array of a shape, of any content."""
        ...

    def contiguous(self, array: Array) -> Array:
        """Return an array of the same elements, whose last dimension varies fastest."""
        ...

    def clip(self, array: Array, low: int, high: int) -> Array:
        """Return the elements, each at least `low` and at most `high`."""
        ...

    def moved(self, array: Array, axis: int, to: int) -> Array:
        """Return a view with one dimension moved to another place."""
        ...

    def roll(self, array: Array, by: int) -> Array:
        """Return (B, T) with each row moved on, its end at its beginning."""
        ...


class _ByNumpy:
    """Arrays of NumPy, and those that NumPy's functions know what to do with."""

    def astype(self, array: Array, dtype: str) -> Array:
        return array.astype(numpy_dtype(dtype), copy=False)

    def empty(self, array: Array, dtype: str) -> Array:
        return np.empty_like(array, dtype=numpy_dtype(dtype))

    def zeros(self, count: int, array: Array) -> Array:
        return np.zeros(count, np.int64, like=array)

    def arange(self, count: int, array: Array) -> Array:
        return np.arange(count, dtype=np.int64, like=array)

    def cumsum(self, array: Array) -> Array:
        return np.cumsum(array)

    def where(self, condition: Array, array: Array, other: int) -> Array:
        return np.where(condition, array, other)

    def numbers(self, numbers: np.ndarray, array: Array) -> Array:
        return np.asarray(numbers, like=array)

    def new(self, shape: tuple[int, ...], array: Array, dtype: str) -> Array:
        return np.empty(shape, numpy_dtype(dtype), like=array)

    def contiguous(self, array: Array) -> Array:
        return np.ascontiguousarray(array, like=array)

    def clip(self, array: Array, low: int, high: int) -> Array:
        return np.clip(array, low, high)

    def moved(self, array: Array, axis: int, to: int) -> Array:
        return np.moveaxis(array, axis, to)

    def roll(self, array: Array, by: int) -> Array:
        return np.roll(array, by, 1)


class _ByTorch:
    """Tensors."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def astype(self, array: Array, dtype: str) -> Array:
        return array.to(self._dtype(dtype))

    def empty(self, array: Array, dtype: str) -> Array:
        return self._torch.empty_like(array, dtype=self._dtype(dtype))

    def zeros(self, count: int, array: Array) -> Array:
        return self._torch.zeros(count, dtype=self._torch.int64, device=array.device)

    def arange(self, count: int, array: Array) -> Array:
        return self._torch.arange(count, dtype=self._torch.int64, device=array.device)

    def cumsum(self, array: Array) -> Array:
        return array.cumsum(0)

    def where(self, condition: Array, array: Array, other: int) -> Array:
        return self._torch.where(condition, array, other)

    def numbers(self, numbers: np.ndarray, array: Array) -> Array:
        return self._torch.as_tensor(numbers).to(array.device)

    def new(self, shape: tuple[int, ...], array: Array, dtype: str) -> Array:
        return self._torch.empty(shape, dtype=self._dtype(dtype), device=array.device)

    def contiguous(self, array: Array) -> Array:
        return array.contiguous()

    def clip(self, array: Array, low: int, high: int) -> Array:
        return array.clip(low, high)

    def moved(self, array: Array, axis: int, to: int) -> Array:
        return array.movedim(axis, to)

    def roll(self, array: Array, by: int) -> Array:
        return array.roll(by, 1)

    def _dtype(self, name: str) -> Any:
        found = getattr(self._torch, name, None)
        if found is None:
            raise UnsupportedValue(
                f"this torch has no dtype {name}: install a newer torch, or take another dtype",
                type=name,
            )
        return found


def arrays_like(value: Any) -> Arrays | None:
    """Return what is done with arrays of a value's library; None = it is not an array."""
    if is_tensor(value):
        return _ByTorch(sys.modules["torch"])
    # A scalar of NumPy has it, too, and no elements to be written to.
    is_array = hasattr(value, "__array_function__") and not isinstance(value, np.generic)
    return _ByNumpy() if is_array else None


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor of torch."""
    torch: Any = sys.modules.get("torch")
    # Another thread may be importing torch right now: then no value here is a tensor of it yet.
    return hasattr(torch, "Tensor") and isinstance(value, torch.Tensor)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name on the wire, for bfloat16 that of ml_dtypes.

    Raises:
        MissingExtra: ml_dtypes is not installed.
    """
    return bfloat16_dtype() if name == BFLOAT16 else STORAGE[name]


def each_array(value: Any, change: Callable[[Array], Any]) -> Any:
    """Return a value with each array in it changed, those in lists too; None stays."""
    if isinstance(value, list):
        return [each_array(inner, change) for inner in value]
    return None if value is None else change(value)


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield what a value consists of: what dicts, lists and tuples hold, or itself."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from arrays_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from arrays_in(inner)
    else:
        yield value
