"""Video through a node; and in processes of its own: damaged files, and many that are open."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import yaml

import videos
from far_store import FarStore
from harness import Server, serving, write_job_file
from penstock.client import Loader
from penstock.client.media import ToRgb
from penstock.server.media.video.torchcodec_package import load_torchcodec
from penstock.wire.errors import MissingExtra

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "video.md").read_text()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


# --- damaged ---


def decode_damaged(count: int, seed: int) -> dict[str, int]:
    done = run("-W", "error", "damaged/films.py", str(count), str(seed))
    assert done.returncode == 0, f"seed {seed} ends with {done.returncode}:\n{done.stderr[-3000:]}"
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_damaged_videos_are_refused_by_name_and_take_no_memory() -> None:
    """No crash, no other error, no warning, and no wait of 10 s."""
    found = decode_damaged(200, seed=1)

    assert sum(found.values()) >= 200
    assert sum(count for name, count in found.items() if "refused" in name) > 50
    assert sum(count for name, count in found.items() if "decoded" in name) > 10


@pytest.mark.parametrize("seed", range(2, 7))
def test_many_damaged_videos(seed: int) -> None:
    """The same at more length: 10^4 files."""
    assert decode_damaged(2000, seed)


# --- many ---

MANY = """
import random, resource, sys
from pathlib import Path
import videos
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_indexes import VideoIndexes

folder, data = Path(sys.argv[1]), videos.film("H.264, key frame every 2nd")
for number in range(1000):
    (folder / f"{number}.mp4").write_bytes(data + bytes(number))
reader, indexes = MediaReader(MediaFiles(dir=str(folder))), VideoIndexes()
frames, draw = VideoFrames(64, 1 << 30, 8 << 20), random.Random(0)
resident = []
for count, number in enumerate([*range(1000), *(draw.randrange(1000) for _ in range(201))]):
    [medium] = reader.media([f"{number}.mp4"])
    index, wanted = indexes.of(medium), draw.randrange(60)
    [frame] = frames.frames(medium, index, [wanted])
    assert videos.read_number(frame.rgb24()) == wanted
    assert len(frames) <= 64
    if count % 100 == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident.append(pages * resource.getpagesize() >> 20)
opened = len(list(Path("/proc/self/fd").iterdir()))
print(resident[2], max(resident[2:]), opened)
"""


def test_a_thousand_videos_take_the_memory_of_those_that_are_open(tmp_path: Path) -> None:
    """Flat within 64 MB after the first 200; 64 decoders, and no handle is left."""
    done = run("-c", MANY, str(tmp_path))

    assert done.returncode == 0, done.stderr[-3000:]
    early_mb, most_mb, opened = map(int, done.stdout.split())
    assert most_mb - early_mb <= 64
    assert opened < 64 + 40


# --- through a node ---


def write_clips(folder: Path) -> list[dict[str, Any]]:
    """Write one video of each kind; return items that name some frames of them, out of order."""
    folder.mkdir()
    names = [name for name in videos.FILMS if name != "H.264, one frame"]
    for number, name in enumerate(names):
        (folder / f"{number}.bin").write_bytes(videos.film(name))
    items = []
    for n in range(2 * len(names)):
        wanted = [(7 * n + 11 * k) % 55 for k in range(3)]
        items.append({"video": f"{n % len(names)}.bin", "wanted": wanted, "n": n})
    return items


def job_of(items: list[dict[str, Any]], **processor: Any) -> dict[str, Any]:
    return {
        "source": {"type": "items", "items": items},
        "processor": {"type": "video", "numbers": "wanted", "columns": ["n"], **processor},
        "media": {"dir": "clips", "endings": [".bin"]},
        "collator": "lists",
        "batch_size": 4,
        "lanes": 2,
        "epochs": 1,
    }


def test_every_frame_that_arrives_is_the_one_that_its_number_says(tmp_path: Path) -> None:
    """Of every kind of file, by two workers with few decoders; each item once."""
    items = write_clips(tmp_path / "clips")
    job = job_of(items, decoders=3, frame_bytes=1 << 16)
    file = write_job_file(tmp_path / "job.yaml", {"main": job})
    first = [*videos.FILMS].index("H.264, shown from its 5th frame on") - 1

    found: dict[int, list[int]] = {}
    with serving(file, "--workers", "2") as server, Loader(server.address, "main") as loader:
        for batch in loader:
            for n, frames, numbers in zip(
                batch["n"], batch["video"], batch["frame_numbers"], strict=True
            ):
                seen = [videos.read_number(np.asarray(frame)) for frame in frames]
                if items[int(n)]["video"] == f"{first}.bin":
                    seen = [number - 5 for number in seen]
                assert seen == [int(number) for number in numbers]
                assert int(n) not in found
                found[int(n)] = seen

    assert found == {item["n"]: item["wanted"] for item in items}


def test_planes_arrive_and_become_rgb(tmp_path: Path) -> None:
    """By the client's transform, the bytes that the node's own RGB has."""
    items = write_clips(tmp_path / "clips")[:2]
    jobs = {
        "rgb": job_of(items),
        "planes": job_of(items, pixels="yuv420p"),
    }
    file = write_job_file(tmp_path / "job.yaml", jobs)

    with serving(file, "--workers", "1") as server:
        with Loader(server.address, "rgb") as loader:
            rgb = [frames for batch in loader for frames in batch["video"]]
        with Loader(server.address, "planes", arrive=ToRgb()) as loader:
            made = [frames for batch in loader for frames in batch["video"]]

    assert len(rgb) == len(made) == 2
    for one, other in zip(rgb, made, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_a_node_gives_the_same_frames_by_torchcodec(tmp_path: Path) -> None:
    """In a worker's process, of files whose RGB has the same bytes; it is another log."""
    try:
        load_torchcodec()
    except MissingExtra as error:
        pytest.skip(str(error))
    items = write_clips(tmp_path / "clips")[:2]
    jobs = {decoder: job_of(items, decoder=decoder) for decoder in ("pyav", "torchcodec")}
    file = write_job_file(tmp_path / "job.yaml", jobs)
    found = {}

    with serving(file, "--workers", "1") as server:
        for name in jobs:
            with Loader(server.address, name, as_numpy=True) as loader:
                found[name] = [frames for batch in loader for frames in batch["video"]]

    assert len(found["pyav"]) == len(found["torchcodec"]) == 2
    for one, other in zip(found["pyav"], found["torchcodec"], strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_what_decoding_takes_is_counted(tmp_path: Path) -> None:
    """Videos that were open, frames decoded and delivered, and where the processor time goes."""
    items = write_clips(tmp_path / "clips")
    job = job_of(items, decoders=2, frame_bytes=0)
    file = write_job_file(tmp_path / "job.yaml", {"main": job}, metrics="127.0.0.1:0")

    with serving(file, "--workers", "1") as server:
        with Loader(server.address, "main") as loader:
            assert sum(len(batch["n"]) for batch in loader) == len(items)
        frames = by_label(server, "penstock_video_frames_total", "what")
        opens = by_label(server, "penstock_video_opens_total", "result")
        cpu_s = by_label(server, "penstock_video_cpu_seconds_total", "stage")

    assert frames["delivered"] == sum(len(item["wanted"]) for item in items)
    assert frames["decoded"] >= frames["delivered"] > frames["shared"] == 0
    assert opens["hits"] + opens["misses"] >= len(items)
    assert opens["misses"] - opens["evictions"] <= 2
    assert cpu_s["decode"] > 0
    assert cpu_s.keys() == {"fetch", "decode", "convert", "copy"}
    assert all(spent >= 0 for spent in cpu_s.values())


def test_videos_behind_a_url_are_those_of_a_folder(tmp_path: Path) -> None:
    """To the byte, whether parts come ahead or have no room; ahead, in fewer requests."""
    items = write_clips(tmp_path / "clips")
    asked: dict[str, int] = {}
    with FarStore(tmp_path / "clips", 0.005) as store:
        jobs = {"near": job_of(items)}
        for seed, ahead_bytes in enumerate((0, 100_000, 64 << 20)):  # each has a log of its own
            media = {"dir": store.url, "ahead_bytes": ahead_bytes}
            far = {**job_of(items, frame_bytes=0), "media": media, "seed": seed}
            jobs[f"far{ahead_bytes}"] = far
        file = write_job_file(tmp_path / "job.yaml", jobs, hash_cache=str(tmp_path / "cache"))

        found = {}
        with serving(file, "--workers", "1") as server:
            for name in jobs:
                before = len(store.asked)
                with Loader(server.address, name) as loader:
                    found[name] = {
                        int(n): [np.asarray(frame).tobytes() for frame in frames]
                        for batch in loader
                        for n, frames in zip(batch["n"], batch["video"], strict=True)
                    }
                asked[name] = len(store.asked) - before

    assert len(found["near"]) == len(items)
    assert all(values == found["near"] for values in found.values())
    assert 0 == asked["near"] < asked[f"far{64 << 20}"] < asked["far0"], asked


def by_label(server: Server, metric: str, label: str) -> dict[str, float]:
    """Return a metric of the job `main` by one of its labels."""
    with urlopen(f"http://{server.events('ready')[0]['metrics']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.findall(rf'^{metric}{{penstock_job="main",{label}="(\w+)"}} (\S+)$', text, re.M)
    return {name: float(value) for name, value in found}


# --- what docs/video.md says ---


def test_the_job_of_the_page_gives_what_it_says(tmp_path: Path) -> None:
    """As it stands there."""
    [text] = re.findall(r"<!-- file: video.yaml -->\n```yaml\n(.*?)^```", PAGE, re.M | re.S)
    job = {**yaml.safe_load(text)["jobs"]["clips"], "epochs": 1}
    (tmp_path / "clips" / "a").mkdir(parents=True)
    (tmp_path / "clips" / "a" / "1.mp4").write_bytes(videos.film("H.264"))
    (tmp_path / "clips.jsonl").write_text('{"video": "a/1.mp4", "label": 3}\n' * 4)
    file = write_job_file(tmp_path / "job.yaml", {"clips": job})

    with serving(file, "--workers", "1") as server, Loader(server.address, "clips") as loader:
        batch = next(iter(loader))

    assert sorted(batch) == ["frame_numbers", "frame_times", "label", "video"]
    assert tuple(batch["video"][0].shape) == (8, 224, 298, 3)
    assert [int(n) for n in batch["frame_numbers"][0]] == [0, 7, 15, 22, 30, 37, 45, 52]
