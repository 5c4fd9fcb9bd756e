"""What decodes videos, by the name that a job file has: PyAV, or torchcodec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from penstock.server.media.medium import Medium
from penstock.server.media.video.decoded_frame import DecodedFrame
from penstock.server.media.video.frame_decoder import FrameDecoder
from penstock.server.media.video.open_video import load_av
from penstock.server.media.video.torchcodec_decoder import TorchcodecDecoder
from penstock.server.media.video.torchcodec_package import load_torchcodec
from penstock.server.media.video.video_index import VideoIndex

PYAV, TORCHCODEC = VIDEO_DECODERS = ("pyav", "torchcodec")


class VideoDecoder(Protocol):
    """One video that is open: see `FrameDecoder`.

    Attributes:
        decoded: Frames that were decoded so far, wanted or not, as far as the decoder tells.
    """

    decoded: int

    def frames(self, numbers: Sequence[int]) -> Iterator[DecodedFrame]:
        """Yield frames of rising numbers, and others that were decoded on the way."""

    def close(self) -> None:
        """Close the file."""


def load_decoder(name: str) -> None:
    """Import what a decoder needs; indexes are made by PyAV for each.

    Args:
        name: One of `VIDEO_DECODERS`.

    Raises:
        MissingExtra: A package is missing, or cannot be used.
    """
    load_av()
    if name == TORCHCODEC:
        load_torchcodec()


def open_decoder(name: str, medium: Medium, index: VideoIndex) -> VideoDecoder:
    """Open a video.

    Args:
        name: One of `VIDEO_DECODERS`.
        medium: The file.
        index: Its index.

    Raises:
        BadVideo: It cannot be opened, or is of a kind that this decoder does not read.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        MissingExtra: A package cannot be used.
    """
    if name == TORCHCODEC:
        return TorchcodecDecoder(medium, index)
    return FrameDecoder(medium, index)
