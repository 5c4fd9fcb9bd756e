"""Planes of YUV become RGB: by integers that are stated here, and give the same bytes anywhere.

A node makes `rgb24` of frames so, and a trainer the same of planes that travelled; torch computes
it too, in `penstock.client.media`. Levels of 8 bits, Y, U and V, with every product rounded down::

    y = ((Y << 3) - offset) * luma >> 16
    u, v = (U << 3) - 1024, (V << 3) - 1024
    red   = y + (v * v_to_red >> 16)
    green = y + (u * u_to_green >> 16) + (v * v_to_green >> 16)
    blue  = y + (u * u_to_blue >> 16)

Each is then brought into 0 to 255. The factors are `Factors`, and a level of chroma is that of
all pixels of its block (two by two of 4:2:0), so that where chroma was sampled does not matter.
This is what libswscale does on x86 for frames of its own size and even height without
SWS_ACCURATE_RND, and so what most programs take RGB frames to be. It differs by up to 3 levels
from the exact value, because it rounds down.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.uint8]

PLANES, COLOURS = (".y", ".u", ".v"), ".colours"
"""What the names of a batch's values end in, after that of the frames: planes, and `Colours`."""


class Matrix(IntEnum):
    """Which matrix made YUV of RGB: MatrixCoefficients of ITU-T H.273."""

    BT709 = 1
    FCC = 4
    BT601 = 6
    SMPTE240M = 7
    BT2020 = 9


class Siting(IntEnum):
    """Where chroma was sampled between pixels: Chroma420SampleLocType of ITU-T H.273."""

    LEFT = 0
    CENTER = 1
    TOPLEFT = 2


class Colours(NamedTuple):
    """What is to be known of planes before they can be shown.

    A batch has it as uint8 (..., 3) in this order, with a value of `Matrix`, 0 or 1, and a value
    of `Siting`.

    Attributes:
        matrix: By which they were made.
        full_range: Luma is 0 to 255; False = 16 to 235, and chroma 16 to 240.
        siting: Where chroma was sampled. Only `chroma="bilinear"` looks at it.
    """

    matrix: Matrix
    full_range: bool
    siting: Siting


class Factors(NamedTuple):
    """The whole numbers of the conversion: of 13 bits after the point, but for `offset`.

    Attributes:
        offset: What is taken off eight times luma.
        luma: The factor of luma.
        v_to_red: The factor of V in red.
        u_to_green: The factor of U in green.
        v_to_green: The factor of V in green.
        u_to_blue: The factor of U in blue.
    """

    offset: int
    luma: int
    v_to_red: int
    u_to_green: int
    v_to_green: int
    u_to_blue: int


WEIGHTS = {
    Matrix.BT709: (0.2126, 0.0722),
    Matrix.FCC: (0.30, 0.11),
    Matrix.BT601: (0.299, 0.114),
    Matrix.SMPTE240M: (0.212, 0.087),
    Matrix.BT2020: (0.2627, 0.0593),
}
"""The parts of red and blue in luma (KR and KB of H.273); what is left is green's.

BT.2020 is that of non-constant luminance.
"""

_CHROMA = {
    Matrix.BT709: (117489, 138438, 13975, 34925),
    Matrix.FCC: (104448, 132798, 24759, 53109),
    Matrix.BT601: (104597, 132201, 25675, 53279),
    Matrix.SMPTE240M: (117579, 136230, 16907, 35559),
    Matrix.BT2020: (110013, 140363, 12277, 42626),
}
"""V to red, U to blue, U to green, V to green of limited range, times 65,536.

They are 255 / 224 * 2 * (1 - KR), and so on, as libswscale rounds them.
"""


@cache
def factors(matrix: Matrix, full_range: bool) -> Factors:
    """Return the numbers of a matrix and a range."""
    red, blue, green_of_u, green_of_v = _CHROMA[matrix]
    luma, offset = (1 << 16) * 255 // 219, 16 << 3
    if full_range:
        luma, offset = 1 << 16, 0
        red, blue = red * 224 // 255, blue * 224 // 255
        green_of_u, green_of_v = green_of_u * 224 // 255, green_of_v * 224 // 255
    return Factors(
        offset=offset,
        luma=_rounded(luma),
        v_to_red=_rounded(red),
        u_to_green=_rounded(-green_of_u),
        v_to_green=_rounded(-green_of_v),
        u_to_blue=_rounded(blue),
    )


def to_rgb(planes: Sequence[Levels], matrix: Matrix, full_range: bool) -> Levels:
    """Return the pixels of planes.

    Args:
        planes: Y: uint8 (..., height, width); U and V: uint8 (..., rows, columns), of which each is
            half of the side of Y, rounded up, or all of it.
        matrix: By which they were made.
        full_range: As `Colours` has it.

    Returns:
        uint8 (..., height, width, 3), contiguous.

    Raises:
        ValueError: The shapes do not belong together.
    """
    y, u, v = planes
    steps = _steps(y, u, v)
    known = factors(matrix, full_range)
    found = np.empty((*y.shape, 3), np.uint8)
    height, width = y.shape[-2:]
    pictures = zip(
        y.reshape(-1, height, width),
        u.reshape(-1, *u.shape[-2:]),
        v.reshape(-1, *v.shape[-2:]),
        found.reshape(-1, height, width, 3),
        strict=True,
    )
    plane = np.empty((height, width), np.uint8)
    for luma, of_u, of_v, out in pictures:  # one after another: each stays in the cache
        whole = [part.astype(np.int32) for part in (luma, of_u, of_v)]
        light, *chroma = levels(whole, known)
        light = light.astype(np.int16)
        for at, part in enumerate(chroma):
            _add_blocks(light, part.astype(np.int16), steps, plane)
            out[..., at] = plane
    return found


def levels(planes: Sequence[Any], known: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return luma's part of a colour, and those of chroma in red, green and blue.

    It takes arrays of NumPy, cupy or torch, and uses operators alone.

    Args:
        planes: Y: int32 (..., height, width), from 0 to 255; U and V: int32 (..., rows, columns).
        known: Six numbers in the order of `Factors`, or arrays of int32 that go with all planes.

    Returns:
        int32: the first in the shape of Y, three in that of U.
    """
    y, u, v = planes
    offset, luma, v_to_red, u_to_green, v_to_green, u_to_blue = known
    light = ((y << 3) - offset) * luma >> 16
    u, v = (u << 3) - 1024, (v << 3) - 1024
    return (
        light,
        v * v_to_red >> 16,
        (u * u_to_green >> 16) + (v * v_to_green >> 16),
        u * u_to_blue >> 16,
    )


def chroma_shape(height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the planes U and V of 4:2:0."""
    return -(-height // 2), -(-width // 2)


def _add_blocks(
    luma: npt.NDArray[np.int16], chroma: npt.NDArray[np.int16], steps: tuple[int, int], out: Levels
) -> None:
    """Write the sum of luma and of its block's chroma, within 0 and 255."""
    down, across = steps
    rows, columns = chroma.shape
    if across > 1:
        wide = np.empty((rows, columns, across), np.int16)  # a third of the time of `repeat`
        for at in range(across):
            wide[..., at] = chroma
        chroma = wide.reshape(rows, -1)[:, : luma.shape[1]]
    for first in range(down):
        summed = luma[first::down]
        summed = summed + chroma[: len(summed)]
        out[first::down] = np.clip(summed, 0, 255, out=summed)


def _steps(y: Levels, u: Levels, v: Levels) -> tuple[int, int]:
    """Return the rows and the columns of pixels that a level of chroma is for."""
    if y.ndim >= 2 and u.shape == v.shape and u.ndim == y.ndim and u.shape[:-2] == y.shape[:-2]:
        for down in (1, 2):
            for across in (1, 2):
                if u.shape[-2:] == (-(-y.shape[-2] // down), -(-y.shape[-1] // across)):
                    return down, across
    raise ValueError(
        f"planes of {y.shape}, {u.shape} and {v.shape} are not of one picture: U and V have its "
        "sides, or half of them, rounded up"
    )


def _rounded(factor: int) -> int:
    """Return a factor of 16 bits after the point with 13 of them."""
    return (factor + 4) >> 3
