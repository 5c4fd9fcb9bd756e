"""Robots' episodes through a node: every pixel that arrives is the frame that its number says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import serving, write_job_file
from penstock.client import Loader
from robots import CAMERAS, HEIGHT, WIDTH, RobotFolder, frame_number, video_writer
from videos import read_number

WINDOWS = {CAMERAS[0]: [-0.2, 0.0, 0.1], "action": [0.0, 0.1, 0.2, 0.3]}


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
            check_batch(robots, batch)

    assert sorted(seen) == list(range(robots.frames))


def check_batch(robots: RobotFolder, batch: Any) -> None:
    """Compare all that a batch shows with what its frames' numbers say."""
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
