"""Frames of video from a node to a loop on its host: CPU seconds for each GB, by what takes them.

Six episodes of 40 frames, three cameras, 640 x 480, H.264 with a key frame every 2nd. A batch has
windows of 8 frames of two items: 44 MB as RGB. Clocks start when the node has as many bytes of
batches as it keeps, so that memory is used again. One worker; the loop is a
process of its own with the Loader's defaults, looks at no pixel, and is lent the bodies. `decode`,
`convert` and `copy` are what the worker counts; `rest` is all that the node takes beside it, and
`beyond` all of these but `decode`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from clock import Stopwatch
from support import HERE, ROUNDS, compare, free_port, in_child, interleaved, middle, ranged
from support import node as served

sys.path.append(str(HERE.parent))

LENGTH, STEPS, BATCH, WARM, BATCHES = 40, 8, 2, 120, 40
STAGES = ("decode", "convert", "copy")
FRAME_BYTES = {"rgb24": 3 * 640 * 480, "yuv420p": 3 * 640 * 480 // 2}


def spent_s(metrics: int) -> dict[str, float]:
    """Return the CPU seconds of each stage that a node shows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("penstock_video_cpu_seconds_total{"):
            stage = line.partition('stage="')[2].partition('"')[0]
            found[stage] = found.get(stage, 0.0) + float(line.rpartition(" ")[2])
    return found


def main(address: str, pid: int, metrics: int) -> None:
    """Read with the Loader's defaults; print the CPU seconds for each GB."""
    import torch  # noqa: F401

    from penstock.client import Loader
    from robots import CAMERAS

    nbytes = 0
    watch, before = Stopwatch(pid), dict[str, float]()
    with Loader(address, "main", rank=0, world_size=1) as loader:
        for number, batch in enumerate(loader):
            if number == WARM:
                watch, before, nbytes = Stopwatch(pid), spent_s(metrics), 0
            for key, values in batch.items():
                if key.startswith(CAMERAS) and not key.endswith(("_is_pad", ".colours")):
                    nbytes += sum(value.nbytes for value in values)
            if number == WARM + BATCHES:
                break
        found = watch.read()
        after = spent_s(metrics)
    cpu_s = found["trainer_cpu_s"] + found["server_cpu_s"]
    stages = {stage: after.get(stage, 0.0) - before.get(stage, 0.0) for stage in STAGES}
    told = {**stages, "loop": found["trainer_cpu_s"], "all": cpu_s}
    told["rest"] = found["server_cpu_s"] - sum(stages.values())
    told["beyond"] = cpu_s - stages["decode"]
    print(json.dumps({name: value / (nbytes / 1e9) for name, value in told.items()}))


def measure(root: Path, pixels: str) -> Mapping[str, float]:
    """Serve the folder, and read it in a child."""
    job: dict[str, Any] = {
        "source": {
            "type": "lerobot",
            "root": str(root),
            "delta_timestamps": _windows(),
        },
        "distributor": {"type": "episodes", "pool": 4},
        "processor": {"type": "robot", "pixels": pixels},
        "batch_size": BATCH,
        "collator": "lists",
        "lanes": 1,
    }
    metrics = free_port()
    with served({"main": job}, over="unix", workers=1, metrics=f"127.0.0.1:{metrics}") as (at, pid):
        return in_child("frames_sent", at, pid, metrics)


def _windows() -> dict[str, list[float]]:
    from robots import CAMERAS

    return {name: [step / 10 for step in range(STEPS)] for name in CAMERAS}


def run() -> None:
    """Print the table."""
    from robots import RobotFolder, video_writer

    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        folder = RobotFolder(lengths=(LENGTH,) * 6, tables=(6,) * 3)
        root = folder.write(Path(name) / "robots", video_writer(folder.fps, width=640, height=480))
        ways = {pixels: partial(measure, root, pixels) for pixels in FRAME_BYTES}
        results = interleaved(ways)
    compare(
        f"CPU seconds for each GB of frames at a loop on the node's host, {ROUNDS} rounds",
        "pixels",
        results,
        *(middle(name, name, ".2f") for name in (*STAGES, "rest", "loop")),
        ranged("beyond", "beyond", ".2f"),
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        run()
