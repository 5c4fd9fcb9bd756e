"""A video opened by libav: only formats and codecs that are read, and nothing but its own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.server.files.filesystems import require
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import Medium
from penstock.server.media.video.medium_file import MediumFile

CONTAINERS = {"mov,mp4,m4a,3gp,3g2,mj2": "mp4", "matroska,webm": "mkv or webm", "avi": "avi"}
"""Formats that are read, as libav names them."""

CODECS = {
    "h264": "H.264",
    "hevc": "HEVC",
    "vp9": "VP9",
    "av1": "AV1",
    "mpeg4": "MPEG-4",
    "mjpeg": "MJPEG",
}
"""Codecs that are read, as libav names them."""

MAX_PIXELS = 1 << 26
"""Of a picture: 8,192 x 8,192. A header may claim any size, and memory is taken by it."""

HEADER_BYTES = 256

_DECODERS = "h264,hevc,vp9,libdav1d,av1,mpeg4,mjpeg"

OPTIONS = {
    # A file of another kind may be a list of files, which libav would open.
    "format_whitelist": "mov,matroska,avi",
    "protocol_whitelist": "none",
    "codec_whitelist": _DECODERS,
    "max_pixels": str(MAX_PIXELS),
}

DECODING = {
    "max_pixels": str(MAX_PIXELS),
    # What is damaged is an error, and not a picture with a patch of another one.
    "err_detect": "explode",
}


def load_av() -> Any:
    """Return the package PyAV, imported when it is first needed.

    Raises:
        MissingExtra: It is not installed.
    """
    return require("av", extra="video", who="the processor video")


class OpenVideo:
    """The container of a medium, and the stream of it that is decoded.

    Args:
        medium: The medium.

    Attributes:
        container: Of PyAV.
        stream: Its first stream of video that is not a picture of a cover.
        codec: As libav names it, one of `CODECS`.
        head: Its first bytes.
        size: How many bytes it has.

    Raises:
        BadVideo: It is not a video, or of a kind that is not read.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, medium: Medium) -> None:
        self._av = load_av()
        self._file = MediumFile(medium)
        self.head, self.size = bytes(medium.head(HEADER_BYTES)), medium.size()
        if not self.size:
            raise BadVideo("it is empty")
        try:
            with self.libav():
                self.container = self._av.open(
                    self._file, options=OPTIONS, metadata_errors="replace"
                )
        except BadVideo as error:
            if self.head[4:8] != b"ftyp":
                raise
            raise BadVideo(  # of an mp4, which is written with its table at its end
                f"its table of frames is missing or damaged, as where writing it broke off: {error}"
            ) from error
        try:
            if self.container.format.name not in CONTAINERS:
                raise BadVideo(
                    f"it is {self.container.format.name}, and videos are read of mp4, mkv, webm "
                    "and avi"
                )
            self.stream = self._video_stream()
            self.codec = self._codec()
            context = self.stream.codec_context
            context.thread_count = 1  # workers scale, not decoders
            context.options = {**context.options, **DECODING}
        except BaseException:
            self.close()
            raise

    def _video_stream(self) -> Any:
        streams = self.container.streams
        attached = self._av.stream.Disposition.attached_pic
        found = [stream for stream in streams.video if not stream.disposition & attached]
        if not found:
            kinds = ", ".join(sorted({stream.type for stream in streams})) or "none"
            raise BadVideo(f"it holds no video: its streams are {kinds}")
        return found[0]

    def _codec(self) -> str:
        context = self.stream.codec_context
        name = "unknown" if context is None else str(context.codec.canonical_name)
        if name not in CODECS:
            raise BadVideo(f"its codec is {name}, and videos are read of {_listed(CODECS)}")
        return name

    @contextmanager
    def libav(self) -> Iterator[None]:
        """Turn what libav raises into an error that says it, or the storage's own.

        Raises:
            BadVideo: libav says that the file is damaged, or is none that it knows.
        """
        try:
            yield
        except self._av.error.FFmpegError as error:
            raise self._file.failure or BadVideo(said_by(error)) from error
        if self._file.failure is not None:
            raise self._file.failure

    def packets(self) -> Iterator[Any]:
        """Yield the packets of the stream that hold anything, from where the container is.

        Raises:
            BadVideo: libav finds damage.
        """
        packets = self.container.demux(self.stream)
        while True:
            with self.libav():
                packet = next(packets, None)
            if packet is None:
                return
            if packet.size:
                yield packet

    def decode(self, packet: Any, number: int) -> list[Any]:
        """Return the frames that a packet completes, each with its own packet's number as time.

        Args:
            packet: Of `packets`; None = there are no more.
            number: Its number, which the frame that it holds gets.

        Returns:
            Frames of PyAV, in presentation order.

        Raises:
            BadVideo: libav finds damage.
        """
        if packet is not None:
            packet.pts = number
        with self.libav():
            return list(self.stream.codec_context.decode(packet))

    def close(self) -> None:
        """Close it."""
        self.container.close()


def said_by(error: Exception) -> str:
    """Return what an error of libav says, as a sentence's part."""
    text = str(getattr(error, "strerror", None) or error).rstrip(".")
    return f"it is damaged, or cut off; libav says: {text}"


def _listed(names: dict[str, str]) -> str:
    *most, last = names.values()
    return f"{', '.join(most)} and {last}"
