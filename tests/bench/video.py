"""Frames of videos: what one costs in a worker, in order, at random, and many of one file.

Pans over photographs, 640 x 480, 300 frames, are written as H.264 with a key frame every 250th and
every 2nd frame, and as AV1 with one every 2nd. Every way makes RGB, but for the planes. `PyAV` is a
loop over its frames with one thread for decoding and one for colours; `PyAV, opened per frame` and
`PyAV, seek` seek by the frame's time and decode up to it, the latter with one open container, as
`OpenCV, seek` does by its own count of frames. Where torchcodec is installed and fits, `torchcodec,
batch` asks its decoder for all of them in one call, and `penstock, torchcodec` has `decoder:
torchcodec`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
from support import ROUNDS, SEED, Column, compare, interleaved, median, ratio, spread

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import videos
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.medium import Medium
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.torchcodec_package import load_torchcodec
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.wire.errors import MissingExtra

FRAMES, RANDOM, WANTED = 300, 60, 40

BIG = {"width": 640, "height": 480, "frames": FRAMES}
FILMS = {
    "H.264, key every 250th": replace(videos.H264, **BIG),
    "H.264, key every 2nd": replace(videos.FILMS["H.264, key frame every 2nd"], **BIG),
    "AV1, key every 2nd": replace(videos.FILMS["AV1, key frame every 2nd"], **BIG),
}


def run() -> None:
    """Print the tables."""
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        for number, film in enumerate(FILMS.values()):
            (Path(folder) / f"{number}.mp4").write_bytes(videos.written(film))
        reader = MediaReader(MediaFiles(dir=folder))
        opened: dict[str, tuple[Medium, VideoIndex, str]] = {}
        for number, name in enumerate(FILMS):
            [medium] = reader.media([f"{number}.mp4"])
            opened[name] = medium, index_video(medium), str(Path(folder) / f"{number}.mp4")
        _print("in order, not held", "PyAV", _in_order(opened), FRAMES)
        _print("one by one at random", "PyAV, seek", _at_random(opened), RANDOM)
        _print(f"{WANTED} of one file at once", "PyAV, seek", _wanted(opened), WANTED)


def _print(what: str, base: str, ways: dict[str, Callable[[], object]], frames: int) -> None:
    results = interleaved({way: partial(_timed, work, frames) for way, work in ways.items()})
    compare(
        f"Frames per CPU second, {what}: 640 x 480, {ROUNDS} rounds",
        "file, by what",
        results,
        Column(
            ("frames/s",),
            lambda results, way: [
                f"{median(results[way], 'fps'):,.0f} ({spread(results[way], 'fps', ',.0f')})"
            ],
        ),
        Column(
            (f"of {base}",),
            lambda results, way: [ratio(results, way, f"{way.split(': ')[0]}: {base}", "fps")],
        ),
    )


def _timed(work: Callable[[], object], frames: int) -> Mapping[str, float]:
    began = time.process_time()
    work()
    return {"fps": frames / (time.process_time() - began)}


Opened = Mapping[str, tuple[Medium, VideoIndex, str]]


def _in_order(opened: Opened) -> dict[str, Callable[[], object]]:
    ways: dict[str, Callable[[], object]] = {}
    for name, (medium, index, path) in opened.items():
        each = [[n] for n in range(FRAMES)]
        ways[f"{name}: PyAV"] = partial(_bare, path)
        ways[f"{name}: penstock, one by one"] = partial(_ours, medium, index, each)
        ways[f"{name}: penstock, 30 at once"] = partial(
            _ours, medium, index, [range(n, n + 30) for n in range(0, FRAMES, 30)]
        )
        ways[f"{name}: penstock, planes"] = partial(_ours, medium, index, each, planes=True)
    return ways


def _at_random(opened: Opened) -> dict[str, Callable[[], object]]:
    ways: dict[str, Callable[[], object]] = {}
    draws = random.Random(SEED)
    numbers = [draws.randrange(FRAMES) for _ in range(RANDOM)]
    for name, (medium, index, path) in opened.items():
        each = [[n] for n in numbers]
        ways[f"{name}: PyAV, opened per frame"] = partial(_opened_each, path, index, numbers)
        ways[f"{name}: PyAV, seek"] = partial(_sought, path, index, numbers)
        if not name.startswith("AV1"):  # whose libav has no decoder of it
            ways[f"{name}: OpenCV, seek"] = partial(_by_opencv, path, numbers)
        if has_torchcodec():
            ways[f"{name}: torchcodec, batch"] = partial(_by_torchcodec, path, numbers)
            ways[f"{name}: penstock, torchcodec"] = partial(
                _ours, medium, index, each, decoder="torchcodec"
            )
            ways[f"{name}: penstock, in one call"] = partial(_ours, medium, index, [numbers])
        ways[f"{name}: penstock"] = partial(_ours, medium, index, each)
        ways[f"{name}: penstock, 256 MiB held"] = partial(
            _ours, medium, index, each, held=256 << 20
        )
    return ways


def _wanted(opened: Opened) -> dict[str, Callable[[], object]]:
    name = "H.264, key every 250th"
    medium, index, path = opened[name]
    numbers = random.Random(SEED).sample(range(FRAMES), WANTED)
    return {
        f"{name}: PyAV, seek": partial(_sought, path, index, numbers),
        f"{name}: OpenCV, seek": partial(_by_opencv, path, numbers),
        f"{name}: penstock": partial(_ours, medium, index, [numbers]),
    }


# --- ways ---


def _ours(
    medium: Medium,
    index: VideoIndex,
    calls: Sequence[Sequence[int]],
    *,
    held: int = 0,
    planes: bool = False,
    decoder: str = "pyav",
) -> None:
    frames = VideoFrames(1, 1 << 30, held, decoder)
    for numbers in calls:
        for frame in frames.frames(medium, index, numbers):
            if planes:
                frame.yuv420p()
            else:
                frame.rgb24()
    frames.close()


def _bare(path: str) -> None:
    with av.open(path) as container:
        for frame in _decoded(container):
            frame.to_ndarray(format="rgb24", threads=1)


def _decoded(container: Any) -> Iterator[Any]:
    stream = container.streams.video[0]
    stream.thread_count = 1
    yield from container.decode(stream)


def _opened_each(path: str, index: VideoIndex, numbers: Sequence[int]) -> None:
    for number in numbers:
        _sought(path, index, [number])


def _sought(path: str, index: VideoIndex, numbers: Sequence[int]) -> None:
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        for number in numbers:
            ticks = int(index.times[number])
            container.seek(ticks, stream=stream)
            for frame in container.decode(stream):
                if frame.pts >= ticks:
                    frame.to_ndarray(format="rgb24", threads=1)
                    break


def has_torchcodec() -> bool:
    """Say whether torchcodec can be measured here."""
    try:
        load_torchcodec()
    except MissingExtra:
        return False
    return True


def _by_torchcodec(path: str, numbers: Sequence[int]) -> None:
    decoder = load_torchcodec().VideoDecoder(path, dimension_order="NHWC")
    decoder.get_frames_at(list(numbers))


def _by_opencv(path: str, numbers: Sequence[int]) -> None:
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    for number in numbers:
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        is_read, frame = capture.read()
        if not is_read:
            raise RuntimeError(f"OpenCV reads no frame {number} of {path}")
        cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
    capture.release()


if __name__ == "__main__":
    run()
