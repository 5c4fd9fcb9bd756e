"""Conversations with pictures: sizes from headers, and what pictures cost by family.

Sizes: 100,000 conversations of two questions and two answers with one JPEG each, which is a file,
by two processes, as an index takes them; the time is that of a clock. 500 different files of 400 to
640 pixels, whose first 64 KiB are read each time.

Pictures: one photograph of scikit-image, as a JPEG of two sizes, in one process; CPU time of
decoding, of what becomes `patches: uint8`, of what that costs more as float32, and of transformers'
own image processor after decoding, where it has one over Pillow.

The trainer: `penstock.client.media.normalized` on a CPU, by dtype.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support import ROUNDS, interleaved, median, spread, table

sys.path.insert(0, str(Path(__file__).parents[1]))

CONVERSATIONS, FILES, PROCESSES = 100_000, 500, 2
SHAPES = ((500, 375), (1920, 1080))
KINDS = ("qwen2_vl", "qwen3_vl", "kimi", "llava")
BIT = "What is on the table beside the window? A cup of tea, and a book that lies open. "


def run() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _print_sizes(folder)
        _print_pictures(folder)
    _print_trainer()


def _photograph(width: int, height: int) -> bytes:
    from PIL import Image
    from skimage import data

    found = Image.fromarray(data.astronaut()).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    found.save(out, "JPEG", quality=90)
    return out.getvalue()


def _turns(number: int) -> list[dict[str, str]]:
    bits = 1 + number % 5
    return [
        {"from": "human", "value": "<image>\n" + BIT * bits},
        {"from": "gpt", "value": BIT * bits},
        {"from": "human", "value": BIT},
        {"from": "gpt", "value": BIT * (1 + number % 3)},
    ]


def _print_sizes(folder: Path) -> None:
    from vision import write_vision_folder

    draw = np.random.default_rng(1)
    for number in range(FILES):
        width, height = draw.integers(400, 641, 2).tolist()
        (folder / f"{number}.jpg").write_bytes(_photograph(width, height))
    rows = []
    for kind in KINDS:
        write_vision_folder(folder / kind, kind)
        share = CONVERSATIONS // PROCESSES
        began = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            totals = pool.starmap(
                _sizes,
                [(folder, kind, part * share, (part + 1) * share) for part in range(PROCESSES)],
            )
        seconds = time.perf_counter() - began
        cpu = sum(each[2] for each in totals)
        rows.append(
            [
                kind,
                f"{seconds:.1f}",
                f"{1e6 * cpu / CONVERSATIONS:.0f}",
                f"{sum(each[0] for each in totals) / 1e6:.1f}",
                f"{sum(each[1] for each in totals) / 1e6:.1f}",
            ]
        )
    table(
        f"Exact sizes of {CONVERSATIONS:,} conversations with a JPEG each, {PROCESSES} processes",
        ["family", "s", "us of CPU each", "M tokens", "M media tokens"],
        rows,
    )


def _sizes(folder: Path, kind: str, start: int, stop: int) -> tuple[int, int, float]:
    from penstock.server.media.medium import HEAD_BYTES, HeldMedium
    from penstock.server.roles import ConversationProcessor

    role = ConversationProcessor(folder / kind)
    tokens = media = 0
    began = time.process_time()
    for number in range(start, stop):
        item = {"conversations": _turns(number), "images": [f"{number % FILES}.jpg"]}
        heads = []
        for path in role.references(item):
            with (folder / path).open("rb") as file:
                heads.append(HeldMedium(path, file.read(HEAD_BYTES)))
        found = role.size(item, heads)
        assert found is not None
        tokens += found.size
        media += found.counts[0]
    return tokens, media, time.process_time() - began


def _print_pictures(folder: Path) -> None:
    import torch
    from PIL import Image

    from penstock.server.media.families.processor_folder import load_family
    from penstock.server.media.image_header import parse_header
    from penstock.server.media.picture import Decoding
    from vision import image_processor

    torch.set_num_threads(1)
    for shape in SHAPES:
        data = _photograph(*shape)
        decode = partial(Decoding().decode, data, parse_header(data, "photograph"), "photograph")
        pixels = decode()
        image = Image.fromarray(pixels)
        ways: dict[str, Callable[[], Mapping[str, float]]] = {"decoding": partial(_timed, decode)}
        for kind in KINDS:
            family = load_family(folder / kind, None, None)
            patches = family.patches(pixels)
            ways[f"{kind}, uint8"] = partial(_timed, family.patches, pixels)
            by_torch = load_family(folder / kind, None, None, "torch")
            ways[f"{kind}, uint8, kernel: torch"] = partial(_timed, by_torch.patches, pixels)
            ways[f"{kind}, from uint8 to float32"] = partial(_timed, family.values, patches)
            if kind != "kimi":
                theirs = image_processor(kind)
                ways[f"{kind}, transformers"] = partial(_timed, theirs, [image])
        results = interleaved(ways, ROUNDS)
        table(
            f"A picture of {shape[0]}x{shape[1]} pixels, ms of CPU, {ROUNDS} rounds",
            ["what", "median", "range"],
            [
                [way, f"{median(rounds, 'ms'):.2f}", spread(rounds, "ms", ".2f")]
                for way, rounds in results.items()
            ],
        )


def _print_trainer() -> None:
    import torch

    from penstock.client import media

    torch.set_num_threads(1)
    pixels = torch.randint(0, 256, (16384, 1176), dtype=torch.uint8)
    norm = np.array([[120.0] * 1176, [70.0] * 1176], np.float32)
    ways: dict[str, Callable[[], Mapping[str, float]]] = {
        str(dtype): partial(_timed, partial(media.normalized, dtype=dtype), pixels, norm)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    results = interleaved(ways, ROUNDS)
    table(
        f"The trainer normalizes {pixels.numel() / 1e6:.0f} MB of patches on one core of a CPU, ms",
        ["dtype", "median", "range"],
        [
            [way, f"{median(rounds, 'ms'):.1f}", spread(rounds, "ms", ".1f")]
            for way, rounds in results.items()
        ],
    )


def _timed(work: Callable[..., Any], *given: Any) -> Mapping[str, float]:
    work(*given)
    count, began = 0, time.process_time()
    while (spent := time.process_time() - began) < 0.2:
        work(*given)
        count += 1
    return {"ms": 1e3 * spent / count}
