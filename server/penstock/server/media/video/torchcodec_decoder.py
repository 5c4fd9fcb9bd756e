"""One video that torchcodec decodes: frames found by the times of our own index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import Medium
from penstock.server.media.video.conversion import Yuv
from penstock.server.media.video.decoded_frame import DecodedFrame
from penstock.server.media.video.medium_file import MediumFile
from penstock.server.media.video.torchcodec_package import load_torchcodec
from penstock.server.media.video.video_index import VideoIndex
from penstock.wire.colours import Levels

PYAV_INSTEAD = "take decoder: pyav"

_SOURCE = re.compile(r"^\w+, \S+:\d+, ")
"""What its errors begin with: a function, and a line of its source."""


class RgbFrame(DecodedFrame):
    """A frame that the decoder made RGB of, and turned.

    Args:
        pixels: uint8 (height, width, 3).
        number: Which it is.
        index: Of its video.
    """

    def __init__(self, pixels: Levels, number: int, index: VideoIndex) -> None:
        super().__init__(number, index, pixels.nbytes)
        self._pixels = pixels

    def rgb24(self) -> Levels:
        """Return its pixels: see `DecodedFrame`."""
        return self._pixels

    def yuv420p(self) -> Yuv:
        """Refuse: its planes are gone.

        Raises:
            BadVideo: Always.
        """
        raise BadVideo(f"torchcodec gives RGB alone, and no planes: {PYAV_INSTEAD}")


class TorchcodecDecoder:
    """Gives frames of one video by number, as `FrameDecoder` does.

    torchcodec gets the index's times, and as key frames those with which decoding can begin, so it
    neither scans the file nor begins elsewhere. It does not say which packet a frame was coded in,
    so each frame's time is compared. Frames are asked for one by one, in order: it goes on where it
    is, no thread but the caller's works, and each frame has memory of its own.

    Args:
        medium: The file.
        index: Its index.

    Attributes:
        decoded: Frames that it gave so far. Those that it passed on the way it does not tell.

    Raises:
        BadVideo: It cannot be opened, or its frames cannot be told apart by their times.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        MissingExtra: torchcodec cannot be used.
    """

    def __init__(self, medium: Medium, index: VideoIndex) -> None:
        if not index.says_times or (np.diff(index.times) <= 0).any():
            raise BadVideo(
                "its packets do not say when each frame is shown, or two at one time, and "
                f"torchcodec finds frames by that: {PYAV_INSTEAD}"
            )
        if index.mirrored:
            raise BadVideo(
                f"it is mirrored when it is shown, which torchcodec leaves out: {PYAV_INSTEAD}"
            )
        self._index = index
        self._file = MediumFile(medium)
        self.decoded = 0
        try:
            self._decoder = load_torchcodec().VideoDecoder(
                self._file,
                stream_index=index.stream,
                dimension_order="NHWC",
                num_ffmpeg_threads=1,  # workers scale, not decoders
                device="cpu",
                custom_frame_mappings=_mappings(index),
            )
        except (RuntimeError, IndexError, ValueError) as error:
            raise self._file.failure or BadVideo(_said(error)) from error

    def frames(self, numbers: Sequence[int]) -> Iterator[DecodedFrame]:
        """Yield frames, decoded in one pass.

        Args:
            numbers: Which, rising.

        Yields:
            Those that are wanted, in order.

        Raises:
            BadVideo: One cannot be decoded; it says which.
            BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        """
        for number in numbers:
            try:
                yield self._frame(number)
            except BadVideo as error:
                raise BadVideo(f"{self._index.told(number)} cannot be decoded: {error}") from error

    def close(self) -> None:
        """Close the file."""
        del self._decoder

    def _frame(self, number: int) -> RgbFrame:
        index = self._index
        try:
            found = self._decoder.get_frame_at(number)
        except (RuntimeError, IndexError, ValueError) as error:
            raise self._file.failure or BadVideo(_said(error)) from error
        if self._file.failure is not None:
            raise self._file.failure
        self.decoded += 1
        # Half a tick: times of two frames differ by one at least.
        if abs(found.pts_seconds - index.times_s[number]) > float(index.time_base) / 2:
            raise BadVideo(
                f"torchcodec gives the one that is shown at {found.pts_seconds:.6f} s in its place"
            )
        pixels = found.data.numpy()
        if pixels.shape != (index.height, index.width, 3):
            raise BadVideo(
                f"torchcodec gives {pixels.shape[1]} x {pixels.shape[0]} pixels, and it has "
                f"{index.width} x {index.height}"
            )
        return RgbFrame(np.ascontiguousarray(pixels), number, index)


def _mappings(index: VideoIndex) -> str:
    """Return what torchcodec has to know of each frame, as it takes it."""
    times = index.times.tolist()
    last = max(1, round(1 / (index.rate * index.time_base)))
    ends = [*times[1:], times[-1] + last]
    starts = {0, *index.first_numbers.tolist()}
    frames: list[dict[str, Any]] = [
        {"pts": time, "duration": end - time, "key_frame": int(number in starts)}
        for number, (time, end) in enumerate(zip(times, ends, strict=True))
    ]
    return json.dumps({"frames": frames})


def _said(error: Exception) -> str:
    """Return what an error of torchcodec says, as a sentence's part."""
    text = _SOURCE.sub("", str(error).partition("\n")[0]).rstrip(".")
    return f"it is damaged, or cut off; torchcodec says: {text[:300]}"
