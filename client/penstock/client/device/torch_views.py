"""Torch tensors over the bytes of a body, as views. Imported only where torch is installed.

NumPy has no bfloat16, and a device has no arrays: such tensors are made from the bytes of the body,
one uint8 tensor, sliced, viewed as a dtype and a shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.wire.errors import UnsupportedValue
from penstock.wire.value_types import BFLOAT16, STORAGE

BY_ARRAY = frozenset(STORAGE) - {BFLOAT16, "uint16", "uint32", "uint64"}
"""Dtypes that every torch takes from an array as they are."""


class HostViews:
    """Makes tensors over a body on the host: a `frame.TensorMaker`.

    By way of an array, in one call of torch that keeps the interpreter: slicing and viewing are
    three, each of which lets another thread have it and then waits to get it back.
    """

    def __init__(self, body: NDArray[np.uint8]) -> None:
        self._body = body

    def __call__(self, dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        """Return the tensor at `start`."""
        if dtype in BY_ARRAY and nbytes:
            return torch.from_numpy(np.ndarray(shape, STORAGE[dtype], self._body, start))
        return TensorViews(torch.from_numpy(self._body))(dtype, shape, start, nbytes)


class TensorViews:
    """Makes tensors as views of one uint8 tensor: a `frame.TensorMaker`."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        """Return the tensor at `start`; every dtype of the wire has its name in torch."""
        found = getattr(torch, dtype, None)
        if found is None:
            raise _unsupported_dtype(dtype)
        if nbytes == 0:
            return torch.empty(shape, dtype=found, device=self._body.device)
        return self._body[start : start + nbytes].view(found).view(shape)


def _unsupported_dtype(dtype: str) -> UnsupportedValue:
    """Return the error for a dtype that this torch lacks."""
    return UnsupportedValue(
        f"a batch holds a tensor of {dtype}, which this torch has no dtype for: install a newer "
        "torch, pass as_numpy=True, or let the collator give another dtype",
        type=dtype,
    )
