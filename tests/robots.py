"""LeRobot folders for tests, in both layouts, written here from what the formats' pages say.

Values tell where they are from: `action[k]` of frame `i` of the folder is `i + k / 8`, exact in
float32, so a window shows at a glance which frames it holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

TASKS = ("pick up the cube", "put it into the box", "wave")
CAMERAS = ("observation.images.front", "observation.images.wrist", "observation.images.top")
HEIGHT, WIDTH = 96, 128

WINDOWS = {CAMERAS[0]: [-0.2, 0.0, 0.1], "action": [0.0, 0.1, 0.2, 0.3]}
"""Of the jobs whose batches `check_shown` compares."""

VideoWriter = Callable[[Path, str, Sequence[int]], None]
"""Writes a video's frames: its path, its camera, and the `index` of each of its frames."""


@dataclass(frozen=True)
class RobotFolder:
    """What a folder is like.

    Attributes:
        lengths: Frames of each episode.
        layout: `v2.1` or `v3.0`.
        fps: Frames a second.
        cameras: The features of cameras that are videos.
        tables: How many episodes each data file has in v3.0, and each video file of the first
            camera; other cameras have other numbers, so that spans differ between them.
        group_rows: Rows of each row group; None = one group per file, 0 = one per episode.
        extra: Columns more of the tables, by name: a value of each frame.
        declared: Features more: what `info.json` says of them, and a value of each frame.
        compression: Of the tables.
    """

    lengths: Sequence[int] = (7, 4, 9, 1, 6)
    layout: str = "v3.0"
    fps: int = 10
    cameras: Sequence[str] = CAMERAS
    tables: Sequence[int] = (2, 3)
    group_rows: int | None = 0
    extra: dict[str, Callable[[int], Any]] = field(default_factory=dict)
    declared: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = field(default_factory=dict)
    compression: str = "snappy"

    @property
    def frames(self) -> int:
        """Return how many frames there are."""
        return sum(self.lengths)

    @property
    def starts(self) -> list[int]:
        """Return the first frame of each episode, and the number of all."""
        return [0, *accumulate(self.lengths)]

    def task_of(self, episode: int, frame: int) -> int:
        """Return the number of a frame's task: those of a long episode change on the way."""
        return (episode + (frame >= 6)) % len(TASKS)

    # --- tables ---

    def rows(self, episode: int) -> dict[str, list[Any]]:
        """Return the columns of an episode's frames."""
        start, length = self.starts[episode], self.lengths[episode]
        index = range(start, start + length)
        columns = {
            "action": [[i + k / 8 for k in range(4)] for i in index],
            "observation.state": [[-i - k / 8 for k in range(2)] for i in index],
            "next.reward": [i / 4 for i in index],
            "next.done": [at == length - 1 for at in range(length)],
            "timestamp": [at / self.fps for at in range(length)],
            "frame_index": list(range(length)),
            "episode_index": [episode] * length,
            "index": list(index),
            "task_index": [self.task_of(episode, at) for at in range(length)],
        }
        for name, (_, value) in self.declared.items():
            columns[name] = [value(i) for i in index]
        for name, value in self.extra.items():
            columns[name] = [value(i) for i in index]
        return columns

    def features(self) -> dict[str, dict[str, Any]]:
        """Return what `info.json` declares."""
        found: dict[str, dict[str, Any]] = {
            "action": {"dtype": "float32", "shape": [4], "names": None},
            "observation.state": {"dtype": "float64", "shape": [2], "names": None},
        }
        for camera in self.cameras:
            names = ["height", "width", "channels"]
            found[camera] = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": names}
        for name, dtype in (
            ("next.reward", "float32"),
            ("next.done", "bool"),
            ("timestamp", "float32"),
            ("frame_index", "int64"),
            ("episode_index", "int64"),
            ("index", "int64"),
            ("task_index", "int64"),
        ):
            found[name] = {"dtype": dtype, "shape": [1], "names": None}
        return {**found, **{name: said for name, (said, _) in self.declared.items()}}

    def table(self, episodes: Sequence[int]) -> Any:
        """Return the frames of some episodes as a table."""
        import pyarrow as pa

        found = []
        for episode in episodes:
            columns: dict[str, Any] = {}
            for name, values in self.rows(episode).items():
                columns[name] = pa.array(values, _arrow_type(self.features().get(name)))
            found.append(pa.table(columns))
        return pa.concat_tables(found)

    def write_table(self, path: Path, episodes: Sequence[int]) -> None:
        """Write the frames of some episodes into a file, in its row groups."""
        import pyarrow.parquet as pq

        path.parent.mkdir(parents=True, exist_ok=True)
        table = self.table(episodes)
        if self.group_rows is None:
            pq.write_table(table, path, row_group_size=1 << 20, compression=self.compression)
        elif self.group_rows:
            pq.write_table(
                table, path, row_group_size=self.group_rows, compression=self.compression
            )
        else:
            with pq.ParquetWriter(path, table.schema, compression=self.compression) as writer:
                for episode in episodes:
                    writer.write_table(self.table([episode]))

    # --- folders ---

    def write(self, root: Path, write_video: VideoWriter | None = None) -> Path:
        """Write the folder.

        Args:
            root: An empty folder, or none.
            write_video: Writes the videos; None = they are left out.

        Returns:
            The folder.
        """
        (root / "meta").mkdir(parents=True)
        write = self._write_v3 if self.layout == "v3.0" else self._write_v2
        info = {
            "codebase_version": self.layout,
            "robot_type": "arm",
            "total_episodes": len(self.lengths),
            "total_frames": self.frames,
            "total_tasks": len(TASKS),
            "chunks_size": 1000 if self.layout == "v3.0" else 2,
            "fps": self.fps,
            "splits": {"train": f"0:{len(self.lengths)}"},
            "features": self.features(),
            **write(root, write_video or (lambda *_: None)),
        }
        (root / "meta" / "info.json").write_text(json.dumps(info, indent=4))
        return root

    def _write_v2(self, root: Path, write_video: VideoWriter) -> dict[str, Any]:
        episodes, stats = [], []
        for episode, length in enumerate(self.lengths):
            tasks = [TASKS[t] for t in self._tasks(episode)]
            episodes.append({"episode_index": episode, "tasks": tasks, "length": length})
            stats.append({"episode_index": episode, "stats": self.stats([episode])})
            chunk = f"chunk-{episode // 2:03d}"
            self.write_table(root / "data" / chunk / f"episode_{episode:06d}.parquet", [episode])
            for camera in self.cameras:
                path = root / "videos" / chunk / camera / f"episode_{episode:06d}.mp4"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_video(path, camera, range(*self.starts[episode : episode + 2]))
        tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
        for name, rows in (("episodes", episodes), ("tasks", tasks), ("episodes_stats", stats)):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (root / "meta" / f"{name}.jsonl").write_text(lines)
        return {
            "total_videos": len(self.lengths) * len(self.cameras),
            "total_chunks": (len(self.lengths) + 1) // 2,
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": (
                "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
            ),
        }

    def _write_v3(self, root: Path, write_video: VideoWriter) -> dict[str, Any]:
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = []
        for episode, length in enumerate(self.lengths):
            start = self.starts[episode]
            rows.append(
                {
                    "episode_index": episode,
                    "tasks": [TASKS[t] for t in self._tasks(episode)],
                    "length": length,
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": episode // 3,
                    "dataset_from_index": start,
                    "dataset_to_index": start + length,
                    "stats/action/mean": self.stats([episode])["action"]["mean"],
                }
            )
        for file, episodes in enumerate(self.parts(self.tables)):
            name = f"chunk-000/file-{file:03d}"
            self.write_table(root / "data" / f"{name}.parquet", episodes)
            for episode in episodes:
                rows[episode] |= {"data/chunk_index": 0, "data/file_index": file}
        for number, camera in enumerate(self.cameras):
            for file, episodes in enumerate(self.parts([*self.tables, 1][number % 3 :])):
                path = root / "videos" / camera / f"chunk-000/file-{file:03d}.mp4"
                path.parent.mkdir(parents=True, exist_ok=True)
                frames = [i for e in episodes for i in range(*self.starts[e : e + 2])]
                write_video(path, camera, frames)
                at = 0
                for episode in episodes:
                    end = at + self.lengths[episode]
                    rows[episode] |= {
                        f"videos/{camera}/chunk_index": 0,
                        f"videos/{camera}/file_index": file,
                        f"videos/{camera}/from_timestamp": at / self.fps,
                        f"videos/{camera}/to_timestamp": end / self.fps,
                    }
                    at = end
        for file in range(0, len(rows), 3):
            path = root / "meta" / "episodes" / "chunk-000" / f"file-{file // 3:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows[file : file + 3]), path)
        # As pandas writes it, with the texts as the index: LeRobot's own reader asks for that.
        tasks = pd.DataFrame({"task_index": range(len(TASKS))}, index=pd.Index(TASKS, name="task"))
        tasks.to_parquet(root / "meta/tasks.parquet")
        everything = self.stats(range(len(self.lengths)))
        (root / "meta" / "stats.json").write_text(json.dumps(everything))
        return {
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 500,
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        }

    def parts(self, sizes: Sequence[int]) -> list[list[int]]:
        """Return which episodes each file has: as many as `sizes` say, in turn."""
        found: list[list[int]] = []
        at = 0
        while at < len(self.lengths):
            size = sizes[len(found) % len(sizes)]
            found.append(list(range(at, min(at + size, len(self.lengths)))))
            at += size
        return found

    def _tasks(self, episode: int) -> list[int]:
        return sorted({self.task_of(episode, at) for at in range(self.lengths[episode])})

    def stats(self, episodes: Sequence[int]) -> dict[str, dict[str, list[float]]]:
        """Return the statistics of `action` in some episodes."""
        values = np.array([row for e in episodes for row in self.rows(e)["action"]])
        return {
            "action": {
                "min": values.min(0).tolist(),
                "max": values.max(0).tolist(),
                "mean": values.mean(0).tolist(),
                "std": values.std(0).tolist(),
                "count": [len(values)],
            }
        }


def _arrow_type(declared: dict[str, Any] | None) -> Any:
    """Return the type by which LeRobot stores a feature; None = as Arrow finds it."""
    import pyarrow as pa

    if declared is None or declared["dtype"] in ("string", "image", "language"):
        return None
    kind = pa.bool_() if declared["dtype"] == "bool" else pa.type_for_alias(declared["dtype"])
    shape = declared["shape"]
    if shape == [1]:
        return kind
    for side in reversed(shape):
        kind = pa.list_(kind, side if side and len(shape) == 1 else -1)
    return kind


def frame_number(camera: str, index: int) -> int:
    """Return the number in the corner of what a camera shows in a frame: each has its own."""
    return index + 1000 * CAMERAS.index(camera)


def video_writer(fps: int, **film: Any) -> VideoWriter:
    """Return what writes videos, with the number of each frame in its corner (needs av).

    Args:
        fps: Frames a second.
        film: What else of `videos.Film` is not H.264 with a key frame every 2nd.
    """
    from fractions import Fraction

    import videos

    settings = {"gop": 2, "b_frames": 0, "width": WIDTH, "height": HEIGHT, **film}

    def write(path: Path, camera: str, frames: Sequence[int]) -> None:
        first = frame_number(camera, frames[0])
        one = replace(videos.H264, rate=Fraction(fps), frames=len(frames), first=first, **settings)
        path.write_bytes(videos.written(one))

    return write


def check_shown(robots: RobotFolder, batch: Any) -> None:
    """Compare all that a batch with `WINDOWS` shows with what its frames' numbers say.

    Args:
        robots: The folder that it is of.
        batch: Its values: frames of videos in RGB, stacked.
    """
    from videos import read_number

    count = len(batch["index"])
    assert batch[CAMERAS[0]].shape == (count, 3, HEIGHT, WIDTH, 3)
    assert batch[CAMERAS[1]].shape == (count, HEIGHT, WIDTH, 3)
    for at, index in enumerate(np.asarray(batch["index"]).tolist()):
        episode = int(batch["episode_index"][at])
        start, stop = robots.starts[episode], robots.starts[episode + 1]
        wanted = [index - 2, index, index + 1]
        numbers = [frame_number(CAMERAS[0], min(max(i, start), stop - 1)) for i in wanted]
        assert [read_number(np.asarray(f)) for f in batch[CAMERAS[0]][at]] == numbers
        pads = np.asarray(batch[f"{CAMERAS[0]}_is_pad"][at]).tolist()
        assert pads == [not start <= i < stop for i in wanted]
        for camera in CAMERAS[1:]:
            shown = read_number(np.asarray(batch[camera][at]))
            assert shown == frame_number(camera, index)
        ahead = [min(index + k, stop - 1) for k in range(4)]
        assert np.asarray(batch["action"][at])[:, 0].tolist() == ahead
