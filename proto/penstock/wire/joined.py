"""Arrays that become one as they are written: large values of samples are copied once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from penstock.wire.value_types import NDArray

LEAST_BYTES = 16 << 10
"""Bytes of each array, in the mean, from which joining them as they are written is faster."""


class Joined:
    """Arrays of one dtype, one after another along the first axis, or along a new one before it.

    Args:
        arrays: At least one; nobody writes to them before they are written.
        stack: Along a new axis: all have one shape.
    """

    __slots__ = ("arrays", "dtype", "nbytes", "shape", "size")

    def __init__(self, arrays: Sequence[NDArray], *, stack: bool) -> None:
        first = arrays[0]
        self.arrays, self.dtype = arrays, first.dtype
        self.shape: tuple[int, ...] = (
            (len(arrays), *first.shape) if stack else (sum(map(len, arrays)), *first.shape[1:])
        )
        self.size = prod(self.shape)
        self.nbytes = self.dtype.itemsize * self.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        """Return the array, made anew."""
        made = np.concatenate([array.reshape(-1) for array in self.arrays]).reshape(self.shape)
        return made if dtype is None else made.astype(dtype, copy=False)


def joined(arrays: Sequence[NDArray], *, stack: bool) -> Joined | NDArray:
    """Return arrays as one, which is made as it is written where they are large."""
    if sum(array.nbytes for array in arrays) >= LEAST_BYTES * len(arrays):
        return Joined(arrays, stack=stack)
    return np.stack(arrays) if stack else np.concatenate(arrays)
