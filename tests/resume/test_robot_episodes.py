"""Frames of robots' episodes go on at every offset, with their windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.server.job.job import Job
from penstock.server.roles import (
    CollateContext,
    DefaultBatchCollator,
    MapDistributor,
    SimpleBatcher,
)
from penstock.server.sources import LerobotSource
from penstock.server.testing import check_job
from robots import RobotFolder


def test_every_offset_of_robots_episodes_restores_exactly(tmp_path: Path) -> None:
    """Row groups cut the episodes, so windows reach into the next one."""
    root = str(RobotFolder(lengths=(5, 3, 7, 1, 4), group_rows=4).write(tmp_path / "robots"))

    def make() -> Job:
        return Job(
            LerobotSource(root, delta_timestamps={"action": [-0.1, 0, 0.2]}, episodes=[0, 2, 4]),
            MapDistributor(shuffle="blocks"),
            batcher=SimpleBatcher(3),
            collator=DefaultBatchCollator(),
            lanes=2,
            seed=5,
            name="robots",
        )

    check_job(make, batches=9)


def test_a_batch_holds_the_windows_of_its_frames(tmp_path: Path) -> None:
    """Stacked: (B, T, n) float32, masks (B, T), numbers (B,), tasks as a list."""
    root = str(RobotFolder(cameras=()).write(tmp_path / "robots"))
    source = LerobotSource(root, delta_timestamps={"action": [0, 0.1]})

    context = CollateContext(seed=7, lane=2, offset=5)
    batch = DefaultBatchCollator().collate([[item] for item in source.fetch([3, 6, 26])], context)

    assert batch["action"].dtype == np.float32
    assert batch["action"][:, :, 0].tolist() == [[3, 4], [6, 6], [26, 26]]
    assert batch["action_is_pad"].tolist() == [[False, False], [False, True], [False, True]]
    assert batch["index"].dtype == np.int64
    assert batch["timestamp"].dtype == np.float32
    assert len(batch["task"]) == 3
