"""Frames by torchcodec, found by the times of our own index: those of PyAV, by number."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import videos
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import HeldMedium
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.torchcodec_decoder import TorchcodecDecoder
from penstock.server.media.video.torchcodec_package import load_torchcodec
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.roles import RobotProcessor, VideoProcessor
from penstock.server.usercode import libraries
from penstock.wire.errors import InvalidJob, MissingExtra

SEED = random.randrange(1 << 32)


@pytest.fixture
def torchcodec() -> ModuleType:
    """The package; without one that fits, what asks for it is skipped."""
    try:
        load_torchcodec()
    except MissingExtra as error:
        pytest.skip(str(error))
    return importlib.import_module("torchcodec")


def opened(film: str | videos.Film) -> HeldMedium:
    return HeldMedium("film", videos.film(film) if isinstance(film, str) else videos.written(film))


TIMED = [name for name in videos.FILMS if "avi" not in name]
"""Whose packets say when each frame is shown."""

OTHER_LEVELS = {"H.264, odd size": 4, "H.264, 10 bits": 40}
"""How far RGB may be from ours: of 4:4:4, and of more than 8 bits."""

QUICK = ("H.264", "H.264, open GOPs", "H.264, rotated by 180")


def check_frames(name: str) -> None:
    """Compare all frames in order, and some at random, with those of PyAV."""
    medium = opened(name)
    index = index_video(medium)
    ours = VideoFrames(1, 1 << 30, 0).frames(medium, index, range(len(index)))
    theirs = VideoFrames(1, 1 << 30, 0, "torchcodec")
    order = [*range(len(index)), *random.Random(SEED).sample(range(len(index)), len(index))]
    for number in order:
        [frame] = theirs.frames(medium, index, [number])
        assert (frame.number, frame.time_s) == (number, ours[number].time_s)
        away = frame.rgb24().astype(int) - ours[number].rgb24()
        assert abs(away).max() <= OTHER_LEVELS.get(name, 0), f"{name}: {number}, seed {SEED}"


@pytest.mark.parametrize("name", QUICK)
def test_frames_have_the_bytes_of_pyav(name: str, torchcodec: ModuleType) -> None:
    """Each by its number, whatever was asked for before; turned as the file says."""
    check_frames(name)


@pytest.mark.parametrize("name", sorted({*TIMED} - {*QUICK}))
def test_frames_of_every_other_film_have_the_bytes_of_pyav(
    name: str, torchcodec: ModuleType
) -> None:
    """As above; pixels that are not 4:2:0 of 8 bits are others by some levels."""
    check_frames(name)


@pytest.mark.parametrize(("width", "height"), [(130, 98), (99, 66)])
def test_sides_of_any_length_have_the_bytes_of_pyav(
    width: int, height: int, torchcodec: ModuleType
) -> None:
    """Where the height is even: with an odd one libswscale spreads chroma over the picture."""
    medium = opened(replace(videos.FILMS["VP9"], width=width, height=height, frames=4))
    index = index_video(medium)
    [ours], [theirs] = (
        VideoFrames(1, 1 << 30, 0, decoder).frames(medium, index, [2])
        for decoder in ("pyav", "torchcodec")
    )
    assert np.array_equal(ours.rgb24(), theirs.rgb24())


def test_no_thread_but_the_callers_works(torchcodec: ModuleType) -> None:
    """Workers scale, and not decoders."""
    medium = opened(replace(videos.H264, width=330, height=240))
    index = index_video(medium)
    frames = VideoFrames(1, 1 << 30, 0, "torchcodec")
    before = len(list(Path("/proc/self/task").iterdir()))

    frames.frames(medium, index, [3, 40, 41])

    assert len(list(Path("/proc/self/task").iterdir())) == before


def test_a_frame_of_another_time_is_refused(torchcodec: ModuleType) -> None:
    """As of a file that is another one than its index says."""
    later = replace(videos.H264, times=tuple(417 * n for n in range(60)))
    index = index_video(opened("H.264"))

    with pytest.raises(BadVideo, match=r"frame 30 of 60, shown at 1\.000 s, cannot be decoded"):
        list(TorchcodecDecoder(opened(later), index).frames([30]))


def test_the_stream_is_that_of_the_index(torchcodec: ModuleType) -> None:
    """Of a file that holds two it would choose by itself, with the same times in both."""
    medium = HeldMedium("two", videos.with_two_streams())
    index = index_video(medium)

    for decoder in ("pyav", "torchcodec"):
        [frame] = VideoFrames(1, 1 << 30, 0, decoder).frames(medium, index, [7])
        assert frame.rgb24().shape == (index.height, index.width, 3)
        assert videos.read_number(frame.rgb24()) == 7


def test_a_file_without_times_is_refused_by_what_to_take(torchcodec: ModuleType) -> None:
    """An avi says none."""
    medium = opened("H.264 in avi")

    with pytest.raises(BadVideo, match=r"when each frame is shown.*take decoder: pyav"):
        VideoFrames(1, 1 << 30, 0, "torchcodec").frames(medium, index_video(medium), [7])


def test_damage_is_a_bad_video(torchcodec: ModuleType) -> None:
    """And the next call decodes another frame."""
    data = bytearray(videos.film("H.264 in fragments"))
    index = index_video(HeldMedium("film", bytes(data)))
    at = int(index.places[12])
    data[at : at + 4000] = bytes(4000)
    medium = HeldMedium("film", bytes(data))
    frames = VideoFrames(1, 1 << 30, 0, "torchcodec")

    with pytest.raises(BadVideo, match=r"^frame 14 of 60, shown at 0\.533 s.* says: Could not"):
        frames.frames(medium, index, [14])
    [frame] = frames.frames(medium, index, [3])
    assert videos.read_number(frame.rgb24()) == 3


def test_its_versions_are_recorded(torchcodec: ModuleType) -> None:
    """The package's, and those of the FFmpeg that it found, which is not PyAV's."""
    found = libraries.in_use()

    assert found["torchcodec"]
    assert found["libav of torchcodec"].startswith("avcodec ")
    assert found["libav of torchcodec"] != found["libav of av"]


# --- without it ---


@pytest.mark.parametrize("kind", [VideoProcessor, RobotProcessor])
def test_planes_are_refused(kind: type[VideoProcessor | RobotProcessor]) -> None:
    """It gives RGB alone."""
    with pytest.raises(InvalidJob, match=r"torchcodec, which gives RGB alone: take decoder: pyav"):
        kind(decoder="torchcodec", pixels="yuv420p")


def test_a_job_without_it_is_that_of_before() -> None:
    """The parameter is part of a job where it is not the default."""
    assert "decoder" not in VideoProcessor(decoder="pyav").parameters()
    assert VideoProcessor(decoder="torchcodec").parameters()["decoder"] == "torchcodec"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages are found first."""
    held = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("torchcodec")}
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("torchcodec")]:
        del sys.modules[name]
    sys.modules.update(held)


def install(folder: Path, version: str, code: str) -> None:
    """Write a package torchcodec, as pip would."""
    (folder / "torchcodec" / "decoders").mkdir(parents=True)
    (folder / "torchcodec" / "__init__.py").write_text("")
    (folder / "torchcodec" / "decoders" / "__init__.py").write_text(code)
    told = folder / f"torchcodec-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchcodec\nVersion: {version}\n")


OTHER_FFMPEG = """
try:
    raise OSError("libavutil.so.60: cannot open shared object file: No such file or directory")
except OSError as error:
    raise RuntimeError("Could not load libtorchcodec. Likely causes:\\n  1. FFmpeg") from error
"""
OTHER_TORCH = """
raise RuntimeError('''Could not load libtorchcodec. Likely causes:
[start of libtorchcodec loading traceback]
OSError: libavutil.so.60: cannot open shared object file: No such file or directory
OSError: libnvrtc.so.13: cannot open shared object file: No such file or directory
OSError: Could not load this library: /libtorchcodec_core5.so
''')
"""


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [
        ("0.7.0", "", r"torchcodec 0\.7\.0 is installed, and at least 0\.12 is read"),
        ("0.99.0", OTHER_FFMPEG, r"0\.99\.0 cannot be loaded beside \S* ?torch.*libavutil\.so\.60"),
        ("0.99.0", OTHER_TORCH, r"beside \S* ?torch[^(]*\(libnvrtc\.so\.13: cannot open"),
    ],
)
def test_one_that_does_not_fit_is_one_sentence(
    version: str, code: str, said: str, packages: Path
) -> None:
    """With the versions, what its libraries lack, and what to do; before a worker starts."""
    install(packages, version, code)

    with pytest.raises(MissingExtra, match=said) as caught:
        VideoProcessor(decoder="torchcodec").check_identity()

    assert "\n" not in str(caught.value)
    assert "take decoder: pyav" in str(caught.value)


def test_a_missing_one_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a worker starts."""
    monkeypatch.setattr("sys.path", [])
    importlib.invalidate_caches()

    with pytest.raises(MissingExtra, match=r"cannot be used: torchcodec is not installed: install"):
        load_torchcodec()
