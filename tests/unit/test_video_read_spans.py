"""What is read of a video is known before it is decoded, from its index."""

from __future__ import annotations

import os
import random

import pytest

import videos
from penstock.server.media.medium import HEAD_BYTES, HeldMedium
from penstock.server.media.video.frame_decoder import FrameDecoder
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.read_spans import joined, spans_of

SEED = int(os.environ.get("VIDEO_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


class Fetched(HeldMedium):
    """A file of which parts are there, as those that were fetched ahead; notes what else is read.

    Attributes:
        missed: Bytes that were read, and not there.
    """

    def __init__(self, data: bytes, spans: list[tuple[int, int]]) -> None:
        super().__init__("a.mp4", data)
        self._spans, self.missed = spans, 0

    @property
    def is_far(self) -> bool:
        """Tell that it is."""
        return True

    def head(self, count: int = HEAD_BYTES) -> bytes | memoryview:
        """Return its first bytes."""
        return self.at(0, min(count, self.size()))

    def at(self, start: int, stop: int) -> bytes | memoryview:
        """Return bytes, and note those that are not there."""
        there = sum(max(0, min(stop, end) - max(start, begin)) for begin, end in self._spans)
        self.missed += stop - start - there
        return super().at(start, stop)

    def available(self, start: int, stop: int) -> bytes | memoryview:
        """Return what is there, else all."""
        for begin, end in self._spans:
            if begin <= start < end:
                return super().at(start, min(stop, end))
        return self.at(start, stop)


@pytest.mark.parametrize("name", [*videos.FILMS])
def test_decoding_reads_what_the_index_says(name: str) -> None:
    """Any frame, by a decoder that is just opened; of most files a part, and no other byte."""
    data = videos.film(name)
    index = index_video(HeldMedium("a.mp4", data))
    rng = random.Random(SEED)

    for number in (rng.randrange(len(index)), len(index) - 1):
        spans = spans_of(index, [number], len(data))
        medium = Fetched(data, spans)
        decoder = FrameDecoder(medium, index)
        frames = {frame.number for frame in decoder.frames([number])}
        decoder.close()

        assert number in frames
        assert medium.missed == 0, f"{name}, frame {number}, seed {SEED}: {spans}"
        assert spans[-1][1] <= len(data)


def test_frames_between_near_starts_need_little() -> None:
    """Of a large file with a key frame every 2nd frame, far less than all."""
    film = videos.Film(
        **{**vars(videos.FILMS["H.264, key frame every 2nd"]), "width": 640, "height": 480}
    )
    data = videos.written(film)
    index = index_video(HeldMedium("a.mp4", data))

    spans = spans_of(index, [30, 31], len(data))

    assert sum(stop - start for start, stop in spans) < len(data) / 2
    assert spans == joined(spans)
    assert joined([(5, 5), (200_000, 200_001), (0, 10), (10, 20)]) == [(0, 20), (200_000, 200_001)]
