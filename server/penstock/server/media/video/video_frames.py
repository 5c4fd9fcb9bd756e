"""The open videos of a process, and the frames that were decoded last; both are bounded."""

from __future__ import annotations

import gc
import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from penstock.common.malloc import release_memory
from penstock.server.media.media_cpu import DECODE, spending
from penstock.server.media.medium import Medium
from penstock.server.media.video.decoded_frame import DecodedFrame
from penstock.server.media.video.frame_counts import FrameCounts
from penstock.server.media.video.pixel_memory import PixelMemory
from penstock.server.media.video.video_decoders import PYAV, VideoDecoder, open_decoder
from penstock.server.media.video.video_index import VideoIndex

HELD_FRAMES = 20
"""Pictures that a decoder may hold by itself: 16 that others are coded from (ITU-T H.264, A.3.1),
and those in work."""


LEAST_CLOSED = 16
"""Videos that are closed before their memory is collected: that takes some 20 ms."""


class VideoFrames:
    """Gives frames of videos by number; for one thread at a time.

    Videos that were used last stay open, so that decoding goes on where it was. All frames that
    were decoded last are held, also those that were only passed on the way from a key frame: so
    windows that overlap share them, and so do the items of a batch, and of batches after it, that
    want frames of one file. Which bytes a frame has depends on neither.

    Args:
        decoders: The most videos that are open, at least 1.
        decoder_bytes: The most bytes that these take by estimate; one is always open.
        frame_bytes: The most bytes of frames that are held for later calls; 0 = none.
        decoder: What decodes, one of `VIDEO_DECODERS`.

    Attributes:
        counts: What was done so far.
        pixels: Where what becomes of frames shall lie.

    Raises:
        ValueError: A bound is none, or below what it must be.
    """

    def __init__(
        self, decoders: int, decoder_bytes: int, frame_bytes: int, decoder: str = PYAV
    ) -> None:
        for name, bound, least in (
            ("decoders", decoders, 1),
            ("decoder_bytes", decoder_bytes, 1),
            ("frame_bytes", frame_bytes, 0),
        ):
            if not isinstance(bound, int) or isinstance(bound, bool) or bound < least:
                raise ValueError(f"{name} is {bound!r}: give a whole number, {least} or more")
        self._most, self._most_bytes, self._frame_bytes = decoders, decoder_bytes, frame_bytes
        self._decoder = decoder
        self._open: OrderedDict[str, tuple[VideoDecoder, int]] = OrderedDict()
        self._open_bytes = self._opened_bytes = 0  # now, and added up over all that were opened
        self._closed = 0  # since their memory was collected
        self._held: OrderedDict[tuple[str, int], DecodedFrame] = OrderedDict()
        self._held_bytes = 0
        self.counts = FrameCounts()
        self.pixels = PixelMemory()

    def frames(
        self, medium: Medium, index: VideoIndex, numbers: Sequence[int]
    ) -> list[DecodedFrame]:
        """Return frames in the order in which they are named; those named twice are one.

        What must be decoded is, in one pass in presentation order.

        Args:
            medium: The file.
            index: Its index.
            numbers: Which.

        Raises:
            BadVideo: One is not there, or cannot be decoded.
            BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        """
        for number in numbers:
            index.check_number(number)
        key = video_key(medium, index)
        found: dict[int, DecodedFrame] = {}
        for number in dict.fromkeys(numbers):
            if (held := self._held.get((key, number))) is not None:
                self._held.move_to_end((key, number))
                found[number] = held
        self.counts.delivered += len(numbers)
        self.counts.shared += sum(number in found for number in numbers)
        if missing := sorted(set(numbers) - found.keys()):
            with spending(DECODE):
                found |= self._decoded(key, medium, index, missing)
        return [found[number] for number in numbers]

    def lacks(self, medium: Medium, index: VideoIndex, numbers: Sequence[int]) -> list[int]:
        """Return which of these frames would have to be decoded now."""
        key = video_key(medium, index)
        return [number for number in numbers if (key, number) not in self._held]

    def close(self) -> None:
        """Close all videos, and release all frames."""
        while self._open:
            self._close(next(iter(self._open)))
        self._held.clear()
        self._held_bytes = 0

    def __len__(self) -> int:
        """Return how many videos are open."""
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of frames are held."""
        return self._held_bytes

    @property
    def most_bytes(self) -> int:
        """Return what open videos, held frames and idle memory may take, by the videos seen."""
        opened = self.counts.misses
        each = self._opened_bytes / opened if opened else self._most_bytes
        held = self._frame_bytes + self.pixels.most_idle_bytes
        return held + round(min(self._most_bytes, self._most * each))

    # --- decoding ---

    def _decoded(
        self, key: str, medium: Medium, index: VideoIndex, missing: list[int]
    ) -> dict[int, DecodedFrame]:
        decoder = self._opened(key, medium, index)
        wanted, before = set(missing), decoder.decoded
        found: dict[int, DecodedFrame] = {}
        try:
            for frame in decoder.frames(missing):
                if frame.number in wanted:
                    found[frame.number] = frame
                self._hold(key, frame)
        except Exception:
            self._close(key)  # nobody knows where it stands
            raise
        finally:
            self.counts.decoded += decoder.decoded - before
        return found

    def _opened(self, key: str, medium: Medium, index: VideoIndex) -> VideoDecoder:
        if key in self._open:
            self.counts.hits += 1
            self._open.move_to_end(key)
            return self._open[key][0]
        self.counts.misses += 1
        takes = expected_bytes(index)
        while self._open and (
            len(self._open) >= self._most or self._open_bytes + takes > self._most_bytes
        ):
            self._close(next(iter(self._open)))
            self.counts.evictions += 1
        decoder = open_decoder(self._decoder, medium, index)
        self._open[key] = decoder, takes
        self._open_bytes += takes
        self._opened_bytes += takes
        return decoder

    def _close(self, key: str) -> None:
        decoder, takes = self._open.pop(key)
        self._open_bytes -= takes
        decoder.close()
        # PyAV's containers and streams name each other, so that their decoders' pictures stay until
        # Python looks for such rings, which it does once many more objects are there.
        self._closed += 1
        if self._closed >= max(self._most, LEAST_CLOSED):
            self._closed = 0
            del decoder
            gc.collect()
            release_memory()  # glibc's heap has holes then, and grew by 100 MB in 2,000 videos

    def _hold(self, key: str, frame: DecodedFrame) -> None:
        if frame.nbytes > self._frame_bytes or (key, frame.number) in self._held:
            return
        self._held[key, frame.number] = frame
        self._held_bytes += frame.nbytes
        while self._held_bytes > self._frame_bytes:
            _, oldest = self._held.popitem(last=False)
            self._held_bytes -= oldest.nbytes


def video_key(medium: Medium, index: VideoIndex) -> str:
    """Return what tells a video apart from others: its name, and its content as far as known.

    An item that holds a video itself gives it no name of its own, so its bytes tell.
    """
    if type(medium).at is not Medium.at:
        return f"{index.digest} {medium.name}"
    return hashlib.blake2b(medium.read(), digest_size=16).hexdigest()


def expected_bytes(index: VideoIndex) -> int:
    """Return how many bytes an open video takes by estimate: pictures, its table, and buffers."""
    picture = 3 * index.width * index.height * (2 if "le" in index.pixel_format else 1)
    return HELD_FRAMES * picture + 100 * len(index.decoding_times) + (1 << 20)
