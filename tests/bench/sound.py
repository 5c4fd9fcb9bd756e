"""Sound: what a second of it costs in a worker, by format, and what resampling costs.

20 s of two channels at 48 kHz, drawn, lie in memory as files of each format. `soundfile` reads them
as float32 and no more; `sound` is the processor, which also reads headers, checks what libsndfile
does not, and takes the mean of the channels. SciPy's filter is as sharp in one row as penstock's,
and SciPy's default in the other. Sizes are told by headers alone.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support import ROUNDS, Column, compare, interleaved, median, ratio, spread

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import HeldMedium
from penstock.server.media.resample import resample
from penstock.server.roles import ProcessContext, SoundProcessor
from sounds import drawn, written

SECONDS, RATE = 20, 48000
KINDS = ("wav", "flac", "ogg", "opus", "mp3")
PAIRS = ((48000, 16000), (44100, 16000), (44100, 48000), (16000, 48000))


def run() -> None:
    """Print the tables."""
    points = drawn(SECONDS, RATE, 2)
    files = {kind: written(points, RATE, kind) for kind in KINDS}
    ways: dict[str, Callable[[], Mapping[str, float]]] = {}
    for kind, data in files.items():
        ways[f"{kind}, soundfile"] = partial(_timed, partial(_soundfile, data))
        ways[f"{kind}, sound"] = partial(_timed, partial(_process, SoundProcessor(), data))
        to_16 = SoundProcessor(sample_rate=16000)
        ways[f"{kind}, sound to 16 kHz"] = partial(_timed, partial(_process, to_16, data))
    results = interleaved(ways, ROUNDS)
    compare(
        f"Decoding {SECONDS} s of two channels at 48 kHz, CPU time, {ROUNDS} rounds",
        "file, by what",
        results,
        Column(("ms a second",), lambda results, way: [_cell(results, way)]),
        Column(
            ("of soundfile",),
            lambda results, way: [
                ratio(results, way, f"{way.split(',')[0]}, soundfile", "ms"),
            ],
        ),
    )
    _print_resampling()
    sizes: dict[str, Callable[[], Mapping[str, float]]] = {
        kind: partial(_timed, partial(_size, SoundProcessor(tokens_per_second=25), data))
        for kind, data in files.items()
    }
    results = interleaved(sizes, ROUNDS)
    compare(
        f"Sizes from headers, CPU time, {ROUNDS} rounds",
        "file",
        results,
        Column(
            ("us a file",),
            lambda results, way: [f"{1e3 * SECONDS * median(results[way], 'ms'):.0f}"],
        ),
    )


def _print_resampling() -> None:
    from scipy.signal import firwin, resample_poly

    ways: dict[str, Callable[[], Mapping[str, float]]] = {}
    for rate, new_rate in PAIRS:
        points = drawn(SECONDS, rate)[:, 0].copy()
        common = math.gcd(rate, new_rate)
        up, down = new_rate // common, rate // common
        most = max(up, down)
        window = firwin(2 * 64 * most + 1, 0.952 / most, window=("kaiser", 9.66))
        name = f"{rate:,} to {new_rate:,}"
        wide = points.astype(np.float64)
        ways[f"{name}: penstock"] = partial(_timed, partial(resample, points, rate, new_rate))
        ways[f"{name}: SciPy, as sharp"] = partial(
            _timed, partial(resample_poly, wide, up, down, window=window)
        )
        ways[f"{name}: SciPy's default"] = partial(_timed, partial(resample_poly, wide, up, down))
    results = interleaved(ways, ROUNDS)
    compare(
        f"Resampling {SECONDS} s of one channel, CPU time, {ROUNDS} rounds",
        "rates, by what",
        results,
        Column(("ms a second",), lambda results, way: [_cell(results, way)]),
        Column(
            ("of penstock",),
            lambda results, way: [
                ratio(results, way, f"{way.split(':')[0]}: penstock", "ms"),
            ],
        ),
    )


def _cell(results: Any, way: str) -> str:
    return f"{median(results[way], 'ms'):.2f} ({spread(results[way], 'ms', '.2f')})"


def _soundfile(data: bytes) -> None:
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        file.read(dtype="float32", always_2d=True)


def _process(processor: SoundProcessor, data: bytes) -> None:
    media = [HeldMedium("clip", data)]
    processor.process({"audio": data}, ProcessContext(ItemRef("main", 0, 0), 0, media))


def _size(processor: SoundProcessor, data: bytes) -> None:
    processor.size({"audio": data}, [HeldMedium("clip", data)])


def _timed(work: Callable[[], object]) -> Mapping[str, float]:
    """Return the CPU time of a second of sound."""
    work()
    count, began = 0, time.process_time()
    while (spent := time.process_time() - began) < 0.1:
        work()
        count += 1
    return {"ms": 1e3 * spent / count / SECONDS}


if __name__ == "__main__":
    run()
