"""Copies of raw items: what a processor writes into must not be what a source still holds."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

_IMMUTABLE = frozenset((bool, int, float, complex, str, bytes, type(None)))


def own_copy(value: Any) -> Any:
    """Return a value that shares no memory with the one given, as far as it can be copied.

    Dicts, lists and tuples are rebuilt, arrays and tensors copied, anything else by
    `copy.deepcopy`. What cannot be copied (an open file, a library's handle) is returned as it is.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        return {
            name: inner if type(inner) in _IMMUTABLE else own_copy(inner)
            for name, inner in value.items()
        }
    if kind is list:
        return [own_copy(inner) for inner in value]
    if kind is tuple:
        return tuple(own_copy(inner) for inner in value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind.__module__ == "torch" and kind.__name__ == "Tensor":
        return value.detach().clone()  # deepcopy refuses a tensor that comes out of a model
    try:
        return copy.deepcopy(value)
    except (TypeError, NotImplementedError, RuntimeError, copy.Error):
        return value  # objects that refuse to be copied (open files, some tensors) are shared
