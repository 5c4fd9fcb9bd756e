"""Frames that travelled as planes of YUV become RGB: the bytes that the node's own rgb24 has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn

import numpy as np

from penstock.client.array_libraries import Array, arrays_like
from penstock.client.media.resizing import resized
from penstock.common.nearest import hint, listed
from penstock.wire.colours import (
    COLOURS,
    PLANES,
    Matrix,
    Siting,
    chroma_shape,
    factors,
    levels,
    to_rgb,
)
from penstock.wire.errors import InvalidRequest

DTYPES = ("uint8", "float32", "bfloat16", "float16")

CHUNK = 1 << 24
"""Pixels that are computed at once: 64 MiB for each of three or four arrays of int32."""

HOST_CHUNK = 1 << 18
"""The same on a host: what is computed at once stays in a core's cache."""

BLOCKS, BILINEAR = CHROMA = ("blocks", "bilinear")


class ToRgb:
    """Makes RGB of every `KEY.y`, `KEY.u`, `KEY.v` and `KEY.colours` of a batch.

    A transform for `Loader(arrive=)`, and for any dict of arrays of NumPy, cupy or torch. What it
    gives is computed where the planes lie, by whole numbers (`penstock.wire.colours`): uint8 of
    the frames' own size equals `pixels: rgb24` of the node in every byte, on every device. Make
    one for each Loader: it keeps a table on the device.

    Args:
        size: Height and width, as `resized` makes them; None = the frames' own.
        dtype: `uint8`; or `float32`, `bfloat16` or `float16`: levels divided by 255.
        channels: `last`: (..., height, width, 3), as `rgb24` is; `first`: (..., 3, height, width),
            as models take it.
        chroma: `blocks`: a level of chroma is that of its two by two pixels, as in the node's
            `rgb24`, and in what PyAV, torchcodec and OpenCV give. `bilinear`: between levels it is
            interpolated, by where chroma was sampled, in float32; edges of colours look smoother,
            for about three times the work. It differs by up to 2 levels from libswscale's
            SWS_ACCURATE_RND, SWS_FULL_CHR_H_INT and SWS_BITEXACT.

    Raises:
        InvalidRequest: An argument is none of these.
    """

    def __init__(
        self,
        *,
        size: tuple[int, int] | None = None,
        dtype: str = "uint8",
        channels: str = "last",
        chroma: str = "blocks",
    ) -> None:
        _one_of("dtype", dtype, DTYPES)
        _one_of("channels", channels, ("first", "last"))
        _one_of("chroma", chroma, CHROMA)
        self._size, self._dtype = size, dtype
        self._first, self._chroma = channels == "first", chroma
        self._known: dict[Any, Array] = {}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch with RGB in place of planes; other values stay as they are.

        Args:
            batch: `KEY.y`: uint8 (..., height, width); `KEY.u` and `KEY.v`: uint8
                (..., ceil(height / 2), ceil(width / 2)); `KEY.colours`: uint8 (..., 3), matrix,
                range and siting for each frame, or for each entry of leading dimensions. Or lists
                of these, one of each for a sample.

        Returns:
            `KEY`, in place of these four.

        Raises:
            InvalidRequest: One of four is missing, or shapes and dtypes do not go together.
        """
        made = dict(batch)
        keys = [name.removesuffix(PLANES[0]) for name in batch if name.endswith(PLANES[0])]
        for key in keys:
            names = [key + end for end in (*PLANES, COLOURS)]
            if missing := [name for name in names if name not in batch]:
                _refuse(
                    f"the batch has {names[0]} and no {', '.join(missing)}: frames travel as "
                    f"{', '.join(names)}, so a collator or a transform must not leave one out"
                )
            made[key] = self._value(key, *(made.pop(name) for name in names))
        if not keys:
            _refuse(
                f"the batch has no frames as planes, KEY{PLANES[0]} and so on, but "
                f"{listed(map(str, batch))}: leave ToRgb out, or set pixels: yuv420p in the job"
            )
        return made

    def _value(self, key: str, y: Any, u: Any, v: Any, colours: Any) -> Any:
        if isinstance(y, list):
            parts = zip(y, u, v, colours, strict=True)
            return [None if part[0] is None else self._value(key, *part) for part in parts]
        _check(key, y, u, v, colours)
        pixels = self._pixels(y, u, v, colours)
        if self._size is not None:
            pixels = resized(pixels, self._size, channels="first")
        arrays = _arrays(pixels)
        if not self._first:
            pixels = arrays.moved(pixels, -3, -1)
        if self._dtype != "uint8":
            pixels = arrays.astype(arrays.astype(pixels, "float32") / 255, self._dtype)
        return arrays.contiguous(pixels)

    def _pixels(self, y: Array, u: Array, v: Array, colours: Array) -> Array:
        """Return uint8 (..., 3, height, width)."""
        arrays, entries = _arrays(y), int(np.prod(colours.shape[:-1]))
        height, width = y.shape[-2:]
        frames = int(np.prod(y.shape[:-2]))
        planes = [one.reshape(-1, *one.shape[-2:]) for one in (y, u, v)]
        codes = arrays.astype(colours.reshape(-1, 3), "int64")
        shape = (*y.shape[:-2], 3, height, width)
        if not frames * height * width:
            return arrays.new(shape, y, "uint8")
        # Each frame's own: a batch may hold frames of several files.
        codes = codes[arrays.arange(frames, y) // (frames // entries)]
        on_host = isinstance(y, np.ndarray) or str(getattr(y, "device", "")) == "cpu"
        if on_host and self._chroma == BLOCKS:
            last = np.empty((frames, height, width, 3), np.uint8)
            views = [np.asarray(plane) for plane in planes]  # of a tensor's memory, too
            for at, (matrix, full_range, _) in enumerate(codes.tolist()):
                of_one = [view[at] for view in views]
                last[at] = to_rgb(of_one, _matrix(matrix), bool(full_range))
            return arrays.moved(arrays.numbers(last, y).reshape(*y.shape, 3), -1, -3)
        found = arrays.new((frames, 3, height, width), y, "uint8")
        known = self._table(y)[codes[:, 0], codes[:, 1]]
        step = max(1, (HOST_CHUNK if on_host else CHUNK) // (height * width))
        for start in range(0, frames, step):
            chunk = slice(start, start + step)
            numbers = [known[chunk, at].reshape(-1, 1, 1) for at in range(6)]
            ints = [arrays.astype(plane[chunk], "int32") for plane in planes]
            if self._chroma == BLOCKS:
                light, *parts = levels(ints, numbers)
                for channel, part in enumerate(parts):
                    summed = light + _blocks(arrays, part)[:, :height, :width]
                    found[chunk, channel] = arrays.clip(summed, 0, 255)
            else:
                smooth = _interpolated(arrays, ints, numbers, codes[chunk, 2])
                for channel, exact in enumerate(smooth):
                    # Assigning cuts off what is after the point.
                    found[chunk, channel] = arrays.clip(exact, 0, 255) + 0.5
        return found.reshape(shape)

    def _table(self, array: Array) -> Array:
        """Return int32 (matrices, 2, 6): `factors` by matrix and range, where an array lies.

        It is brought there once: doing so may wait for the device.
        """
        where = (type(array), str(getattr(array, "device", "")))
        if where not in self._known:
            self._known[where] = _arrays(array).numbers(_factor_table(), array)
        return self._known[where]


@cache
def _factor_table() -> np.ndarray:
    table = np.zeros((max(Matrix) + 1, 2, 6), np.int32)
    for matrix in Matrix:
        for full_range in (False, True):
            table[matrix, int(full_range)] = factors(matrix, full_range)
    return table


def _blocks(arrays: Any, part: Array) -> Array:
    """Return (n, 2 h, 2 w): each element of (n, h, w) four times, as a block."""
    count, rows, columns = part.shape
    found = arrays.new((count, rows, 2, columns, 2), part, "int32")
    found[:] = part[:, :, None, :, None]
    return found.reshape(count, 2 * rows, 2 * columns)


def _interpolated(
    arrays: Any, planes: list[Array], numbers: list[Array], sitings: Array
) -> tuple[Array, Array, Array]:
    """Return float32 red, green and blue, of chroma interpolated by where it was sampled."""
    height, width = planes[0].shape[-2:]
    offset, luma, v_to_red, u_to_green, v_to_green, u_to_blue = (
        arrays.astype(one, "float32") / 8192 for one in numbers
    )
    light = (arrays.astype(planes[0], "float32") - offset * 1024) * luma
    sitings = sitings.reshape(-1, 1, 1)
    # How far the even pixel of a block is from its level, in levels.
    across = arrays.astype(sitings == int(Siting.CENTER), "float32") / 4
    down = arrays.astype(sitings != int(Siting.TOPLEFT), "float32") / 4
    u, v = (
        _between(arrays, _between(arrays, one, across, -1), down, -2)[:, :height, :width]
        for one in (arrays.astype(plane, "float32") - 128 for plane in planes[1:])
    )
    return (
        light + v * v_to_red,
        light + u * u_to_green + v * v_to_green,
        light + u * u_to_blue,
    )


def _between(arrays: Any, part: Array, before: Array, axis: int) -> Array:
    """Return twice as many elements along an axis, each a mean of its two neighbours by distance.

    Beyond an edge lies the element at the edge.
    """
    shape = list(part.shape)
    shape[axis] *= 2
    found = arrays.new(tuple(shape), part, "float32")
    found[_at(axis, slice(0, None, 2))] = part * (1 - before)
    found[_at(axis, slice(2, None, 2))] += part[_at(axis, slice(None, -1))] * before
    found[_at(axis, slice(0, 1))] += part[_at(axis, slice(0, 1))] * before
    after = 0.5 - before
    found[_at(axis, slice(1, None, 2))] = part * (1 - after)
    found[_at(axis, slice(1, -1, 2))] += part[_at(axis, slice(1, None))] * after
    found[_at(axis, slice(-1, None))] += part[_at(axis, slice(-1, None))] * after
    return found


def _at(axis: int, place: slice) -> tuple[Any, ...]:
    return (..., place) if axis == -1 else (..., place, slice(None))


def _matrix(code: int) -> Matrix:
    if code not in tuple(Matrix):
        known = ", ".join(f"{matrix.name} ({matrix})" for matrix in Matrix)
        _refuse(f"frames are said to have the matrix {code}, and known are {known}")
    return Matrix(code)


def _check(key: str, y: Any, u: Any, v: Any, colours: Any) -> None:
    values = (y, u, v, colours)
    if any(arrays_like(value) is None for value in values) or any(
        str(value.dtype).rpartition(".")[2] != "uint8" for value in values
    ):
        kinds = ", ".join(str(getattr(value, "dtype", type(value).__name__)) for value in values)
        _refuse(f"the planes and colours of {key!r} are {kinds}: they are arrays of uint8")
    lead = tuple(y.shape[:-2])
    entries = tuple(colours.shape[:-1])
    if (
        y.ndim < 2
        or any(tuple(one.shape) != (*lead, *chroma_shape(*y.shape[-2:])) for one in (u, v))
        or colours.shape[-1:] != (3,)
        or lead[: len(entries)] != entries
    ):
        shapes = ", ".join(str(tuple(value.shape)) for value in values)
        _refuse(
            f"the planes and colours of {key!r} have the shapes {shapes}: they are (..., height, "
            "width), twice half of these rounded up, and 3 for each frame or leading dimension"
        )


def _arrays(value: Any) -> Any:
    found = arrays_like(value)
    assert found is not None  # `_check` was before
    return found


def _one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        _refuse(f"ToRgb({name}={given!r}): {hint(str(given), known)}")


def _refuse(sentence: str) -> NoReturn:
    raise InvalidRequest(sentence)
