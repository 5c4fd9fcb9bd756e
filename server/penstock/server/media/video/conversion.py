"""Frames that libav decoded become pixels: RGB by stated integers, or the planes as they are.

`penstock.wire.colours` says what RGB a frame has. libswscale gives the very same for frames of
4:2:0 with 8 bits and an even height, by `FLAGS` at the frame's own size, on x86; in a ninth of
numpy's time. That it does so here is no promise of libav: each process compares the two for every
matrix, range and size that it meets, and computes by numpy where they differ. So neither the
version of libav nor the processor decides a byte. (PyAV 17.0 does not hand BT.2020 on, for one.)

Rates of one core, 640 x 480: libswscale 0.17 ms, numpy 1.6 ms; SWS_ACCURATE_RND with
SWS_FULL_CHR_H_INT and SWS_BITEXACT takes 1.9 to 2.5 ms, where decoding the frame takes 0.6. It
stretches the chroma of odd sizes, too, and overflows: where a colour is above 511 it gives 0.

What else decoders give is read by numpy: 4:2:2, 4:4:4, 9 to 16 bits (rounded to 8, without
dither or tone mapping), grey and planar RGB.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.server.files.filesystems import require
from penstock.wire.colours import Colours, Levels, Matrix, Siting, chroma_shape, to_rgb

if TYPE_CHECKING:
    from av import VideoFrame

FLAGS = 2
"""SWS_BILINEAR, and no other: any of SWS_ACCURATE_RND leads to another way of libswscale."""

EXACT_FLAGS = 0x2 | 0x2000 | 0x40000 | 0x80000
"""SWS_BILINEAR, FULL_CHR_H_INT, ACCURATE_RND, BITEXACT: chroma is interpolated by its siting."""

_MATRICES = {
    1: Matrix.BT709,
    2: Matrix.BT601,  # the file says none
    4: Matrix.FCC,
    5: Matrix.BT601,
    6: Matrix.BT601,
    7: Matrix.SMPTE240M,
    9: Matrix.BT2020,
}
"""Of what a frame says: MatrixCoefficients of ITU-T H.273."""

_SWS_MATRICES = {**{matrix: int(matrix) for matrix in Matrix}, Matrix.BT601: 5}
"""libswscale's numbers of them."""

_LIMITED, _FULL = 1, 2
"""libav's numbers of ranges."""


class UnsupportedPixels(ValueError):
    """A frame has a format or a matrix that is not known here. It is alike on every node."""


class Yuv(NamedTuple):
    """A frame as planes of 8 bits.

    Attributes:
        y: uint8 (height, width).
        u: uint8 (rows, columns): of 4:2:0 half of each side, rounded up.
        v: As `u`.
    """

    y: Levels
    u: Levels
    v: Levels


def frame_colours(frame: VideoFrame) -> Colours:
    """Return what a frame says of its colours; of a file it is asked of the first frame.

    A matrix that is not said is BT.601, as libswscale has it; a range that is not said is limited,
    but for formats yuvj and grey. libav tells where chroma was sampled (left for H.264, HEVC,
    MPEG-2 and MPEG-4 unless the stream says otherwise), but PyAV does not: a small frame with the
    same properties is converted, and its pixels tell. It takes a third of a millisecond. PyAV
    before 17 does not hand it on, and it is the centre there.

    Raises:
        UnsupportedPixels: The matrix is not one of `Matrix`.
    """
    form, code = _form(frame), int(frame.colorspace)
    if form.kind == "rgb":
        return Colours(Matrix.BT601, True, Siting.CENTER)  # nothing is converted
    if code not in _MATRICES:
        raise UnsupportedPixels(
            f"its frames have the matrix coefficients {code} (ITU-T H.273), and known are "
            f"{', '.join(f'{matrix} ({matrix.name})' for matrix in Matrix)}: transcode it to one "
            "of these"
        )
    said = int(frame.color_range)
    full_range = said == _FULL or (said != _LIMITED and form.is_full)
    siting = _siting(frame) if form.kind == "420" else Siting.CENTER
    return Colours(_MATRICES[code], full_range, siting)


def yuv420p(frame: VideoFrame) -> Yuv:
    """Return a frame's planes, in 8 bits.

    Returns:
        Of a frame of 8 bits they are views that must not be written to, with the decoder's own
        distance from row to row, and keep its memory; of others they are new.

    Raises:
        UnsupportedPixels: The frame is not 4:2:0, nor grey.
    """
    form = _form(frame)
    if form.kind not in ("420", "grey"):
        raise UnsupportedPixels(
            f"its frames are {frame.format.name}, whose chroma yuv420p cannot hold: take pixels: "
            "rgb24, or transcode it to yuv420p"
        )
    planes = Yuv(*_planes(frame, form))
    for plane in planes:
        plane.flags.writeable = False  # frames that are still to be decoded may be coded from it
    return planes


class RgbConversion:
    """Makes RGB of the frames of one file; one thread at a time.

    Args:
        colours: Those of its first frame: a frame that says others is still converted by these.
    """

    def __init__(self, colours: Colours) -> None:
        self._colours = colours
        self._scaler = _reformatter()

    def rgb24(self, frame: VideoFrame) -> Levels:
        """Return a frame's pixels.

        Returns:
            uint8 (height, width, 3); it may be a view of rows that are padded, for reading.

        Raises:
            UnsupportedPixels: The frame has a format that is not known here.
        """
        form, (matrix, full_range, _) = _form(frame), self._colours
        if form.kind == "rgb":
            green, blue, red = _planes(frame, form)
            return np.stack((red, green, blue), -1)
        swift = form.kind == "420" and form.bits == 8 and frame.height % 2 == 0
        if swift and _agrees(matrix, full_range, frame.width, frame.height):
            return _by_swscale(self._scaler, frame, matrix, full_range, FLAGS)
        return to_rgb(_planes(frame, form), matrix, full_range)


class _Form(NamedTuple):
    """How the planes of a pixel format are to be read."""

    kind: str  # "420", "422", "444", "grey" or "rgb"
    bits: int
    is_full: bool  # where the stream says nothing


def _known_forms() -> dict[str, _Form]:
    found = {"gray": _Form("grey", 8, True), "gbrp": _Form("rgb", 8, True)}
    for kind in ("420", "422", "444"):
        found[f"yuv{kind}p"] = _Form(kind, 8, False)
        found[f"yuvj{kind}p"] = _Form(kind, 8, True)
        for bits in (9, 10, 12, 14, 16):
            found[f"yuv{kind}p{bits}le"] = _Form(kind, bits, False)
    for bits in (9, 10, 12, 14, 16):
        found[f"gray{bits}le"] = _Form("grey", bits, True)
        found[f"gbrp{bits}le"] = _Form("rgb", bits, True)
    return found


_FORMS = _known_forms()


def _form(frame: VideoFrame) -> _Form:
    name = frame.format.name
    if name not in _FORMS:
        raise UnsupportedPixels(
            f"its frames are {name}, and known are 4:2:0, 4:2:2 and 4:4:4 of up to 16 bits, grey "
            "and planar RGB: transcode it to yuv420p"
        )
    return _FORMS[name]


def _planes(frame: VideoFrame, form: _Form) -> tuple[Levels, Levels, Levels]:
    """Return views of a frame's three planes; copies, where they have more than 8 bits."""
    first, *others = (_levels(plane, form.bits) for plane in frame.planes)
    if form.kind == "grey":
        height, width = first.shape
        others = [np.full(chroma_shape(height, width), 128, np.uint8)] * 2
    return first, others[0], others[1]


def _levels(plane: Any, bits: int) -> Levels:
    """Return a plane's levels in 8 bits, rounded to the nearest of them."""
    if bits == 8:
        levels: Levels = np.frombuffer(plane, np.uint8)
        return levels.reshape(plane.height, -1)[:, : plane.width]
    rows = np.frombuffer(plane, "<u2").reshape(plane.height, -1)[:, : plane.width]
    half = 1 << (bits - 9)
    rounded: Levels = np.minimum((rows.astype(np.uint32) + half) >> (bits - 8), 255)
    return rounded.astype(np.uint8)


@lru_cache(256)
def _agrees(matrix: Matrix, full_range: bool, width: int, height: int) -> bool:
    """Say whether libswscale gives the stated levels for frames of a size, in this process.

    It takes pictures at random: one of the size, whose edges may be computed in another way, and
    one with every pair of levels of U and V. Where it says False, only time is lost.
    """
    chance = np.random.Generator(np.random.PCG64(0))

    def levels(shape: tuple[int, int]) -> Levels:
        return chance.integers(0, 256, shape, np.uint8)

    halves = chroma_shape(height, width)
    every = np.indices((256, 256), np.uint8)
    scaler = _reformatter()
    for planes in (
        Yuv(levels((512, 512)), every[0], every[1]),
        Yuv(levels((height, width)), levels(halves), levels(halves)),
    ):
        found = _by_swscale(scaler, _new_frame(planes), matrix, full_range, FLAGS)
        if not np.array_equal(found, to_rgb(planes, matrix, full_range)):
            return False
    return True


def _by_swscale(
    scaler: Any, frame: VideoFrame, matrix: Matrix, full_range: bool, flags: int
) -> Levels:
    """Return libswscale's pixels: uint8 (height, width, 3)."""
    made = scaler.reformat(
        frame,
        format="rgb24",
        src_colorspace=_SWS_MATRICES[matrix],
        dst_colorspace=_SWS_MATRICES[Matrix.BT601],  # PyAV 15 and 16 skip equal ones; RGB has none
        src_color_range=_FULL if full_range else _LIMITED,
        interpolation=flags,
        **_one_thread(),
    )
    [plane] = made.planes
    found: Levels = np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)
    return found[:, : 3 * frame.width].reshape(frame.height, frame.width, 3)


_LEFT_LEVEL, _CENTER_LEVEL = 130, 124
"""Red between the levels 64, 80, ... of V, at luma 128: on the fifth, or a quarter before it."""


def _siting(frame: VideoFrame) -> Siting:
    """Return where a frame of 4:2:0 has its chroma.

    libswscale honours it where chroma is interpolated, and PyAV keeps it in frames that it makes
    of others. What says nothing is taken to be in the centre, as libswscale takes it.
    """
    side = 16 if (frame.width, frame.height) != (16, 16) else 32  # not the decoder's own frame
    levels = (64 + 16 * np.arange(side // 2)).astype(np.uint8)
    grey = np.full((side, side), 128, np.uint8)
    across = np.broadcast_to(levels, (side // 2, side // 2))
    scaler, found = _reformatter(), []
    for ramp in (across, across.T):
        small = scaler.reformat(frame, width=side, height=side, format="yuv420p", **_one_thread())
        _fill(small, Yuv(grey, np.full_like(across, 128), ramp))
        pixels = _by_swscale(_reformatter(), small, Matrix.BT601, False, EXACT_FLAGS)
        found.append(int(pixels[8, 8, 0]))
    middle = (_LEFT_LEVEL + _CENTER_LEVEL) / 2
    if found[0] < middle:
        return Siting.CENTER
    return Siting.LEFT if found[1] < middle else Siting.TOPLEFT


def _new_frame(planes: Yuv) -> VideoFrame:
    made: VideoFrame = _av().VideoFrame(*planes.y.shape[::-1], "yuv420p")
    _fill(made, planes)
    return made


def _fill(frame: VideoFrame, planes: Yuv) -> None:
    for plane, levels in zip(frame.planes, planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        rows[:, : plane.width] = levels
        plane.update(rows.tobytes())


def _reformatter() -> Any:
    return _av().video.reformatter.VideoReformatter()


@cache
def _one_thread() -> dict[str, int]:
    """Return what keeps libswscale in the calling thread: since PyAV 17 it starts one per core."""
    return {"threads": 1} if int(_av().__version__.partition(".")[0]) >= 17 else {}


def _av() -> Any:
    return require("av", extra="video", who="the processor video")
