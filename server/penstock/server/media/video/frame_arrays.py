"""Frames as the arrays of a sample: each is written where it shall lie, and copied nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller

import numpy as np

from penstock.server.media.media_cpu import CONVERT, spending
from penstock.server.media.video.decoded_frame import DecodedFrame
from penstock.server.media.video.pixel_memory import PixelMemory
from penstock.server.media.video.video_index import VideoIndex
from penstock.wire.colours import COLOURS, PLANES, Levels, chroma_shape


def rgb24_of(
    frames: Sequence[DecodedFrame],
    height: int,
    width: int,
    memory: PixelMemory,
    pixels: Callable[[DecodedFrame], Levels] = methodcaller("rgb24"),
) -> Levels:
    """Return the pixels of frames.

    Args:
        frames: At least one, of one video.
        height: Of what becomes of each, in pixels.
        width: The same.
        memory: Where they shall lie.
        pixels: Makes it of a frame: uint8 (height, width, 3); a frame as it is by default.

    Returns:
        uint8 (frames, height, width, 3).

    Raises:
        BadVideo: As `DecodedFrame.rgb24`.
    """
    found = memory.empty((len(frames), height, width, 3))
    made: dict[int, int] = {}  # a frame that is wanted twice is converted once
    with spending(CONVERT):
        for at, frame in enumerate(frames):
            if (before := made.setdefault(frame.number, at)) < at:
                found[at] = found[before]
            else:
                found[at] = pixels(frame)
    return found


def planes_of(
    frames: Sequence[DecodedFrame], index: VideoIndex, memory: PixelMemory
) -> dict[str, Levels]:
    """Return the planes of frames, with what makes RGB of them.

    Args:
        frames: At least one, of one video.
        index: Of the video.
        memory: Where they shall lie.

    Returns:
        By how keys of samples end: `PLANES`, uint8 (frames, height, width) and twice half of the
        sides, rounded up; and `COLOURS`, uint8 (frames, 3).

    Raises:
        BadVideo: As `DecodedFrame.yuv420p`.
    """
    shapes = (index.height, index.width), *[chroma_shape(index.height, index.width)] * 2
    found = [memory.empty((len(frames), *shape)) for shape in shapes]
    with spending(CONVERT):
        for at, frame in enumerate(frames):
            for plane, levels in zip(found, frame.yuv420p(), strict=True):
                plane[at] = levels
    colours = np.array([int(value) for value in index.colours], np.uint8)
    ends = (*PLANES, COLOURS)
    return dict(zip(ends, (*found, np.tile(colours, (len(frames), 1))), strict=True))
