"""How frames get the size that a job names: one rule for the processors that decode frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.geometry import Extent, Geometry
from penstock.server.media.resize import load_kernel, resize
from penstock.server.media.video.decoded_frame import DecodedFrame
from penstock.server.media.video.frame_arrays import rgb24_of
from penstock.server.media.video.pixel_memory import PixelMemory
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.roles.processors.picture_sides import extent_of
from penstock.wire.colours import Levels
from penstock.wire.errors import InvalidJob

RGB24, YUV420P = PIXELS = ("rgb24", "yuv420p")
"""What travels of a frame."""

FRAME_RESIZES = ("exact", "shortest", "longest")


class FrameResizing:
    """What parameters of a processor say of the size of frames.

    Args:
        mode: One of `FRAME_RESIZES`; None = frames stay as they are.
        to: Pixels of both sides or of the side that `mode` names, or [height, width].
        kernel: One of `KERNELS`.
        filtering: One of `FILTERS`.
        pixels: One of `PIXELS`.

    Raises:
        InvalidJob: Two of them do not go together; names the parameter of the processor.
    """

    def __init__(
        self,
        mode: str | None,
        to: int | Sequence[int] | None,
        kernel: str,
        filtering: str,
        pixels: str,
    ) -> None:
        _check_together(mode, to, kernel, filtering, pixels)
        self._mode, self._kernel, self._filter = mode, kernel, filtering
        self._geometry = Geometry(mode, extent_of(to))

    @property
    def exact(self) -> Extent | None:
        """Return the size of every frame, where the job alone says it."""
        return self._geometry.size if self._mode == "exact" else None

    def load(self) -> None:
        """Import what resizes, where something is resized.

        Raises:
            MissingExtra: A package is not installed.
        """
        if self._mode is not None:
            load_kernel(self._kernel)

    def size_of(self, picture: Extent, name: str) -> Extent:
        """Return the size of what becomes of a picture.

        Args:
            picture: Its own size.
            name: What errors call it.

        Raises:
            BadPicture: It is so elongated that it would become too large.
        """
        return self._geometry.result(picture, name)

    def size_of_frames(self, index: VideoIndex, name: str) -> Extent:
        """Return the size of what becomes of each frame of a video.

        Args:
            index: Of the video.
            name: What errors call it.

        Raises:
            BadVideo: As `size_of`.
        """
        try:
            return self.size_of(Extent(index.height, index.width), name)
        except BadPicture as error:
            raise BadVideo(str(error)) from error

    def frames(self, frames: Sequence[DecodedFrame], size: Extent, memory: PixelMemory) -> Levels:
        """Return the pixels of frames.

        Args:
            frames: At least one, of one video.
            size: What `size_of_frames` says of the video.
            memory: Where they shall lie.

        Returns:
            uint8 (frames, height, width, 3).

        Raises:
            BadVideo: As `DecodedFrame.rgb24`.
        """
        if self._mode is None:
            return rgb24_of(frames, *size, memory)

        def resized(frame: DecodedFrame) -> Levels:
            return resize(frame.rgb24(), size, self._kernel, self._filter)

        return rgb24_of(frames, *size, memory, resized)

    def picture(self, pixels: np.ndarray, name: str) -> np.ndarray:
        """Return the pixels of a picture that was decoded, by the rule of frames.

        Args:
            pixels: uint8 (height, width, 3).
            name: What errors call it.

        Returns:
            uint8 (height, width, 3), of the size that `size_of` says.

        Raises:
            BadPicture: As `size_of`.
        """
        if self._mode is None:
            return pixels
        size = self.size_of(Extent(*pixels.shape[:2]), name)
        return resize(pixels, size, self._kernel, self._filter)


def _check_together(
    mode: str | None, to: int | Sequence[int] | None, kernel: str, filtering: str, pixels: str
) -> None:
    if (mode is None) != (to is None):
        raise InvalidJob(
            f"resize_to is {to!r} with resize: {mode or 'null'}: give both, or none",
            key="resize_to",
        )
    if mode in ("shortest", "longest") and not isinstance(to, int):
        raise InvalidJob(
            f"resize_to is {to!r}: resize: {mode} takes the pixels of one side", key="resize_to"
        )
    if pixels == YUV420P and mode is not None:
        raise InvalidJob(
            f"resize is {mode!r} with pixels: yuv420p: planes are resized where they become RGB: "
            "leave it out, and say ToRgb(size=) in the trainer",
            key="resize",
        )
    if kernel == "opencv" and filtering != "bilinear":
        raise InvalidJob("filter is 'bicubic', and kernel: opencv has bilinear alone", key="filter")
