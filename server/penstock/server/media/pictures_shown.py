"""Pictures among the values of a sample, as people look at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""(height, width, 3)."""

_LEAST = 2
"""Pixels of an edge: what is smaller is rather a mask, or a row of numbers."""


def pictures_in(sample: Mapping[str, Any]) -> list[Picture]:
    """Return what of a sample looks like a picture: uint8 with 1 or 3 channels, first or last.

    Values that are lists are looked into, and arrays of several pictures taken apart; so a value
    that somebody else meant otherwise may come out as one.

    Args:
        sample: Named values.
    """
    return [picture for value in sample.values() for picture in _pictures(value)]


def _pictures(value: Any) -> Iterator[Picture]:
    if isinstance(value, list | tuple):
        for each in value:
            if not isinstance(each, bool | int | float | str | bytes | None):
                yield from _pictures(each)
        return
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__array__"):
        return
    array = np.asarray(value)
    if array.dtype != np.uint8 or min(array.shape, default=0) < 1:
        return
    if array.ndim == 2 and min(array.shape) >= _LEAST:
        yield _three(array[:, :, None])
    elif array.ndim == 3 and array.shape[-1] in (1, 3) and min(array.shape[:2]) >= _LEAST:
        yield _three(array)
    elif array.ndim == 3 and array.shape[0] in (1, 3) and min(array.shape[1:]) >= _LEAST:
        yield _three(array.transpose(1, 2, 0))
    elif array.ndim == 4:
        for each in array:
            yield from _pictures(each)


def _three(array: npt.NDArray[Any]) -> Picture:
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))
