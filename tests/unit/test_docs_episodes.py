"""docs/episodes.md: its job gives what its table says, and its commands are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from penstock.server.jobs.load import load
from penstock.server.media.geometry import Extent
from penstock.server.pipeline.line import Line
from penstock.server.roles.processors.frame_resizing import RGB24, FrameResizing
from penstock.server.sources.lerobot import REPLACED
from penstock.wire import frame
from penstock.wire.v1.feed_pb2 import BatchHeader
from robots import RobotFolder, video_writer

PAGE = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
[JOB] = re.findall(r"<!-- file: robots.yaml -->\n```yaml\n(.*?)^```", PAGE, re.M | re.S)


def first_batch(folder: Path) -> dict[str, Any]:
    """Return the values of the first batch of the page's job."""
    robots = RobotFolder()
    robots.write(folder / "robots", video_writer(robots.fps))
    (folder / "robots.yaml").write_text(JOB)
    line = Line(load(str(folder / "robots.yaml")).job("robots"), 0)
    made = line.make(line.advance())
    sent = bytearray(made.nbytes)
    header = BatchHeader.FromString(made.write(memoryview(sent)))
    return frame.decode_values(header, frame.completed(header, sent))


def test_the_job_gives_what_the_table_says(tmp_path: Path) -> None:
    """Keys, dtypes and shapes; of the three cameras one stands for two."""
    said: dict[str, tuple[str, tuple[int, ...]]] = {}
    for keys, dtype, shape in re.findall(r"^\| (`.*?`) \| (\w+) \((.*?)\)", PAGE, re.M):
        sides = tuple(int(side) for side in shape.split(",") if side.strip())
        said |= dict.fromkeys(re.findall(r"`(.*?)`", keys), (dtype, sides))
    said["observation.images.top"] = said["observation.images.wrist"]

    values = first_batch(tmp_path)

    assert len(values.pop("task")) == 8
    assert {name: (value.dtype.name, tuple(value.shape)) for name, value in values.items()} == said


def test_settings_that_the_table_replaces_are_refused() -> None:
    """Each name of LeRobot's in the first column that is none of ours has a replacement."""
    table = PAGE[PAGE.index("## Coming from LeRobot") :]
    firsts = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = {word for cell in firsts for word in re.findall(r"\b[a-z]+_[a-z_0-9]+\b", cell)}
    of_the_loop = {"num_workers", "return_uint8"}
    ours = {"delta_timestamps", "tolerance_s"}

    assert {"buffer_size", "max_num_shards", "repo_id"} <= named
    assert named - ours - of_the_loop <= REPLACED.keys()
    assert "rng" in REPLACED


def test_the_job_is_yaml_with_a_pool() -> None:
    [job] = yaml.safe_load(JOB)["jobs"].values()

    assert job["distributor"] == {"type": "episodes", "pool": 1024}
    assert "pool of 1,024 episodes" in PAGE


def test_frames_have_the_sizes_that_the_page_says() -> None:
    """Whatever a camera shows: each row is a rule, each column a camera."""
    table = PAGE.split("## The size of frames")[1].split("\n## ")[0]
    head, _, *rows = re.findall(r"^\|(.*)\|$", table, re.M)
    cameras = [
        Extent(int(height), int(width)) for height, width in re.findall(r"(\d+) x (\d+)", head)
    ]

    for row in rows:
        said = [(int(a), int(b)) for a, b in re.findall(r"\((\d+), (\d+), 3\)", row)]
        given = yaml.safe_load("{" + ", ".join(re.findall(r"`(.*?)`", row)) + "}")
        resizing = FrameResizing(
            given.get("resize"), given.get("resize_to"), "pillow", "bilinear", RGB24
        )
        assert [tuple(resizing.size_of(camera, "a frame")) for camera in cameras] == said, row
    assert len(rows) == 5
    assert len(cameras) == 3
