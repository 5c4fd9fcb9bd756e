"""Videos for tests: pans over photographs, with each frame's number in its corner as blocks.

A wrong frame is seen by reading the number back, from RGB or from a plane of luma alone.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt

import pictures

os.environ.setdefault("SVT_LOG", "1")  # its encoder prints a page of settings otherwise

BLOCK = 8
"""Pixels of a side of a block: what survives coding at low quality."""

BITS = 16
"""Of a number. They are written twice, the second time inverted, so that no picture passes for one.
"""

COLUMNS, ROWS = 8, 4
"""Of blocks: the first two rows are the number, the others its complement."""

PHOTOGRAPHS = ("motorcycle_left.png", "astronaut.png", "coffee.png", "chelsea.png")

TICKS = 12_800
"""In a second, of times that are written: every usual rate divides it, or nearly."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Film:
    """How a video is written.

    Attributes:
        codec: The name of libav's encoder.
        container: What libav calls the format.
        frames: How many it has.
        width: Of the picture as it is shown.
        height: The same.
        rate: Frames in a second.
        gop: The most frames from a key frame to the next.
        b_frames: Consecutive frames that are coded from later ones.
        options: Of the encoder.
        muxing: Options of the container.
        times: When each frame is shown, in `TICKS`; empty = by the rate.
        rotation: Degrees counterclockwise by which a player turns the picture, by the file's
            display matrix.
        pixel_format: Of the coded pictures.
        colours: Matrix and range, as libav numbers them; empty = it says none.
        first: The number in the first frame.
    """

    codec: str = "libx264"
    container: str = "mp4"
    frames: int = 60
    width: int = 128
    height: int = 96
    rate: Fraction = Fraction(30)
    gop: int = 250
    b_frames: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    muxing: Mapping[str, str] = field(default_factory=dict)
    times: Sequence[int] = ()
    rotation: int = 0
    pixel_format: str = "yuv420p"
    colours: tuple[int, int] | None = None
    first: int = 0


H264 = Film(options={"preset": "veryfast", "crf": "20", "threads": "1"})
"""Key frames far apart, and B-frames."""

MUXING = {"fflags": "+bitexact"}
"""Without it, some containers get a random name of their own."""

OPEN_GOPS = {"x264-params": "open-gop=1:bframes=3:b-pyramid=normal:keyint=20:min-keyint=20"}

X265 = "log-level=none:pools=none:frame-threads=1"

AV1_OPTIONS = {"preset": "9", "crf": "12", "svtav1-params": "lp=1"}

UNEVEN = tuple(itertools.accumulate((400 + 37 * (n * n % 11) for n in range(59)), initial=0))

FILMS: dict[str, Film] = {
    "H.264": H264,
    "H.264, key frame every 2nd": replace(H264, gop=2, b_frames=0),
    "H.264, open GOPs": replace(H264, options={**H264.options, **OPEN_GOPS}),
    "H.264, one frame": replace(H264, frames=1),
    "H.264, odd size": replace(H264, width=99, height=67, pixel_format="yuv444p"),
    "H.264, 10 bits": replace(H264, pixel_format="yuv420p10le"),
    "H.264, BT.709, full range": replace(H264, colours=(1, 2)),
    "H.264 in mkv": replace(H264, container="matroska"),
    "H.264 in fragments": replace(
        H264, gop=12, muxing={"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    ),
    "H.264, variable rate": replace(H264, times=UNEVEN),
    "H.264, variable rate in mkv": replace(H264, times=UNEVEN, container="matroska"),
    "H.264, shown from its 5th frame on": replace(
        H264, times=tuple((n - 5) * 400 for n in range(60)), muxing={"use_editlist": "1"}
    ),
    "H.264, rotated by 90": replace(H264, rotation=90),
    "H.264, rotated by 180": replace(H264, rotation=180),
    "H.264, rotated by 270": replace(H264, rotation=270),
    "H.264 in avi": replace(H264, container="avi"),
    "HEVC": Film(
        codec="libx265",
        options={
            "preset": "ultrafast",
            "x265-params": f"{X265}:open-gop=0",
        },
    ),
    "HEVC, open GOPs": Film(
        codec="libx265",
        options={
            "preset": "ultrafast",
            "x265-params": f"{X265}:open-gop=1:keyint=20:min-keyint=20",
        },
    ),
    "VP9": Film(
        codec="libvpx-vp9",
        container="webm",
        options={"deadline": "realtime", "cpu-used": "8", "crf": "30", "b": "0", "threads": "1"},
    ),
    "VP9, frames that are not shown": Film(
        codec="libvpx-vp9",
        container="webm",
        options={
            "deadline": "good", "cpu-used": "5", "crf": "30", "b": "0", "threads": "1",
            "auto-alt-ref": "1", "lag-in-frames": "16",
        },
    ),
    "AV1": Film(codec="libsvtav1", options=AV1_OPTIONS),
    "AV1, key frame every 2nd": Film(
        codec="libsvtav1", gop=2, options=AV1_OPTIONS
    ),
    "AV1 in mkv": Film(
        codec="libsvtav1", container="matroska",
        options=AV1_OPTIONS,
    ),
    "MPEG-4": Film(codec="mpeg4", options={"q": "4", "threads": "1"}, gop=12),
    "MPEG-4 in avi": Film(
        codec="mpeg4", container="avi", b_frames=0, gop=12, options={"threads": "1"}
    ),
    "MPEG-4 with B-frames in avi": Film(
        codec="mpeg4", container="avi", gop=12, options={"threads": "1"}
    ),
    "MJPEG in avi": Film(codec="mjpeg", container="avi", pixel_format="yuvj420p", b_frames=0),
    "MJPEG": Film(codec="mjpeg", pixel_format="yuvj420p", b_frames=0),
}  # fmt: skip
"""What is read, by a name that says it."""

# --- frames --------------------------------------------------------------------------------------


@cache
def _photograph(name: str, width: int, height: int) -> Pixels:
    return np.asarray(pictures.photograph(width * 3, height * 2, name))


def picture(number: int, width: int = 128, height: int = 96) -> Pixels:
    """Return a frame: a part of a photograph, with its number in the corner.

    Returns:
        uint8 (height, width, 3). Consecutive ones show parts that lie a few pixels from each other.
    """
    whole = _photograph(PHOTOGRAPHS[number // 500 % len(PHOTOGRAPHS)], width, height)
    across = _to_and_fro(3 * number, 2 * width)
    down = _to_and_fro(number, height)
    found = whole[down : down + height, across : across + width].copy()
    bits = [(number >> place) & 1 for place in reversed(range(BITS))]
    blocks = np.array([*bits, *(1 - bit for bit in bits)], np.uint8).reshape(ROWS, COLUMNS)
    found[: ROWS * BLOCK, : COLUMNS * BLOCK] = np.kron(blocks, np.full((BLOCK, BLOCK), 255))[
        ..., None
    ]
    return found


def _to_and_fro(place: int, length: int) -> int:
    return length - abs(place % (2 * length) - length)


def read_number(frame: npt.NDArray[Any]) -> int:
    """Return the number in a frame's corner.

    Args:
        frame: uint8 (height, width, 3), or (height, width) of luma alone.

    Raises:
        AssertionError: There is none.
    """
    corner = frame[: ROWS * BLOCK, : COLUMNS * BLOCK].astype(np.float64)
    if corner.ndim == 3:
        corner = corner.mean(axis=2)
    means = corner.reshape(ROWS, BLOCK, COLUMNS, BLOCK)[:, 2:-2, :, 2:-2].mean(axis=(1, 3))
    bits = [int(mean > 128) for mean in means.ravel()]
    assert all(a != b for a, b in zip(bits[:BITS], bits[BITS:], strict=True)), (
        f"no number is in this frame's corner: {means.round()}"
    )
    return sum(bit << place for place, bit in enumerate(reversed(bits[:BITS])))


# --- files ---------------------------------------------------------------------------------------


@cache
def film(name: str) -> bytes:
    """Return the file of one of `FILMS`."""
    return written(FILMS[name])


def written(film: Film = H264) -> bytes:
    """Return a video as a file; the same for the same libav."""
    file = io.BytesIO()
    pan = (picture(film.first + n, film.width, film.height) for n in range(film.frames))
    _write(file, film, pan)
    return file.getvalue()


def with_episodes(lengths: Iterable[int], film: Film = H264) -> tuple[bytes, list[Fraction]]:
    """Return one video of several episodes after each other, and where each begins.

    The numbers in its frames count on from episode to episode.

    Returns:
        The file; and in seconds where each episode begins, then where the last one ends.
    """
    lengths = list(lengths)
    starts = [Fraction(n) / film.rate for n in itertools.accumulate(lengths, initial=0)]
    return written(replace(film, frames=sum(lengths))), starts


def with_two_streams() -> bytes:
    """Return a file with two videos of the same times: a small one, then one with more pixels."""
    file = io.BytesIO()
    small, large = (
        io.BytesIO(written(replace(H264, frames=20, width=w, first=f)))
        for w, f in ((128, 0), (256, 1000))
    )
    with av.open(file, "w", format="mp4", options=MUXING) as out:
        inputs = [av.open(each) for each in (small, large)]
        streams = [out.add_stream_from_template(each.streams.video[0]) for each in inputs]
        for each, stream in zip(inputs, streams, strict=True):
            for packet in each.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    out.mux(packet)
            each.close()
    return file.getvalue()


def cut_off(data: bytes, share: float) -> bytes:
    """Return the first part of a file, as a copy that broke off leaves it."""
    return data[: int(len(data) * share)]


def without_frames() -> bytes:
    """Return a video whose stream is declared, and has no frame."""
    return written(replace(H264, frames=0))


@contextlib.contextmanager
def _as_scheduled() -> Iterator[None]:
    """Take back what SVT-AV1 does to the thread that opens it, where that may: `SCHED_FIFO`, 99.

    All that the tests start would inherit it, and such processes leave no time to any other.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


@_as_scheduled()
def _write(file: io.BytesIO, film: Film, pan: Iterator[Pixels]) -> None:
    with av.open(file, "w", format=film.container, options=MUXING | dict(film.muxing)) as out:
        stream = out.add_stream(film.codec, rate=film.rate, options=dict(film.options))
        turns = film.rotation // 90
        turned = turns % 2 == 1
        stream.width, stream.height = (
            (film.height, film.width) if turned else (film.width, film.height)
        )
        stream.pix_fmt = film.pixel_format
        context = stream.codec_context
        context.gop_size = film.gop
        context.max_b_frames = film.b_frames
        context.thread_count = 1
        if film.times:
            context.time_base = Fraction(1, TICKS)
        if film.colours is not None:
            context.colorspace, context.color_range = film.colours
        if turns:
            stream.set_display_rotation(film.rotation)
        for n, pixels in enumerate(pan):
            # A player turns it counterclockwise, so it is coded turned clockwise.
            coded = np.ascontiguousarray(np.rot90(pixels, -turns))
            frame = av.VideoFrame.from_ndarray(coded, format="rgb24")
            matrix, span = film.colours or (None, None)
            frame = frame.reformat(
                format=film.pixel_format, dst_colorspace=matrix, dst_color_range=span
            )
            if film.times:
                frame.pts, frame.time_base = film.times[n], Fraction(1, TICKS)
            else:
                frame.pts, frame.time_base = n, 1 / film.rate
            out.mux(stream.encode(frame))
        if film.frames:
            out.mux(stream.encode(None))
        else:
            out.start_encoding()
