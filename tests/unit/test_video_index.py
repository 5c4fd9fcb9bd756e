"""What is known of a video without decoding it: times, numbers, starts, and what it lacks."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import videos
from penstock.server.files import catalog
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.file_medium import FileMedium
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.medium import HeldMedium, Medium
from penstock.server.media.video import video_indexes
from penstock.server.media.video.frame_choice import by_count, by_rate
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.media.video.video_indexes import VideoIndexes


def index_of(name: str) -> VideoIndex:
    return index_video(HeldMedium(name, videos.film(name)))


@pytest.mark.parametrize("name", ["H.264, variable rate", "H.264, variable rate in mkv"])
def test_frames_are_shown_when_they_were_written_to_be(name: str) -> None:
    """At any rate, to the container's tick."""
    index = index_of(name)
    wanted = np.array(videos.UNEVEN) / videos.TICKS
    assert np.abs(index.times_s - wanted).max() <= index.time_base / 2


def test_frames_before_an_edit_list_begins_have_no_number() -> None:
    """They are decoded where others need them, and are not shown."""
    index = index_of("H.264, shown from its 5th frame on")
    assert len(index) == 55
    assert index.times_s[0] == 0
    assert index.numbers[:3].tolist() == [-1, -1, -1]


def test_times_of_an_avi_are_counted() -> None:
    """It has none; and the order of its B-frames is that of decoding."""
    for name in ("H.264 in avi", "MPEG-4 with B-frames in avi", "MJPEG in avi"):
        index = index_of(name)
        assert index.times_s.tolist() == [n / 30 for n in range(60)]
        assert not index.says_times


def test_decoding_begins_where_all_that_follows_is_exact() -> None:
    """Key frames of open GOPs are starts of HEVC, with the frames from them on; not of H.264."""
    hevc, h264 = index_of("HEVC, open GOPs"), index_of("H.264, open GOPs")

    assert hevc.keys.sum() == len(hevc.starts) == 3
    assert [hevc.start_of(number) for number in (0, 19, 20, 39, 40)] == [0, 0, 1, 1, 2]
    assert h264.keys.sum() == 3
    assert h264.starts.tolist() == [0]


@pytest.mark.parametrize("name", ["H.264", "MJPEG", "H.264, rotated by 90", "VP9", "HEVC"])
def test_an_index_comes_back_from_its_bytes(name: str) -> None:
    """All of it, in some bytes for each frame; damage is noticed."""
    index = index_of(name)
    data = index.to_bytes()

    again = VideoIndex.from_bytes(data)

    assert again.digest == index.digest
    assert np.array_equal(again.times, index.times)
    assert again.times.dtype == np.int64
    assert again.keys.dtype == np.bool_
    assert (again.rate, again.colours, again.rotation) == (
        index.rate,
        index.colours,
        index.rotation,
    )
    assert len(data) < 16 * len(index)
    for damaged in (data[:-3], data[:40] + b"abc" + data[43:], b""):
        with pytest.raises(ValueError, match="an index of a video is"):
            VideoIndex.from_bytes(damaged)


# --- by time, rate and count ---


def test_the_nearest_frame_within_tolerance_is_found() -> None:
    """The earlier of two as near; else the distance is told."""
    index = index_of("H.264")

    assert [index.number_at(n / 30, 0) for n in range(60)] == [*range(60)]
    assert index.number_at(0.5 / 30, 0.02) == 0
    assert index.number_at(0.51 / 30, 0.02) == 1
    with pytest.raises(
        BadVideo,
        match=r"at 2\.100000 s: the nearest, number 59 of 60, is shown at 1\.966667 s, 0\.133333 s",
    ):
        index.number_at(2.1, 1e-4)
    for time_s in (-0.001, float("nan"), float("inf")):
        with pytest.raises(BadVideo, match="no frame is shown at"):
            index.number_at(time_s, 1e-4)


def test_episodes_of_one_file_have_their_own_frames() -> None:
    """A frame is found by its episode's beginning and its place in it."""
    lengths = [7, 19, 1, 12]
    data, starts_s = videos.with_episodes(lengths)
    medium = HeldMedium("episodes", data)
    index = index_video(medium)
    frames = VideoFrames(1, 1 << 30, 0)

    for episode, length in enumerate(lengths):
        wanted = [index.number_at(starts_s[episode] + n / 30, 1e-4) for n in range(length)]
        found = [videos.read_number(f.rgb24()) for f in frames.frames(medium, index, wanted)]
        assert found == [sum(lengths[:episode]) + n for n in range(length)]


def test_a_rate_takes_frames_at_even_times() -> None:
    """Whatever the container rounds; a rate above the video's own repeats some."""
    for name in ("H.264", "H.264 in mkv", "VP9"):
        index = index_of(name)
        assert by_rate(index, 30) == [*range(60)]
        assert by_rate(index, 10) == [*range(0, 60, 3)]
    assert by_rate(index_of("H.264"), 60) == [n // 2 for n in range(120)]
    assert by_rate(index_of("H.264"), 0.1) == [0]
    assert by_rate(index_of("H.264, one frame"), 90) == [0, 0, 0]
    assert by_rate(index_of("H.264"), 7)[:4] == [0, 4, 9, 13]


def test_a_count_takes_the_first_the_last_and_even_ones_between() -> None:
    """As numpy's linspace, rounded; more than there are is refused by both numbers."""
    index = index_of("H.264")
    for count in range(1, 61):
        wanted = np.linspace(0, 59, count) if count > 1 else np.zeros(1)
        found = by_count(index, count)
        assert np.abs(np.array(found) - wanted).max() <= 0.5 + 1e-9
        assert len(set(found)) == count
    with pytest.raises(BadVideo, match="nframes is 61, and it has 60 frames"):
        by_count(index, 61)


# --- files that lack something ---


def test_what_is_cut_off_has_the_frames_before_the_first_gap() -> None:
    """With their numbers and times, at every cut, and the file says that it is broken."""
    for name in ("H.264 in mkv", "H.264 in fragments", "H.264 in avi", "VP9", "MJPEG in avi"):
        whole, data = index_of(name), videos.film(name)
        for share in (0.3, 0.5, 0.77, 0.96):
            medium = HeldMedium(name, videos.cut_off(data, share))
            try:
                index = index_video(medium)
            except BadVideo as error:  # an avi of which only the header is left
                assert "no frame" in str(error) or "cut off" in str(error)  # noqa: PT017
                continue
            assert index.broken
            assert 0 < len(index) < len(whole)
            assert np.array_equal(index.times, whole.times[: len(index)])
            found = VideoFrames(1, 1 << 30, 0).frames(medium, index, range(len(index)))
            assert [videos.read_number(f.rgb24()) for f in found] == [*range(len(index))]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b"no video at all" * 99, "libav says: Invalid data"),
        (b"#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:1,\n/etc/passwd\n", "libav says"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "libav says"),
        (videos.without_frames(), "it holds no video"),
        (videos.cut_off(videos.film("H.264"), 0.6), "its table of frames is missing or damaged"),
    ],
    ids=["nothing", "text", "a playlist", "a list of files", "no frames", "no table"],
)
def test_what_is_no_video_is_refused(data: bytes, said: str) -> None:
    """No other file is opened for it."""
    with pytest.raises(BadVideo, match=said):
        index_video(HeldMedium("a", data))


def test_other_codecs_are_refused_by_name() -> None:
    """With those that are read."""
    prores = videos.written(
        replace(
            videos.H264, codec="prores", options={}, pixel_format="yuv422p10le", container="mov"
        )
    )
    with pytest.raises(
        BadVideo, match=r"its codec is prores, and videos are read of H.264, HEVC, VP9, AV1, MPEG-4"
    ):
        index_video(HeldMedium("a", prores))
    other = videos.written(
        replace(videos.FILMS["VP9"], codec="libvpx", container="ivf", frames=3, options={})
    )
    with pytest.raises(BadVideo, match="libav says"):
        index_video(HeldMedium("a", other))


# --- kept ---


def test_an_index_is_made_once_for_a_version_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And found by other processes; another version has another one; damage is made anew."""
    folder = tmp_path
    monkeypatch.setattr(catalog, "_kept", [folder / "kept"])
    (folder / "media").mkdir()
    path = folder / "media" / "a.mp4"
    path.write_bytes(videos.film("H.264"))
    made = []

    def counting(medium: Medium) -> VideoIndex:
        made.append(medium.name)
        return index_video(medium)

    monkeypatch.setattr(video_indexes, "index_video", counting)

    def look() -> int:
        [medium] = MediaReader(MediaFiles(dir=str(folder / "media"))).media(["a.mp4"])
        assert isinstance(medium, FileMedium)
        indexes = VideoIndexes()
        assert indexes.of(medium) is indexes.of(medium)
        return len(indexes.of(medium))

    assert (look(), look(), len(made)) == (60, 60, 1)
    path.write_bytes(videos.film("H.264, one frame"))
    os.utime(path, ns=(1, 1))
    assert (look(), look(), len(made)) == (1, 1, 2)
    for file in (folder / "kept").iterdir():
        file.write_bytes(file.read_bytes()[:-5])
    assert (look(), look(), len(made)) == (1, 1, 3)


def test_indexes_are_held_within_a_bound() -> None:
    """In bytes; the last one always."""
    indexes = VideoIndexes(most_bytes=5_000)
    for name in ("H.264", "HEVC", "MJPEG", "AV1"):
        medium = HeldMedium(name, videos.film(name))
        first = indexes.of(medium)
        assert indexes.of(medium) is first
    assert indexes.held_bytes <= 5_000


def test_the_rate_is_the_files() -> None:
    """As a fraction."""
    film = replace(videos.H264, rate=Fraction(24000, 1001), frames=5)
    assert index_video(HeldMedium("a", videos.written(film))).rate == Fraction(24000, 1001)
