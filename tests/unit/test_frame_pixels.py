"""Frames that libav decoded: RGB is the stated one, whatever computes it, at node and trainer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import av
import numpy as np
import pytest
import torch

import pictures
from penstock.client.media import ToRgb, resized
from penstock.server.media.geometry import Extent
from penstock.server.media.resize import resize
from penstock.server.media.video.conversion import (
    EXACT_FLAGS,
    RgbConversion,
    UnsupportedPixels,
    Yuv,
    frame_colours,
    yuv420p,
)
from penstock.wire.colours import Colours, Levels, Matrix, Siting, chroma_shape, to_rgb

RANGES = {False: 1, True: 2}
MATRICES = {Matrix.BT709: 1, Matrix.FCC: 4, Matrix.BT601: 6, Matrix.SMPTE240M: 7, Matrix.BT2020: 9}
SWS = MATRICES | {Matrix.BT601: 5}

KINDS = ("noise", "edges", "photograph")
SIZES = ((48, 64), (47, 64), (48, 63), (33, 17), (2, 2), (1, 1))


def frame_of(planes: Sequence[Levels], form: str = "yuv420p") -> Any:
    """Return a frame of PyAV, which says nothing of its colours."""
    height, width = planes[0].shape
    frame = av.VideoFrame(width, height, form)
    for plane, values in zip(frame.planes, planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
        rows[:, : plane.width] = values
        plane.update(rows.tobytes())
    return frame


def planes_of(kind: str, height: int, width: int) -> Yuv:
    """Return planes of 4:2:0 of a kind of picture."""
    halves = chroma_shape(height, width)
    if kind == "photograph":
        image = pictures.photograph(width, height).convert("YCbCr")
        y, u, v = np.moveaxis(np.asarray(image), -1, 0)
        return Yuv(y.copy(), u[::2, ::2].copy(), v[::2, ::2].copy())
    chance = np.random.default_rng(11)
    most = 256 if kind == "noise" else 2
    y, u, v = (
        chance.integers(0, most, size, np.uint8) for size in ((height, width), halves, halves)
    )
    return Yuv(y, u, v) if kind == "noise" else Yuv(255 * y, 255 * u, 255 * v)


def at_trainer(planes: Yuv, colours: Colours, **options: Any) -> Levels:
    """Return what a trainer makes of planes that travelled."""
    values = {"c.y": planes.y, "c.u": planes.u, "c.v": planes.v}
    batch = {name: torch.from_numpy(value[None].copy()) for name, value in values.items()}
    batch["c.colours"] = torch.tensor([list(map(int, colours))], dtype=torch.uint8)
    found: Levels = ToRgb(**options)(batch)["c"][0].numpy()
    return found


def exact_libswscale(frame: Any, colours: Colours) -> Levels:
    """Return RGB whose chroma libswscale interpolates, by its most exact flags."""
    made = av.video.reformatter.VideoReformatter().reformat(
        frame,
        format="rgb24",
        src_colorspace=SWS[colours.matrix],
        dst_colorspace=SWS[colours.matrix],
        src_color_range=RANGES[colours.full_range],
        interpolation=EXACT_FLAGS,
        threads=1,
    )
    found: Levels = made.to_ndarray()
    return found


# --- rgb24 of the node ---


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", Matrix)
def test_node_and_trainer_give_the_same_bytes(matrix: Matrix, full_range: bool) -> None:
    """Of photographs, noise and edges of the most saturated colours, in every size."""
    colours = Colours(matrix, full_range, Siting.CENTER)
    conversion = RgbConversion(colours)
    for kind in KINDS:
        for height, width in SIZES:
            planes = planes_of(kind, height, width)
            frame = frame_of(planes)

            found = conversion.rgb24(frame)

            np.testing.assert_array_equal(found, to_rgb(planes, matrix, full_range))
            np.testing.assert_array_equal(found, at_trainer(yuv420p(frame), colours))


def test_rows_do_not_depend_on_which_way_computes_them() -> None:
    """Libswscale takes frames of even height, and numpy others."""
    planes = planes_of("noise", 64, 96)
    conversion = RgbConversion(Colours(Matrix.BT601, False, Siting.LEFT))
    whole = conversion.rgb24(frame_of(planes))

    shorter = conversion.rgb24(frame_of(Yuv(planes.y[:63], planes.u, planes.v)))

    np.testing.assert_array_equal(shorter, whole[:63])


def test_a_frame_is_not_changed() -> None:
    planes = planes_of("noise", 16, 16)
    frame = frame_of(planes)
    for _ in range(2):
        RgbConversion(frame_colours(frame)).rgb24(frame)
        for found, expected in zip(yuv420p(frame), planes, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bits", [10, 12])
def test_more_bits_are_rounded_to_eight(bits: int) -> None:
    """To the nearest of them, upwards from the middle."""
    coarse = planes_of("noise", 6, 10)
    half = 1 << (bits - 9)
    nearest = [plane.astype("<u2") << (bits - 8) for plane in coarse]
    conversion = RgbConversion(Colours(Matrix.BT709, False, Siting.LEFT))

    for change, levels in (
        (0, coarse),
        (half - 1, coarse),
        (half, [np.minimum(plane, 254) + 1 for plane in coarse]),
    ):
        frame = frame_of([plane + change for plane in nearest], f"yuv420p{bits}le")
        found = conversion.rgb24(frame)
        np.testing.assert_array_equal(found, to_rgb(levels, Matrix.BT709, False))
        np.testing.assert_array_equal(yuv420p(frame).y, levels[0])


@pytest.mark.parametrize(("form", "down", "across"), [("yuv422p", 1, 2), ("yuv444p", 1, 1)])
def test_finer_chroma_stays_fine(form: str, down: int, across: int) -> None:
    chance = np.random.default_rng(5)
    shapes = ((6, 10), (6 // down, 10 // across), (6 // down, 10 // across))
    planes = [chance.integers(0, 256, shape, np.uint8) for shape in shapes]
    frame = frame_of(planes, form)

    found = RgbConversion(frame_colours(frame)).rgb24(frame)

    np.testing.assert_array_equal(found, to_rgb(planes, Matrix.BT601, False))
    with pytest.raises(UnsupportedPixels, match=f"{form}, whose chroma yuv420p cannot hold"):
        yuv420p(frame)


def test_grey_is_grey_and_rgb_is_itself() -> None:
    levels = planes_of("noise", 5, 7).y
    grey = frame_of([levels], "gray")
    colours = frame_colours(grey)
    found = RgbConversion(colours).rgb24(grey)
    np.testing.assert_array_equal(found, np.stack([levels] * 3, -1))
    np.testing.assert_array_equal(at_trainer(yuv420p(grey), colours), found)

    red, green, blue = (planes_of("noise", 5, at).y[:, :7] for at in (7, 8, 9))
    frame = frame_of([green, blue, red], "gbrp")
    found = RgbConversion(frame_colours(frame)).rgb24(frame)
    np.testing.assert_array_equal(found, np.stack([red, green, blue], -1))


def test_other_pixels_are_refused_by_name() -> None:
    frame = av.VideoFrame(16, 16, "nv12")
    with pytest.raises(UnsupportedPixels, match="its frames are nv12, and known are 4:2:0"):
        frame_colours(frame)
    odd = av.VideoFrame(16, 16, "yuv420p")
    odd.colorspace = 10
    with pytest.raises(UnsupportedPixels, match=r"matrix coefficients 10 .*BT2020"):
        frame_colours(odd)


# --- what a frame says of its colours ---


def decoded(codec: str, form: str = "yuv420p", container: str = "mp4", **options: str) -> Any:
    """Return the first frame of a video of a codec."""
    file = io.BytesIO()
    pixels = np.random.default_rng(4).integers(0, 256, (64, 64, 3), np.uint8)
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=30, options=options)
        stream.width = stream.height = 64
        stream.pix_fmt = form
        for packet in (
            *stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24").reformat(format=form)),
            *stream.encode(None),
        ):
            out.mux(packet)
    file.seek(0)
    with av.open(file) as found:
        return next(found.decode(video=0))


X264 = "log-level=none"


@pytest.mark.parametrize(
    ("place", "siting"), [(0, Siting.LEFT), (1, Siting.CENTER), (2, Siting.TOPLEFT)]
)
def test_a_stream_says_where_chroma_was_sampled(place: int, siting: Siting) -> None:
    frame = decoded("libx264", **{"x264-params": f"{X264}:chromaloc={place}"})
    assert frame_colours(frame) == (Matrix.BT601, False, siting)


def test_codecs_have_sitings_of_their_own() -> None:
    assert frame_colours(decoded("libx264", **{"x264-params": X264})).siting == Siting.LEFT
    assert frame_colours(decoded("mpeg4")).siting == Siting.LEFT
    mjpeg = frame_colours(decoded("mjpeg", "yuvj420p", "avi"))
    assert mjpeg == (Matrix.BT601, True, Siting.CENTER)


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", Matrix)
def test_a_frame_says_matrix_and_range(matrix: Matrix, full_range: bool) -> None:
    frame = frame_of(planes_of("noise", 16, 16))
    frame.colorspace, frame.color_range = MATRICES[matrix], RANGES[full_range]
    assert frame_colours(frame) == (matrix, full_range, Siting.CENTER)


# --- interpolated chroma, and other sizes, at the trainer ---


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", Matrix)
@pytest.mark.parametrize("place", Siting)
def test_interpolated_chroma_is_that_of_libswscale(
    matrix: Matrix, full_range: bool, place: Siting
) -> None:
    """Within 2 levels, for each siting; odd sizes are parts of even ones.

    libswscale itself stretches the chroma of an odd size over it; and with these flags it gives 0
    for what is above 511, as U of 255 is at a luma of 255 that limited range does not have.
    """
    sited = decoded("libx264", **{"x264-params": f"{X264}:chromaloc={int(place)}"})
    colours = Colours(matrix, full_range, place)
    for kind in KINDS:
        planes = planes_of(kind, 48, 66)
        if not full_range:
            planes = Yuv(*map(np.minimum, planes, np.array([235, 240, 240], np.uint8)))
        frame = sited.reformat(width=66, height=48)  # keeps what the stream said
        for plane, values in zip(frame.planes, planes, strict=True):
            rows = np.zeros((plane.height, plane.line_size), np.uint8)
            rows[:, : plane.width] = values
            plane.update(rows.tobytes())
        expected = exact_libswscale(frame, colours).astype(np.int64)

        found = at_trainer(planes, colours, chroma="bilinear")
        assert np.abs(found - expected).max() <= 2

        odd = Yuv(planes.y[:47, :65], planes.u, planes.v)
        found = at_trainer(odd, colours, chroma="bilinear")
        assert np.abs(found - expected[:47, :65]).max() <= 2


@pytest.mark.parametrize("size", [(30, 40), (24, 64), (100, 70), (7, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_resized_as_the_node_does_it(kind: str, size: tuple[int, int]) -> None:
    """By `kernel: torch` before copying: in tensors alike, in arrays within a level."""
    planes = planes_of(kind, 48, 64)
    pixels = to_rgb(planes, Matrix.BT601, False)
    expected = resize(pixels, Extent(height=size[0], width=size[1]), "torch")

    found = at_trainer(planes, Colours(Matrix.BT601, False, Siting.LEFT), size=size)

    np.testing.assert_array_equal(found, expected)
    assert np.abs(resized(pixels, size).astype(np.int64) - expected).max() <= 1
