"""LeRobot's own reader reads the folders of these tests, and gives the same samples.

The package is no dependency and brings many; without it the test is skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ProcessContext, RobotProcessor
from penstock.server.sources import LerobotSource
from robots import CAMERAS, RobotFolder, video_writer

WINDOWS = {"action": [-0.1, 0.0, 0.1, 0.5], CAMERAS[0]: [-0.2, 0.0]}


def test_the_package_gives_the_same_samples(tmp_path: Path) -> None:
    """Keys, dtypes, shapes and values of every frame; pixels within what decoders round."""
    module = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="the package lerobot is not installed"
    )
    robots = RobotFolder()
    root = robots.write(tmp_path / "robots", video_writer(robots.fps))
    theirs = module.LeRobotDataset("tests/robots", root=root, delta_timestamps=WINDOWS)
    source = LerobotSource(str(root), delta_timestamps=WINDOWS)

    assert len(theirs) == len(source)
    for index in range(len(source)):
        compare(sample_of(source, root, index), theirs[index])


def sample_of(source: LerobotSource, root: Path, index: int) -> dict[str, Any]:
    processor = RobotProcessor()
    [item] = source.fetch([index])
    media = [
        HeldMedium(each["path"], (root / each["path"]).read_bytes())
        for each in processor.references(item)
    ]
    return processor.process(item, ProcessContext(ItemRef("main", index, 0), 7, media))


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare two samples; theirs has pixels as float32 from 0 to 1, channels first."""
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        if name == "task":
            assert ours[name] == value
        elif name in CAMERAS:
            pixels = np.moveaxis(value.numpy() * 255, -3, -1)
            assert pixels.shape == ours[name].shape
            assert np.abs(pixels - ours[name]).max() <= 3, name
        else:
            assert value.numpy().dtype == ours[name].dtype, name
            assert np.array_equal(value.numpy(), ours[name]), name
