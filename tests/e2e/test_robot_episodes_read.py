"""Robots' episodes through a node: every pixel that arrives is the frame that its number says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness import serving, write_job_file
from penstock.client import Loader
from penstock.server.media.geometry import Extent
from penstock.server.media.resize import resize
from robots import CAMERAS, HEIGHT, WIDTH, WINDOWS, RobotFolder, check_shown, video_writer


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_every_frame_arrives_once_with_its_windows(tmp_path: Path, layout: str) -> None:
    """By two workers: three cameras, one of them windowed, episodes that share files."""
    robots = RobotFolder(layout=layout)
    robots.write(tmp_path / "robots", video_writer(robots.fps))
    file = write_job_file(
        tmp_path / "jobs.yaml",
        {
            "main": {
                "source": {"type": "lerobot", "root": "robots", "delta_timestamps": WINDOWS},
                "processor": {"type": "robot"},
                "batch_size": 5,
                "lanes": 2,
                "epochs": 1,
                "seed": 7,
            }
        },
    )
    seen = []

    with serving(file, "--workers", "2") as server, Loader(server.address, "main") as loader:
        for batch in loader:
            if batch.is_padding:
                continue
            seen += [int(index) for index in batch["index"]]
            check_shown(robots, batch)

    assert sorted(seen) == list(range(robots.frames))


def test_cameras_arrive_in_the_size_that_the_job_names(tmp_path: Path) -> None:
    """By two workers: each frame is what the kernel makes of that of a job without `resize`."""
    robots = RobotFolder()
    robots.write(tmp_path / "robots", video_writer(robots.fps))
    job = {
        "source": {"type": "lerobot", "root": "robots", "delta_timestamps": WINDOWS},
        "batch_size": 5,
        "lanes": 2,
        "epochs": 1,
        "seed": 7,
    }
    resized = {"type": "robot", "resize": "exact", "resize_to": [40, 56]}
    file = write_job_file(
        tmp_path / "jobs.yaml",
        {
            "whole": {**job, "processor": {"type": "robot"}},
            "resized": {**job, "processor": resized},
        },
    )
    frames: dict[str, dict[int, list[np.ndarray]]] = {"whole": {}, "resized": {}}

    with serving(file, "--workers", "2") as server:
        for name, found in frames.items():
            with Loader(server.address, name) as loader:
                for batch in loader:
                    if batch.is_padding:
                        continue
                    for at, index in enumerate(np.asarray(batch["index"]).tolist()):
                        shown = [np.asarray(batch[camera][at]) for camera in CAMERAS]
                        found[index] = [frame for each in shown for frame in _single(each)]

    assert sorted(frames["resized"]) == list(range(robots.frames))
    for index, found in frames["resized"].items():
        whole = frames["whole"][index]
        assert {frame.shape for frame in whole} == {(HEIGHT, WIDTH, 3)}
        for frame, of in zip(found, whole, strict=True):
            assert np.array_equal(frame, resize(of, Extent(40, 56), "pillow", "bilinear"))


def _single(shown: np.ndarray) -> list[np.ndarray]:
    return list(shown.reshape(-1, *shown.shape[-3:]))
