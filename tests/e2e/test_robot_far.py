"""Robots' episodes whose videos lie behind a URL: the same bytes, few requests, clear errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from far_store import FarStore
from harness import serving, write_job_file
from penstock.client import Loader
from penstock.server.sources import LerobotSource
from penstock.wire.errors import BadItem, InvalidJob
from robots import CAMERAS, RobotFolder, video_writer

WINDOWS = {camera: [-0.2, 0.0, 0.1] for camera in CAMERAS}
LAST = "videos/chunk-001/observation.images.wrist/episode_000003.mp4"


def job_of(root: Path, videos: str | None, **other: Any) -> dict[str, Any]:
    """Return a job of a folder; `videos` is where its videos lie, None = in it."""
    source = {"type": "lerobot", "root": str(root), "delta_timestamps": WINDOWS}
    return {
        "source": source | ({} if videos is None else {"video_root": videos}),
        "distributor": {"type": "episodes", "pool": 8},
        "processor": {"type": "robot"},
        "batch_size": 5,
        "lanes": 2,
        "epochs": 1,
        "seed": 7,
        **other,
    }


def content(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a batch holds, to compare."""
    return {
        key: value.tobytes() if isinstance(value, np.ndarray) else value
        for key, value in batch.items()
    }


@contextmanager
def written(folder: Path, robots: RobotFolder) -> Iterator[FarStore]:
    """Write a folder, and give the store that has its videos."""
    robots.write(folder, video_writer(robots.fps))
    with FarStore(folder, 0.005) as store:
        yield store


def in_order(folder: Path, url: str, **other: Any) -> dict[str, Any]:
    """Return a job that gives frames one after another, and asks for little ahead."""
    order = {"type": "map", "shuffle": "none"}
    return job_of(folder, url, distributor=order, lanes=1, **other)


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_videos_behind_a_url_are_those_of_the_folder(tmp_path: Path, layout: str) -> None:
    """Batch by batch, to the byte, with windows of three cameras; also after another node."""
    root = tmp_path / "robots"
    with written(root, RobotFolder(layout=layout)) as store:
        jobs = {"near": job_of(root, None), "far": job_of(root, store.url)}
        file = write_job_file(tmp_path / "jobs.yaml", jobs)
        found: dict[str, list[dict[str, Any]]] = {}
        with serving(file, "--workers", "2") as server:
            for name in jobs:
                with Loader(server.address, name, as_numpy=True) as loader:
                    found[name] = [content(batch) for batch in loader]
            begun = []
            with Loader(server.address, "far", group="run", as_numpy=True) as loader:
                for batch in loader:
                    begun.append(content(batch))
                    if len(begun) == 3:
                        break
                state = loader.state_dict()
        with (
            serving(file, "--workers", "1") as server,
            Loader(server.address, "far", group="run", as_numpy=True) as loader,
        ):
            loader.load_state_dict(state)
            rest = [content(batch) for batch in loader]

    assert store.asked
    assert len(found["near"]) >= 6
    assert found["far"] == found["near"]
    assert begun + rest == found["near"]


def test_a_pool_that_ahead_bytes_holds_takes_few_requests(tmp_path: Path) -> None:
    """Fewer than one for each frame of three cameras; without room, several times as many."""
    robots = RobotFolder([30] * 12, layout="v2.1")
    root = tmp_path / "robots"
    asked: dict[int, int] = {}
    with written(root, robots) as store:
        jobs = {
            f"of{ahead_bytes}": job_of(
                root,
                store.url,
                media={"ahead_bytes": ahead_bytes},
                processor={"type": "robot", "frame_bytes": 0},
                seed=seed,
            )
            for seed, ahead_bytes in enumerate((256 << 20, 0))
        }
        file = write_job_file(tmp_path / "jobs.yaml", jobs, hash_cache=str(tmp_path / "cache"))
        for name in jobs:
            before = len(store.asked)
            with (
                serving(file, "--workers", "1") as server,
                Loader(server.address, name, as_numpy=True) as loader,
            ):
                count = sum(len(batch["index"]) for batch in loader if not batch.is_padding)
            assert count == robots.frames
            asked[int(name.removeprefix("of"))] = len(store.asked) - before

    assert asked[256 << 20] < robots.frames, asked
    assert asked[0] > 2 * asked[256 << 20], asked


@pytest.mark.parametrize("how", ["gone", "cut", "changed"])
def test_a_video_that_is_lost_on_the_way_stops_its_lane_by_name(tmp_path: Path, how: str) -> None:
    """File, camera, episode and frame are said; it is not taken for the end of the epoch."""
    robots = RobotFolder([30] * 4, layout="v2.1")
    root = tmp_path / "robots"
    taken = 0
    with written(root, robots) as store:
        file = write_job_file(tmp_path / "jobs.yaml", {"main": in_order(root, store.url)})
        with (
            serving(file, "--workers", "1") as server,
            Loader(server.address, "main", as_numpy=True, prefetch=1) as loader,
        ):
            batches = iter(loader)
            taken += len(next(batches)["index"])
            lose(root / LAST, how)
            rest: list[int] = []
            with pytest.raises(BadItem) as caught:
                rest.extend(len(batch["index"]) for batch in batches)

    assert taken + sum(rest) == 90
    said = caught.value.message
    assert f"{store.url}/{LAST}" in said
    assert "observation.images.wrist, episode 3, frame 0" in said
    assert "\n" not in said


def lose(video: Path, how: str) -> None:
    data = video.read_bytes()
    if how == "gone":
        video.unlink()
    elif how == "cut":
        video.write_bytes(data[:-9000])
    else:
        video.write_bytes(data[:-9000] + bytes(9000))


def test_videos_that_are_lost_can_be_left_out_by_name(tmp_path: Path) -> None:
    """With `quarantine` the other episodes come whole, and each frame that lacks is named."""
    robots = RobotFolder([7, 4, 9, 3], layout="v2.1")
    root = tmp_path / "robots"
    with written(root, robots) as store:
        (root / LAST).unlink()
        job = in_order(root, store.url, on_item_error="quarantine")
        file = write_job_file(tmp_path / "jobs.yaml", {"main": job})
        with serving(file, "--workers", "1") as server:
            with Loader(server.address, "main", as_numpy=True) as loader:
                found = [int(n) for b in loader if not b.is_padding for n in b["index"]]
            quarantined = server.events("item quarantined")

    assert found == list(range(20))
    assert len(quarantined) == 3
    assert all("episode_000003.mp4 is not there" in str(event) for event in quarantined)


def test_a_store_that_comes_back_goes_on(tmp_path: Path) -> None:
    """Its refusals of a moment cost no frame, and nothing is quarantined."""
    robots = RobotFolder(layout="v2.1")
    root = tmp_path / "robots"
    with written(root, robots) as store:
        paths = [str(path.relative_to(root)) for path in sorted(root.rglob("*.mp4"))]
        store.failing = {path: [503, 500, 429] for path in paths[::7]}
        job = in_order(root, store.url, on_item_error="quarantine")
        file = write_job_file(tmp_path / "jobs.yaml", {"main": job})
        with serving(file, "--workers", "1") as server:
            with Loader(server.address, "main", as_numpy=True) as loader:
                found = Counter(int(n) for b in loader if not b.is_padding for n in b["index"])
            quarantined = server.events("item quarantined")

    assert found == Counter(range(robots.frames))
    assert not quarantined
    assert not any(store.failing.values())


def test_a_root_that_is_not_listed_is_refused_with_the_way_on(tmp_path: Path) -> None:
    """A web server has to list nothing, and videos need no list."""
    RobotFolder(cameras=()).write(tmp_path / "robots")

    with FarStore(tmp_path / "robots") as store, pytest.raises(InvalidJob) as caught:
        LerobotSource(store.url)

    assert "let video_root be the address" in caught.value.message
    assert "relative to that file" not in caught.value.message
