"""`penstockd init` on videos and on LeRobot folders: jobs that run unedited."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import videos
from harness import ENVIRONMENT, run_command
from penstock.client import Loader
from penstock.server.cli import run
from robots import CAMERAS, HEIGHT, WIDTH, RobotFolder, video_writer

COUNT = 8


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")
    return tmp_path


def clip(number: int) -> bytes:
    """Return a video of ten frames, of a container that `number` chooses."""
    container, codec = (("mp4", "libx264"), ("matroska", "libx264"), ("avi", "mpeg4"))[number % 3]
    options = videos.H264.options if codec == "libx264" else {}
    film = replace(videos.H264, codec=codec, options=options, container=container, b_frames=0)
    return videos.written(replace(film, frames=10, first=100 * number))


def write_clips(home: Path) -> list[dict[str, Any]]:
    """Write a folder of them, in folders; return rows that name them."""
    rows = []
    for number in range(COUNT):
        name = f"{'ab'[number % 2]}/{number}{('.mp4', '.MKV', '.avi')[number % 3]}"
        path = home / "data" / "clips" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(clip(number))
        rows.append({"video": name, "caption": f"number {number}"})
    return rows


def names(home: Path) -> list[str]:
    rows = write_clips(home)
    (home / "data" / "clips.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["data/clips.jsonl"]


def folder(home: Path) -> list[str]:
    write_clips(home)
    return ["data/clips"]


def held(home: Path) -> list[str]:
    rows = [
        {"film": {"bytes": clip(n), "path": None}, "caption": f"number {n}"} for n in range(COUNT)
    ]
    pq.write_table(pa.Table.from_pylist(rows), home / "rows.parquet")
    return ["rows.parquet"]


@pytest.mark.parametrize(
    ("write", "source", "media", "beside"),
    [
        (names, "jsonl", {"dir": "data/clips"}, "caption"),
        (folder, "folder", None, "label"),
        (held, "parquet", None, "caption"),
    ],
)
def test_videos_become_frames(
    write: Any, source: str, media: Any, beside: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight of each, of what names or holds them, and what is beside them comes along."""
    assert run(["init", *write(home), "--batch-size", "4"]) == 0, capsys.readouterr().err
    with Loader("local:penstock.yaml", "main", as_numpy=True) as loader:
        batch = next(iter(loader))

    assert "8 frames each" in capsys.readouterr().out
    job = yaml.safe_load((home / "penstock.yaml").read_text())["jobs"]["main"]
    assert job["source"]["type"] == source
    assert job["processor"]["type"] == "video"
    assert job.get("media") == media
    assert set(batch) == {"video", "frame_numbers", "frame_times", beside}
    assert [frames.shape for frames in batch["video"]] == [(8, 224, 298, 3)] * 4
    assert list(batch["frame_numbers"][0]) == [0, 1, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize(
    ("layout", "root"), [("v2.1", "robots"), ("v3.0", "robots"), ("v3.0", "file://{home}/robots")]
)
def test_a_folder_of_robots_becomes_batches_of_frames(
    layout: str, root: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the window and the size that comments show can be taken as they are."""
    robots = RobotFolder(layout=layout)
    robots.write(home / "robots", video_writer(robots.fps))
    root = root.format(home=home)

    assert run(["init", f"{root}/"]) == 0, capsys.readouterr().err
    text = (home / "penstock.yaml").read_text()
    (home / "windows.yaml").write_text(text.replace("# delta_timestamps", "delta_timestamps"))
    (home / "sizes.yaml").write_text(text.replace("# resize", "resize"))
    assert run(["check", "penstock.yaml"]) == 0, capsys.readouterr().err
    found = {}
    for name in ("penstock", "windows", "sizes"):
        with Loader(f"local:{name}.yaml", "main", as_numpy=True) as loader:
            found[name] = next(iter(loader))

    assert "frames of 5 episodes of robots" in capsys.readouterr().out
    job = yaml.safe_load(text)["jobs"]["main"]
    assert job["source"]["type"] == "lerobot"
    assert job["source"]["root"].rstrip("/") == root
    assert job["distributor"]["type"] == "episodes"
    assert job["processor"] == {"type": "robot"}
    assert found["penstock"]["action"].shape == (8, 4)
    assert found["windows"]["action"].shape == (8, 4, 4)
    for camera in CAMERAS:
        assert found["penstock"][camera].shape == (8, HEIGHT, WIDTH, 3)
        assert found["penstock"][camera].dtype == np.uint8
        assert found["sizes"][camera].shape == (8, 224, 224, 3)


def test_features_of_other_lengths_come_as_lists(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without cameras, whose frames differ in what they hold, needs another collator."""
    ragged = {"touches": ({"dtype": "float32", "shape": [-1], "names": None}, lambda i: [1.0] * i)}
    RobotFolder(cameras=(), declared=ragged).write(home / "robots")

    assert run(["init", "robots"]) == 0, capsys.readouterr().err

    assert "cameras none" in capsys.readouterr().out
    job = yaml.safe_load((home / "penstock.yaml").read_text())["jobs"]["main"]
    assert job["collator"] == "lists"


@pytest.mark.parametrize("of", ["videos", "robots"])
def test_the_missing_decoder_is_named(of: str, home: Path) -> None:
    """In one sentence, with what installs it; nothing is wrong with the file that was written."""
    given = names(home)[0]
    if of == "robots":
        robots = RobotFolder()
        given = str(robots.write(home / "robots", video_writer(robots.fps)))
    # A package of this name that is found first, in workers too, and says that it is not there.
    (home / "none").mkdir()
    (home / "none" / "av.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'av'\", name='av')\n"
    )

    ended = run_command(
        ["penstock.server.cli", "init", given],
        environment={**ENVIRONMENT, "PYTHONPATH": str(home / "none")},
    )

    assert ended.returncode != 0
    said = ended.stderr
    assert "pip install 'penstock[video]'" in said
    assert "change it there" not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["robots", "--max-tokens", "8"], "--batch-size says how many frames a batch has"),
        (["robots", "--column", "task"], "choose features with --source 'features=[action]'"),
        (["robots", "--media", "videos"], "--source video_root=DIR says it"),
        (["robots", "--tokenizer", "t.json"], "task is a text"),
        (["robots", "more"], "is a folder that is read as one"),
        (["file:///nowhere/at/all"], "is one that has meta/info.json in it"),
        (["https://example.org/robots"], "on a store that lists its files"),
        (["film.mp4"], "is one picture, sound or video: name its folder"),
    ],
)
def test_what_does_not_go_with_them_is_refused(
    arguments: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in one sentence with the way on, and nothing is written."""
    RobotFolder(cameras=()).write(home / "robots")
    (home / "more").mkdir()
    (home / "film.mp4").write_bytes(clip(0))

    assert run(["init", *arguments]) == 2

    assert said in capsys.readouterr().err
    assert not (home / "penstock.yaml").exists()
