"""JPEG pictures to batches of 32 x 224 x 224, by images per CPU second of all processes.

Two workers on either side: a penstock server and its client, against a DataLoader with Pillow, over
pictures of 500 x 375 and of 1920 x 1080 that lie in a temporary folder. Each way of penstock stands
beside decoding and resizing alone, by the same functions in 2 processes: the difference is what it
adds. tf.data and SPDL, which decode in 2 threads of the training process, are measured where this
interpreter has them, or the one that BENCH_TF_PYTHON or BENCH_SPDL_PYTHON names
(`pip install tensorflow-cpu`, `pip install spdl`).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from images_files import BATCH, SIDE
from support import (
    against,
    compare,
    in_child,
    interleaved,
    middle,
    node,
    python_with,
    ranged,
)

SIZES = {(500, 375): 256, (1920, 1080): 64}
"""Width and height of pictures, and how many there are."""

ITEMS = 32_768
"""Lines that name pictures, each picture many times."""

WAYS: tuple[tuple[str, str], ...] = (
    ("full", "pillow"),
    ("full", "torch"),
    ("2", "torch"),
    ("1", "opencv"),
)
"""`scale` and `kernel`."""


def job(folder: Path, scale: str, kernel: str) -> dict[str, object]:
    """Return the job over the pictures in `folder`."""
    return {
        "source": {"type": "jsonl", "files": str(folder / "items.jsonl")},
        "distributor": {"type": "map", "shuffle": "blocks"},
        "processor": {
            "type": "image",
            "scale": scale if scale == "full" else int(scale),
            "kernel": kernel,
            "resize": "exact",
            "resize_to": SIDE,
        },
        "media": {"dir": str(folder)},
        "batch_size": BATCH,
    }


def write_pictures(folder: Path, width: int, height: int, count: int) -> None:
    """Write parts of photographs that scikit-image ships with, each another one."""
    import numpy as np
    import skimage
    from PIL import Image

    rng = np.random.default_rng(5)
    names = ("motorcycle_left.png", "chelsea.png", "coffee.png", "rocket.jpg", "astronaut.png")
    photographs = []
    for name in names:
        with Image.open(Path(skimage.__file__).parent / "data" / name) as image:
            photographs.append(image.convert("RGB"))
    lines = []
    for number in range(count):
        image = photographs[number % len(photographs)]
        part = rng.uniform(0.6, 1.0)
        across, down = int(image.width * part), int(image.height * part)
        left, top = rng.integers(image.width - across + 1), rng.integers(image.height - down + 1)
        box = (int(left), int(top), int(left) + across, int(top) + down)
        grown = image.resize((width, height), Image.Resampling.BICUBIC, box=box)
        # Enlarged photographs are smooth; sensors are not.
        noisy = np.asarray(grown) + rng.normal(0, 4, (height, width, 3))
        path = folder / f"{number:04}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)
        lines.append(f'{{"image": "{path.name}"}}\n')
    # As many lines as a data set has: orders of a few would be drawn anew all the time.
    (folder / "items.jsonl").write_text("".join(lines * (ITEMS // count)))


def run() -> None:
    """Print a table for each size of pictures."""
    for (width, height), count in SIZES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_pictures(folder, width, height, count)
            nbytes = sum(path.stat().st_size for path in folder.glob("*.jpg")) // count
            _compare(folder, width, f"{width} x {height}, {nbytes // 1000} kB")


def _compare(folder: Path, width: int, what: str) -> None:
    ways: dict[str, Callable[[], Mapping[str, float]]] = {
        "DataLoader, Pillow": partial(in_child, "images_dataloader", folder, width)
    }
    for scale, kernel in WAYS:
        ways[f"{scale}, {kernel}"] = partial(_penstock, folder, width, scale, kernel)
        ways[f"- alone {scale}, {kernel}"] = partial(
            in_child, "images_bare", folder, width, scale, kernel
        )
    if python := python_with("TF", "tensorflow"):
        ways["tf.data"] = partial(in_child, "images_tfdata", folder, width, python=python)
    if python := python_with("SPDL", "spdl.io"):
        ways["SPDL"] = partial(in_child, "images_spdl", folder, width, python=python)
    results = interleaved(ways)
    rate = "images_per_cpu_s"
    compare(
        f"JPEG {what} to {SIDE} x {SIDE}, batches of {BATCH}, by scale and kernel",
        "way",
        results,
        ranged("images/CPU s", rate, ".0f"),
        against("DataLoader", "DataLoader, Pillow", rate),
        against("tf.data", "tf.data", rate),
        against("SPDL", "SPDL", rate),
        middle("CPU ms", "cpu_ms", ".3f"),
        middle("trainer", "trainer_ms", ".3f"),
    )
    for scale, kernel in WAYS:
        way = f"{scale}, {kernel}"
        pairs = zip(results[way], results[f"- alone {way}"], strict=True)
        added = [ours["cpu_ms"] - alone["cpu_ms"] for ours, alone in pairs]
        print(f"  {way}: penstock adds {statistics.median(added):.3f} ms of CPU an image")


def _penstock(folder: Path, width: int, scale: str, kernel: str) -> Mapping[str, Any]:
    with node({"images": job(folder, scale, kernel)}, over="unix", workers=2) as (address, pid):
        return in_child("images_penstock", address, pid, "images", width)


if __name__ == "__main__":
    run()
