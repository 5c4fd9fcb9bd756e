"""Requests for each frame of videos behind HTTP, 20 ms away: random pairs of frames.

Six files of 300 frames of 640 x 480 with a key frame every 2nd frame, 800 frames, one worker.
`ahead_bytes: 0` is a node that reads where it decodes; with 8 MiB parts are fetched alone, with
64 MiB in chunks. Each is run twice: the first run makes the indexes of the files.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from support import HERE, serving, table, write_job

sys.path.insert(0, str(HERE.parent))

import videos
from far_store import FarStore

FILES, FRAMES, ITEMS, DELAY_S = 6, 300, 400, 0.02


def measure(folder: Path, store: FarStore, ahead_bytes: int) -> tuple[float, float]:
    """Return requests for a frame, and the seconds of a pass."""
    from penstock.client import Loader

    rng = random.Random(3)
    items = []
    for _ in range(ITEMS):
        first = rng.randrange(FRAMES - 1)
        items.append({"video": f"{rng.randrange(FILES)}.mp4", "wanted": [first, first + 1]})
    size = {"resize": "exact", "resize_to": [96, 128]}
    job = {
        "source": {"type": "items", "items": items},
        "processor": {"type": "video", "numbers": "wanted", "frame_bytes": 0, **size},
        "media": {"dir": store.url, "ahead_bytes": ahead_bytes},
        "batch_size": 16,
        "lanes": 1,
        "epochs": 1,
    }
    cache = str(folder / f"cache-{ahead_bytes}")
    file = write_job(folder, {"main": job}, hash_cache=cache)
    before = len(store.asked)
    with serving(file, "--workers", "1") as (address, _), Loader(address, "main") as loader:
        began_s = time.monotonic()
        frames = sum(2 * len(batch["video"]) for batch in loader)
        spent_s = time.monotonic() - began_s
    return (len(store.asked) - before) / frames, spent_s


def run() -> None:
    """Print the table."""
    film = replace(videos.H264, width=640, height=480, frames=FRAMES, gop=2, b_frames=0)
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        folder = Path(name)
        (folder / "far").mkdir()
        for number in range(FILES):
            data = videos.written(replace(film, first=1000 * number))
            (folder / "far" / f"{number}.mp4").write_bytes(data)
        rows = []
        with FarStore(folder / "far", DELAY_S) as store:
            for ahead_bytes in (0, 8 << 20, 64 << 20):
                for label in ("first", "second"):
                    requests, spent_s = measure(folder, store, ahead_bytes)
                    ahead = f"{ahead_bytes >> 20} MiB, {label} run"
                    rows.append((ahead, f"{requests:.3f}", f"{spent_s:.1f}"))
    table("Videos of a far store", ("ahead_bytes", "requests a frame", "seconds"), rows)


if __name__ == "__main__":
    run()
