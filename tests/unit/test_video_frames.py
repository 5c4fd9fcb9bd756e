"""Frames by number: each is the one that its corner says, however it is asked for."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import videos
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import HEAD_BYTES, HeldMedium, Medium
from penstock.server.media.video.frame_decoder import FrameDecoder
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.video_frames import VideoFrames, expected_bytes

SEED = random.randrange(1 << 32)

FIRST = {"H.264, shown from its 5th frame on": 5}
"""Files whose first frames are not shown."""

QUICK = (
    "H.264",
    "H.264, open GOPs",
    "H.264, shown from its 5th frame on",
    "H.264, rotated by 90",
    "H.264 in avi",
    "HEVC, open GOPs",
    "AV1, key frame every 2nd",
)


def opened(name: str, data: bytes | None = None) -> HeldMedium:
    return HeldMedium(name, videos.film(name) if data is None else data)


def check_every_frame(name: str) -> None:
    """Read all frames once in order, then one by one in any; each has its number, and its bytes."""
    film, medium = videos.FILMS[name], opened(name)
    index = index_video(medium)
    first = FIRST.get(name, 0)
    frames = VideoFrames(1, 1 << 30, 0)
    assert len(index) == film.frames - first
    assert (index.width, index.height) == (film.width, film.height)
    in_order = [frame.rgb24() for frame in frames.frames(medium, index, range(len(index)))]
    assert [videos.read_number(pixels) - first for pixels in in_order] == [*range(len(index))]
    order = [*range(len(index)), *range(0, len(index), 7)]
    random.Random(SEED).shuffle(order)
    for number in order:
        [frame] = frames.frames(medium, index, [number])
        assert frame.number == number
        assert np.array_equal(frame.rgb24(), in_order[number]), f"{name}: {number}, seed {SEED}"


@pytest.mark.parametrize("name", QUICK)
def test_every_frame_is_the_one_of_its_number(name: str) -> None:
    """Of a file of each kind: with B-frames, open GOPs, an edit list, any rate, any container."""
    check_every_frame(name)


@pytest.mark.parametrize("name", sorted(set(videos.FILMS) - set(QUICK)))
def test_every_frame_of_every_other_file_is_the_one_of_its_number(name: str) -> None:
    """As above, of the kinds that differ less."""
    check_every_frame(name)


def test_a_call_gives_frames_in_the_order_in_which_they_are_named() -> None:
    """Some twice, and from the end to the beginning: decoded once, in one pass."""
    medium = opened("H.264")
    index = index_video(medium)
    frames = VideoFrames(1, 1 << 30, 0)
    wanted = [50, 3, 50, 20, 4]

    found = frames.frames(medium, index, wanted)

    assert [frame.number for frame in found] == wanted
    assert [videos.read_number(frame.rgb24()) for frame in found] == wanted
    assert frames.counts.decoded <= 51 + videos.H264.b_frames + 1
    assert frames.counts.delivered == 5


def test_decoding_goes_on_where_it_is() -> None:
    """Frames that follow each other cost one each, whatever their distance from a key frame."""
    medium = opened("H.264")
    index = index_video(medium)
    frames = VideoFrames(1, 1 << 30, 0)

    for number in range(len(index)):
        frames.frames(medium, index, [number])

    assert frames.counts.decoded == len(index)
    assert (frames.counts.misses, frames.counts.hits) == (1, len(index) - 1)


def test_windows_that_overlap_share_frames() -> None:
    """A frame that is held is not decoded again, and neither is one that was only passed."""
    medium = opened("H.264")
    index = index_video(medium)
    frames = VideoFrames(1, 1 << 30, 64 << 20)

    for start in (40, 44, 36, 0, 20):
        frames.frames(medium, index, range(start, start + 8))

    assert frames.counts.decoded <= 52 + videos.H264.b_frames + 1
    assert frames.counts.delivered == 40
    assert frames.counts.shared == 40 - 12


def test_frames_are_held_within_a_bound() -> None:
    """In bytes; and a frame that exceeds it alone is not held."""
    medium = opened("H.264")
    index = index_video(medium)
    for bound in (0, 1000, 100_000):
        frames = VideoFrames(1, 1 << 30, bound)
        frames.frames(medium, index, range(len(index)))
        assert frames.held_bytes <= bound
    assert frames.held_bytes > 0


def test_videos_that_were_used_longest_ago_are_closed() -> None:
    """Above a number and above bytes; the frames are the same."""
    media = {name: opened(name) for name in ("H.264", "HEVC", "VP9", "AV1")}
    indexes = {name: index_video(medium) for name, medium in media.items()}
    one = expected_bytes(indexes["H.264"])
    rng = random.Random(SEED)
    for decoders, decoder_bytes, most in ((2, 1 << 40, 2), (100, one * 3 + 1000, 3), (9, 1, 1)):
        frames = VideoFrames(decoders, decoder_bytes, 0)
        for _ in range(30):
            name, number = rng.choice([*media]), rng.randrange(60)
            [frame] = frames.frames(media[name], indexes[name], [number])
            assert videos.read_number(frame.rgb24()) == number, f"seed {SEED}"
            assert len(frames) <= most
        assert frames.counts.misses - frames.counts.evictions == len(frames)
        frames.close()
        assert len(frames) == 0


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0, 1, 0), "decoders is 0: give a whole number, 1 or more"),
        ((None, 1, 0), "decoders is None"),
        ((1, None, 0), "decoder_bytes is None"),
        ((1, 1, -1), "frame_bytes is -1: give a whole number, 0 or more"),
        ((1, 1, None), "frame_bytes is None"),
    ],
)
def test_no_bound_is_an_error(bounds: tuple[int, int, int], said: str) -> None:
    """Decoders without one took a worker's memory with every file more."""
    with pytest.raises(ValueError, match=said):
        VideoFrames(*bounds)


def test_two_items_videos_of_one_name_are_two() -> None:
    """What items hold has no name of its own: their bytes tell them apart."""
    later = replace(videos.H264, first=1000)
    one, other = HeldMedium("video", videos.film("H.264")), opened("video", videos.written(later))
    frames = VideoFrames(4, 1 << 30, 64 << 20)

    for medium, first in ((one, 0), (other, 1000)):
        [frame] = frames.frames(medium, index_video(medium), [7])
        assert videos.read_number(frame.rgb24()) == first + 7


def test_planes_are_those_that_were_decoded() -> None:
    """Half of RGB's bytes, turned as the pixels are."""
    for name in ("H.264", "H.264, rotated by 90", "MJPEG"):
        medium = opened(name)
        index = index_video(medium)
        [frame] = VideoFrames(1, 1 << 30, 0).frames(medium, index, [9])

        y, u, v = frame.yuv420p()

        assert videos.read_number(y) == 9
        assert y.shape == (96, 128)
        assert u.shape == v.shape == (48, 64)
        assert y.nbytes + u.nbytes + v.nbytes == frame.rgb24().nbytes // 2


def test_planes_that_are_not_there_are_refused() -> None:
    """Those of 4:4:4, by the name of what there is."""
    medium = opened("H.264, odd size")
    index = index_video(medium)
    [frame] = VideoFrames(1, 1 << 30, 0).frames(medium, index, [9])

    with pytest.raises(BadVideo, match=r"yuv444p, whose chroma yuv420p cannot hold.*rgb24"):
        frame.yuv420p()


class BrokenStore(Medium):
    """A file behind a store that fails when it is told to."""

    def __init__(self, data: bytes) -> None:
        self.name, self.data, self.fails = "far", data, False

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return its first bytes."""
        return self.at(0, count)

    def read(self) -> bytes:
        """Return all of it."""
        return self.at(0, len(self.data))

    def size(self) -> int:
        """Return its bytes."""
        return len(self.data)

    def at(self, start: int, stop: int) -> bytes:
        """Return a part."""
        if self.fails:
            raise ConnectionError("the store is away")
        return self.data[start:stop]


def test_an_error_of_the_store_is_the_stores() -> None:
    """Not damage of the file, and the next call finds the video as if nothing had been."""
    film = replace(videos.FILMS["MJPEG"], width=320, height=240)
    medium = BrokenStore(videos.written(film))
    index = index_video(medium)
    frames = VideoFrames(1, 1 << 30, 0)
    frames.frames(medium, index, [3])

    medium.fails = True
    with pytest.raises(ConnectionError, match="the store is away"):
        frames.frames(medium, index, [50])
    medium.fails = False

    [frame] = frames.frames(medium, index, [50])
    assert videos.read_number(frame.rgb24()) == 50


def test_a_frame_that_cannot_be_decoded_is_named() -> None:
    """With its number and time; those of other groups are read."""
    data = bytearray(videos.film("H.264 in fragments"))
    index = index_video(opened("a", bytes(data)))
    at = int(index.places[12])
    data[at + 60 : at + 400] = bytes(340)
    medium = opened("a", bytes(data))
    frames = VideoFrames(1, 1 << 30, 0)

    with pytest.raises(BadVideo, match=r"frame 14 of 60, shown at 0.533 s, cannot be decoded: it"):
        frames.frames(medium, index, [14])
    for number in (3, 40):
        [frame] = frames.frames(medium, index, [number])
        assert videos.read_number(frame.rgb24()) == number


def test_numbers_beyond_the_end_are_refused() -> None:
    """By both numbers."""
    medium = opened("H.264")
    index = index_video(medium)

    for number in (60, -1):
        with pytest.raises(BadVideo, match=f"frame {number} is wanted, and it has 60"):
            VideoFrames(1, 1 << 30, 0).frames(medium, index, [3, number])


def test_an_index_of_another_file_is_noticed() -> None:
    """Packets are recognized by their places and times."""
    index = index_video(opened("H.264"))

    with pytest.raises(BadVideo, match="its index says"):
        list(FrameDecoder(opened("H.264 in fragments"), index).frames([5]))
