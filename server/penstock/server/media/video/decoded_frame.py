"""One frame of a video, as it is shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.video.conversion import (
    RgbConversion,
    UnsupportedPixels,
    Yuv,
    yuv420p,
)
from penstock.server.media.video.video_index import VideoIndex
from penstock.wire.colours import Levels


class DecodedFrame(ABC):
    """A frame, of whichever decoder.

    Args:
        number: Which it is.
        index: Of its video.
        nbytes: Bytes that it holds.

    Attributes:
        number: The same.
        time_s: When it is shown, in seconds of the file's clock.
        nbytes: The same.
    """

    def __init__(self, number: int, index: VideoIndex, nbytes: int) -> None:
        self.number, self.time_s = number, float(index.times_s[number])
        self.nbytes = nbytes

    @abstractmethod
    def rgb24(self) -> Levels:
        """Return its pixels.

        Returns:
            uint8 (height, width, 3), contiguous.

        Raises:
            BadVideo: Its format is not known.
        """

    @abstractmethod
    def yuv420p(self) -> Yuv:
        """Return its planes of luma and chroma as they were decoded.

        Returns:
            uint8 (height, width), and twice half of that, rounded up: as a rule views of the
            decoder's memory, which must not be written to.

        Raises:
            BadVideo: Its format is not one of these planes, or it is turned and its size is odd:
                then samples of chroma do not lie in the middle of 2x2 of luma any more.
        """


class PlanarFrame(DecodedFrame):
    """A frame as libav decoded it: its pixels are made when they are asked for, each time anew.

    Args:
        frame: Of PyAV; it is held, and not changed.
        number: Which it is.
        index: Of its video.
        conversion: Makes RGB of frames of its video.

    Raises:
        BadVideo: It has another size or format than the first one.
    """

    def __init__(
        self, frame: Any, number: int, index: VideoIndex, conversion: RgbConversion
    ) -> None:
        super().__init__(number, index, sum(plane.buffer_size for plane in frame.planes))
        self._frame, self._index, self._conversion = frame, index, conversion
        size = (frame.height, frame.width) if index.turns % 2 else (frame.width, frame.height)
        found = (*size, frame.format.name)
        if found != (index.width, index.height, index.pixel_format):
            raise BadVideo(
                f"frame {number:,} is {found[0]} x {found[1]} of {found[2]}, and the first one "
                f"{index.width} x {index.height} of {index.pixel_format}: write it anew in one size"
            )

    def rgb24(self) -> Levels:
        """Return its pixels: see `DecodedFrame`."""
        try:
            pixels = self._conversion.rgb24(self._frame)
        except UnsupportedPixels as error:
            raise BadVideo(str(error)) from error
        return np.ascontiguousarray(self._turned(pixels))

    def yuv420p(self) -> Yuv:
        """Return its planes: see `DecodedFrame`."""
        index = self._index
        if (index.turns or index.mirrored) and (index.width % 2 or index.height % 2):
            raise BadVideo(
                f"it is {index.width} x {index.height} and turned when it is shown, and planes of "
                "an odd size cannot be: take pixels: rgb24"
            )
        try:
            planes = yuv420p(self._frame)
        except UnsupportedPixels as error:
            raise BadVideo(str(error)) from error
        return Yuv(*map(self._turned, planes))

    def _turned(self, pixels: Levels) -> Levels:
        if self._index.mirrored:
            pixels = pixels[:, ::-1]
        return np.rot90(pixels, self._index.turns) if self._index.turns else pixels
