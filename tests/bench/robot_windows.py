"""Windows of three cameras from a folder of episodes: items and windows in a CPU second.

Six episodes of 40 frames, 640 x 480 at 10 frames a second, three cameras, H.264 with a key frame
every 2nd; an item has a window of 8 frames of each camera. `at random` draws windows over the whole
folder of which none overlaps another; `in order` takes every 4th frame of an episode, so that half
of a window's frames are also in the next one. Every way makes uint8 RGB, but for LeRobot's readers,
which make float32.

The longest gap is that of a batch of 6 items, without any process that works ahead.

`torchcodec` asks one open decoder of each file for a window in one call. LeRobot's readers are
measured where the package `lerobot` can be imported: so run it by an interpreter that has it, with
`PYTHONPATH=proto:server:client:tests/bench`.
"""

from __future__ import annotations

import importlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from support import ROUNDS, SEED, Column, compare, interleaved, median, middle, ratio, spread

sys.path.append(str(Path(__file__).resolve().parents[1]))
from penstock.common.malloc import keep_memory
from penstock.server.core.refs import ItemRef
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.video.torchcodec_package import load_torchcodec
from penstock.server.roles import ProcessContext, RobotProcessor
from penstock.server.sources import LerobotSource
from penstock.wire.errors import MissingExtra
from robots import CAMERAS, RobotFolder, video_writer

EPISODES, LENGTH, STEPS, ITEMS, BATCH = 6, 40, 8, 12, 6
# All in one file of each camera, and windows of the past: LeRobot's streaming reader (0.4.4) takes
# a frame's number for its time in the file, and asks for one after the last where a window reaches
# over the end.
FOLDER = RobotFolder(lengths=(LENGTH,) * EPISODES, tables=(EPISODES,) * 3)
WINDOWS = {name: [(step - STEPS + 1) / FOLDER.fps for step in range(STEPS)] for name in CAMERAS}


def run() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "robots"
        FOLDER.write(root, video_writer(FOLDER.fps, width=640, height=480))
        apart = range(STEPS - 1, FOLDER.frames, STEPS)  # no window has a frame of another, or a pad
        drawn = random.Random(SEED).sample(apart, len(apart))
        _print("at random, apart", root, drawn[:ITEMS], drawn[ITEMS:])
        others = range(LENGTH + STEPS - 1, FOLDER.frames, STEPS)
        _print("in order, every 4th", root, [*range(STEPS, LENGTH, STEPS // 2)], others)


def _print(what: str, root: Path, order: Sequence[int], before: Sequence[int]) -> None:
    ways: dict[str, Callable[[], Mapping[str, float]]] = {}
    for decoder in ("pyav", "torchcodec") if _has_torchcodec() else ("pyav",):
        ways[f"penstock, {decoder}"] = partial(_ours, root, order, before, decoder)
    base = "penstock, pyav"
    if _has_torchcodec():
        base = "torchcodec"
        ways[base] = partial(_by_torchcodec, root, order)
    if _lerobot() is not None:
        ways["LeRobot, map-style"] = partial(_by_map_style, root, order)
        ways["LeRobot, streaming"] = partial(_by_streaming, root, len(order))
    results = interleaved(ways)
    compare(
        f"Windows of {len(CAMERAS)} cameras, {STEPS} frames each, {what}: {len(order)} items, "
        f"{ROUNDS} rounds",
        "what",
        results,
        Column(
            ("windows/CPU s",),
            lambda found, way: [
                f"{median(found[way], 'rate'):,.1f} ({spread(found[way], 'rate', ',.1f')})"
            ],
        ),
        Column((f"of {base}",), lambda found, way: [ratio(found, way, base, "rate")]),
        middle("longest gap, ms", "gap_ms", ",.0f"),
        Column(("decoded/wanted",), lambda found, way: [f"{median(found[way], 'decoded'):.2f}"]),
    )


def _timed(batches: Iterator[object], windows: int) -> dict[str, float]:
    """Take all batches; of a few dozen gaps the longest one is the 99th percentile."""
    began, at, gaps_s = time.process_time(), time.perf_counter(), [0.0]
    for _ in batches:
        now = time.perf_counter()
        gaps_s.append(now - at)
        at = now
    rate = windows / (time.process_time() - began)
    return {"rate": rate, "gap_ms": 1e3 * max(gaps_s), "decoded": float("nan")}


def _ours(
    root: Path, order: Sequence[int], before: Sequence[int], decoder: str
) -> Mapping[str, float]:
    """Process items in batches, as a worker does whose memory is full of earlier ones."""
    source = LerobotSource(str(root), delta_timestamps=WINDOWS)
    keep_memory()
    reader = MediaReader(MediaFiles(dir=str(root)))
    processor = RobotProcessor(decoder=decoder)

    def work(items: Sequence[Any]) -> Iterator[object]:
        for at in range(0, len(items), BATCH):
            yield processor.process_batch(*_batch(reader, items[at : at + BATCH]))

    for _ in work(source.fetch(before)):
        pass
    items = source.fetch(order)
    counted = replace(processor.frames.counts)
    found = _timed(work(items), len(order) * len(CAMERAS))
    counts = processor.frames.counts
    if decoder == "pyav":  # torchcodec does not tell what it passes
        wanted = counts.delivered - counted.delivered
        found["decoded"] = (counts.decoded - counted.decoded) / wanted
    return found


def _batched(items: Iterator[Any]) -> Iterator[list[Any]]:
    while found := list(islice(items, BATCH)):
        yield found


def _batch(reader: MediaReader, items: Sequence[Any]) -> tuple[Sequence[Any], list[ProcessContext]]:
    contexts = []
    for number, item in enumerate(items):
        media = reader.media(RobotProcessor().references(item))
        contexts.append(ProcessContext(ItemRef("main", number, 0), 7, media))
    return items, contexts


def _by_torchcodec(root: Path, order: Sequence[int]) -> Mapping[str, float]:
    source = LerobotSource(str(root), delta_timestamps=WINDOWS)
    items = source.fetch(order)
    opened: dict[str, Any] = {}

    def window(item: Any) -> list[Any]:
        found = []
        for camera in CAMERAS:
            path = item[camera]["path"]
            if path not in opened:
                opened[path] = load_torchcodec().VideoDecoder(
                    str(root / path), dimension_order="NHWC"
                )
            numbers = [round(time_s * FOLDER.fps) for time_s in item[camera]["times"]]
            found.append(opened[path].get_frames_at(numbers))
        return found

    return _timed(_batched(map(window, items)), len(order) * len(CAMERAS))


def _has_torchcodec() -> bool:
    try:
        load_torchcodec()
    except MissingExtra:
        return False
    return True


# --- LeRobot's ---


def _lerobot() -> Any:
    try:
        return importlib.import_module("lerobot.datasets.lerobot_dataset")
    except ImportError:
        return None


def _by_map_style(root: Path, order: Sequence[int]) -> Mapping[str, float]:
    theirs = _lerobot().LeRobotDataset("bench/robots", root=root, delta_timestamps=WINDOWS)

    return _timed(_batched(theirs[index] for index in order), len(order) * len(CAMERAS))


def _by_streaming(root: Path, count: int) -> Mapping[str, float]:
    """Take items as it gives them; its buffer is as small as a batch, so that it begins soon."""
    module = importlib.import_module("lerobot.datasets.streaming_dataset")
    theirs = module.StreamingLeRobotDataset(
        "bench/robots", root=root, delta_timestamps=WINDOWS, buffer_size=BATCH
    )
    items = iter(theirs)
    next(items)  # its buffer is full then

    return _timed(_batched(islice(items, count)), count * len(CAMERAS))


if __name__ == "__main__":
    run()
