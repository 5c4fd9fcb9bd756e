"""What is done with values as they arrive, before the training loop asks for them.

```python
from penstock.client import Loader
from penstock.client.arrive import Cast, Normalize

loader = Loader(
    "dns:///penstock:50051",
    "images",
    device="cuda",
    arrive={
        "pixel_values": Normalize(mean=[123.7, 116.3, 103.5], std=[58.4, 57.1, 57.4], dtype="bfloat16"),
        "input_ids": Cast("int64"),
    },
)
```

A transform is called with a value and returns a new one. With a device it runs on the stream of
copies, next to the copy, so the loop finds it done; else on the host, as the loop takes the batch.
It must not wait for a device, as reading an element of an array does, and must not write to what it
was given: a batch may be decoded twice. `penstock.client.packed.complete` is a transform of a whole
batch, and any function of yours is one.
"""  # noqa: E501 - a call as people write it

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from penstock.client.array_libraries import Array, arrays_like, each_array
from penstock.wire.errors import InvalidRequest
from penstock.wire.value_types import BFLOAT16, STORAGE

FLOATS = frozenset({"float16", "float32", "float64", BFLOAT16})


class Cast:
    """Gives a value another dtype.

    Of integers every bit is what NumPy's `astype` gives: what does not fit wraps. Floats are
    rounded to the nearest, halves to even. A float that does not fit an integer gives any number.

    Args:
        dtype: The dtype's name, such as `"int64"` or `"bfloat16"`. NumPy and cupy take bfloat16
            from ml_dtypes.

    Raises:
        InvalidRequest: No such dtype travels.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = _known("Cast", dtype, frozenset(STORAGE))

    def __repr__(self) -> str:
        return f"Cast({self._dtype!r})"

    def __call__(self, value: Any) -> Any:
        """Return a value with every array in it cast.

        Args:
            value: An array of any dtype and shape, or lists of them; None in lists stays.

        Returns:
            Arrays of the same shapes; those that have the dtype are returned as they are.

        Raises:
            InvalidRequest: It is not an array.
        """
        return each_array(value, self._cast)

    def _cast(self, array: Array) -> Array:
        return _arrays(self, array).astype(array, self._dtype)


class Normalize:
    """Subtracts a mean and divides by a standard deviation, for each channel.

    It computes in float32: the difference from the mean, times the reciprocal of `std`; then it
    rounds to `dtype`. Before that the result differs from what exact arithmetic gives by at most
    2^-21 times (|x| + |mean|) / std, wherever it is computed.

    Args:
        mean: A number for all channels, or one for each, in the units of the values: of images as
            uint8 it is 255 times what is published for images between 0 and 1.
        std: As `mean`; above 0.
        dtype: Of the result: `"float32"`, `"bfloat16"`, `"float16"` or `"float64"`. The narrow ones
            take half of the device's memory, and models that train in them take no other.
        axis: Where the channels are, if there is a number for each: -3 for (..., C, H, W), -1 for
            (..., H, W, C).

    Raises:
        InvalidRequest: Numbers that cannot be, or another dtype.
    """

    def __init__(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        dtype: str = "float32",
        *,
        axis: int = -3,
    ) -> None:
        self._mean, self._std = _numbers("mean", mean), _numbers("std", std)
        self._dtype, self._axis = _known("Normalize", dtype, FLOATS), axis
        if min(self._std) <= 0:
            _refuse(f"Normalize(std={std!r}): a standard deviation is above 0")
        lengths = {len(self._mean), len(self._std)} - {1}
        if len(lengths) > 1:
            _refuse(
                f"Normalize: mean has {len(self._mean)} numbers and std {len(self._std)}: pass one "
                "for each channel"
            )
        if isinstance(axis, bool) or not isinstance(axis, int):
            _refuse(f"Normalize(axis={axis!r}): pass the number of a dimension, such as -3")
        count = max(len(self._mean), len(self._std))
        means = self._mean * (count // len(self._mean))
        stds = self._std * (count // len(self._std))
        # Python floats that float32 holds: every library takes them as they are.
        with np.errstate(over="ignore"):
            self._channels = [
                (float(np.float32(one)), float(np.float32(1 / other)))
                for one, other in zip(means, stds, strict=True)
            ]
        if not all(map(math.isfinite, itertools.chain(*self._channels))):
            _refuse(
                f"Normalize(mean={mean!r}, std={std!r}): it computes in float32, which does not "
                "hold the mean, or 1 / std"
            )

    def __repr__(self) -> str:
        return f"Normalize({self._mean}, {self._std}, {self._dtype!r}, axis={self._axis})"

    def __call__(self, value: Any) -> Any:
        """Return a value with every array in it normalized.

        Args:
            value: An array of integers or floats, whose dimension `axis` is that of the channels
                where there is a number for each; or lists of such, with None among them.

        Returns:
            New arrays of the same shapes, of the dtype.

        Raises:
            InvalidRequest: It is not an array, or has other channels.
        """
        return each_array(value, self._normalize)

    def _normalize(self, array: Array) -> Array:
        arrays = _arrays(self, array)
        if len(self._channels) == 1:
            [(mean, factor)] = self._channels
            exact = (arrays.astype(array, "float32") - mean) * factor
            return arrays.astype(exact, self._dtype)
        at = self._axis + array.ndim if self._axis < 0 else self._axis
        if not 0 <= at < array.ndim or array.shape[at] != len(self._channels):
            _refuse(
                f"Normalize has numbers for {len(self._channels)} channels, and dimension "
                f"{self._axis} of the shape {list(array.shape)} is another: pass axis=, -1 for "
                "channels last, or as many numbers"
            )
        # By channels, with numbers: an array of them would have to be copied to the device.
        found = arrays.empty(array, self._dtype)
        for channel, (mean, factor) in enumerate(self._channels):
            place = (slice(None),) * at + (channel,)
            found[place] = arrays.astype(
                (arrays.astype(array[place], "float32") - mean) * factor, self._dtype
            )
        return found


def _arrays(transform: Any, value: Any) -> Any:
    found = arrays_like(value)
    if found is None:
        _refuse(f"{transform!r} takes arrays, and was given a {type(value).__name__}")
    return found


def _known(who: str, dtype: str, known: frozenset[str]) -> str:
    if not isinstance(dtype, str) or dtype not in known:
        # The class itself in place of what it makes was given a value.
        given = repr(dtype) if arrays_like(dtype) is None else "an array"
        _refuse(f"{who}: dtype={given}: pass the name of one, of {', '.join(sorted(known))}")
    return dtype


def _numbers(name: str, given: float | Sequence[float]) -> tuple[float, ...]:
    try:
        found = tuple(map(float, given)) if isinstance(given, Sequence) else (float(given),)
    except (TypeError, ValueError):
        found = ()
    if not found or not all(map(math.isfinite, found)):
        _refuse(f"Normalize({name}={given!r}): pass a number, or a list of one for each channel")
    return found


def _refuse(sentence: str) -> NoReturn:
    raise InvalidRequest(sentence)
