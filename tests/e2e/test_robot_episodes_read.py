"""Robots' episodes through a node: every pixel that arrives is the frame that its number says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import serving, write_job_file
from penstock.client import Loader
from robots import WINDOWS, RobotFolder, check_shown, video_writer


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
