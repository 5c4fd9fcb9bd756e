"""What opening a LeRobot folder of many episodes takes: CPU seconds and peak memory.

Each row is a process of its own, so that its peak is that of this row alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from support import table

sys.path.append(str(Path(__file__).resolve().parents[1]))
from robots import CAMERAS, TASKS, RobotFolder

EPISODES, LENGTH, TABLES, PER_VIDEO = 32_000, 60, 100, 50
SEPARATE = 4_000

ROWS = {
    "Python and packages": "",
    "meta, v3.0": "LerobotMeta(root, None)",
    "first time, v3.0": "LerobotSource(root).fingerprint()",
    "after that, v3.0": "LerobotSource(root).fingerprint()",
    "first time, v2.1": "LerobotSource(root).fingerprint()",
    "after that, v2.1": "LerobotSource(root).fingerprint()",
}


def write(root: Path) -> None:
    """Write `EPISODES` episodes in `TABLES` tables, with statistics, and no videos."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    per = EPISODES // TABLES
    frame = np.tile(np.arange(LENGTH), per)
    for file in range(TABLES):
        path = root / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        episode = np.repeat(np.arange(file * per, (file + 1) * per), LENGTH)
        numbers = pa.array(rng.random(len(episode) * 4, dtype=np.float32))
        state = pa.array(rng.random(len(episode) * 2))
        found = pa.table(
            {
                "action": pa.FixedSizeListArray.from_arrays(numbers, 4),
                "observation.state": pa.FixedSizeListArray.from_arrays(state, 2),
                "next.reward": pa.array(frame.astype(np.float32)),
                "next.done": pa.array(frame == LENGTH - 1),
                "timestamp": pa.array((frame / 10).astype(np.float32)),
                "frame_index": pa.array(frame),
                "episode_index": pa.array(episode),
                "index": pa.array(episode * LENGTH + frame),
                "task_index": pa.array(episode % len(TASKS)),
            }
        )
        with pq.ParquetWriter(path, found.schema) as writer:
            for number in range(per):
                writer.write_table(found.slice(number * LENGTH, LENGTH))
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    rows = [_episode(number, per, rng) for number in range(EPISODES)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1000)
    tasks = {"task_index": list(range(len(TASKS))), "task": list(TASKS)}
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    info = {
        "codebase_version": "v3.0",
        "total_episodes": EPISODES,
        "total_frames": EPISODES * LENGTH,
        "fps": 10,
        "features": RobotFolder().features(),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info))


def _episode(number: int, per: int, rng: np.random.Generator) -> dict[str, Any]:
    row: dict[str, Any] = {
        "episode_index": number,
        "tasks": [TASKS[number % len(TASKS)]],
        "length": LENGTH,
        "data/chunk_index": 0,
        "data/file_index": number // per,
        "dataset_from_index": number * LENGTH,
        "dataset_to_index": (number + 1) * LENGTH,
    }
    for camera in CAMERAS:
        begin_s = number % PER_VIDEO * LENGTH / 10
        row |= {
            f"videos/{camera}/chunk_index": 0,
            f"videos/{camera}/file_index": number // PER_VIDEO,
            f"videos/{camera}/from_timestamp": begin_s,
            f"videos/{camera}/to_timestamp": begin_s + LENGTH / 10,
        }
    for feature in ("action", "observation.state", *CAMERAS, "timestamp"):
        for name in ("min", "max", "mean", "std", "q01", "q50", "q99"):
            row[f"stats/{feature}/{name}"] = rng.random(4).tolist()
    return row


CODE = """
import sys, time
import pyarrow.dataset, pyarrow.parquet
from penstock.server.sources import LerobotSource
from penstock.server.sources.lerobot_episodes import LerobotMeta
root = sys.argv[1]
before = time.process_time()
{}
cpu_s = time.process_time() - before
with open("/proc/self/status") as file:  # what getrusage tells begins with the parent's peak
    peak_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(cpu_s, peak_kib / 1024)
"""


def measured(code: str, root: Path, cache: Path) -> tuple[float, float]:
    """Return CPU seconds and the peak in MB of a process that does it."""
    environment = {**os.environ, "PENSTOCK_HASH_CACHE": str(cache)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(code), str(root)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    cpu_s, peak_mb = map(float, done.stdout.split())
    return cpu_s, peak_mb


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        roots = {"v3.0": folder / "shared", "v2.1": folder / "apart"}
        write(roots["v3.0"])
        RobotFolder((10,) * SEPARATE, "v2.1").write(roots["v2.1"])
        found = []
        for row, code in ROWS.items():
            root = roots.get(row[-4:], folder)
            cpu_s, peak_mb = measured(code, root, folder / f"cache {row[-4:]}")
            episodes = {"v3.0": EPISODES, "v2.1": SEPARATE}.get(row[-4:], 0)
            found.append((row, f"{episodes:,}", f"{cpu_s:.2f}", f"{peak_mb:.0f}"))
    table("Opening a LeRobot folder", ("", "episodes", "CPU seconds", "peak MB"), found)


if __name__ == "__main__":
    run()
