"""Frames' pixels: what decoding and conversion cost, and what a trainer pays for planes.

300 frames of H.264, 640 x 480, in order and not kept, in one thread, from memory: `PyAV` are its
own arrays, `frame.to_ndarray(format="rgb24")`, as most programs ask for them; `PyAV, kept` the same
by one `VideoReformatter` without threads; `rgb24` and `yuv420p` the node's. Key frames are 250
apart, or 2.

The trainer: `ToRgb` of 32 such frames in arrays and in tensors of a CPU, with one thread.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from support import ROUNDS, Results, against, compare, interleaved, ranged

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from penstock.client.media import ToRgb
from penstock.server.media.video.conversion import RgbConversion, frame_colours, yuv420p
from videos import H264, written

FRAMES, HEIGHT, WIDTH = 300, 480, 640
BATCH = 32


def run() -> None:
    """Print the tables."""
    for gop, b_frames in ((250, 2), (2, 0)):
        film = replace(H264, width=WIDTH, height=HEIGHT, frames=FRAMES, gop=gop, b_frames=b_frames)
        _print(gop, interleaved(_ways(written(film)), ROUNDS))
    _print_trainer()


def _print(gop: int, results: Results) -> None:
    compare(
        f"{FRAMES} frames of H.264, {WIDTH} x {HEIGHT}, key frames {gop} apart, {ROUNDS} rounds",
        "what is made",
        results,
        ranged("frames a CPU second", "rate", ",.0f"),
        against("of PyAV", "PyAV", "rate"),
        against("of PyAV, kept", "PyAV, kept", "rate"),
    )


def _ways(data: bytes) -> dict[str, Callable[[], Mapping[str, float]]]:
    ways: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
        "PyAV": lambda _: lambda frame: frame.to_ndarray(format="rgb24"),
        "PyAV, kept": _kept,
        "rgb24": lambda first: RgbConversion(frame_colours(first)).rgb24,
        "yuv420p": lambda _: yuv420p,
        "decoding alone": lambda _: lambda frame: frame,
    }
    return {name: partial(_timed, data, way) for name, way in ways.items()}


def _kept(_: Any) -> Callable[[Any], Any]:
    reformatter = av.video.reformatter.VideoReformatter()
    return lambda frame: reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()


def _timed(data: bytes, way: Callable[[Any], Callable[[Any], Any]]) -> Mapping[str, float]:
    began, convert, count = time.process_time(), None, 0
    for frame in _frames(data):
        convert = convert or way(frame)
        convert(frame)
        count += 1
    return {"rate": count / (time.process_time() - began)}


def _frames(data: bytes) -> Iterator[Any]:
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        yield from container.decode(video=0)


def _print_trainer() -> None:
    import torch

    torch.set_num_threads(1)
    chance = np.random.default_rng(0)
    halves = (BATCH, HEIGHT // 2, WIDTH // 2)
    shapes = {"y": (BATCH, HEIGHT, WIDTH), "u": halves, "v": halves}
    batch = {
        f"c.{name}": chance.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()
    }
    batch["c.colours"] = np.full((BATCH, 3), (6, 0, 0), np.uint8)
    tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
    ways: dict[str, Callable[[], Mapping[str, float]]] = {}
    for kind, values in (("arrays", batch), ("tensors", tensors)):
        ways[f"{kind}"] = partial(_at_trainer, ToRgb(), values)
        ways[f"{kind}, interpolated"] = partial(_at_trainer, ToRgb(chroma="bilinear"), values)
        ways[f"{kind}, 224 x 224"] = partial(_at_trainer, ToRgb(size=(224, 224)), values)
    compare(
        f"ToRgb of {BATCH} frames, {WIDTH} x {HEIGHT}, on a CPU, {ROUNDS} rounds",
        "of what",
        interleaved(ways, ROUNDS),
        ranged("ms a frame", "ms", ".2f"),
    )


def _at_trainer(convert: ToRgb, values: Mapping[str, Any]) -> Mapping[str, float]:
    began = time.process_time()
    convert(values)
    return {"ms": 1000 * (time.process_time() - began) / BATCH}


if __name__ == "__main__":
    run()
