"""Conversations with pictures, from a file of conversations and a folder to a trainer."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from far_store import FarStore
from harness import call_command, serving, write_job_file
from penstock.client import Loader, media
from penstock.server.media.medium import HeldMedium
from penstock.server.media.video.frame_choice import by_count
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.video_frames import VideoFrames
from penstock.wire.errors import PenstockError
from videos import H264, film, written
from vision import drawn, encoded, whole_processor, write_vision_folder

COUNT = 9


def write_data(folder: Path) -> list[dict[str, Any]]:
    """Write conversations in ShareGPT's form, and their pictures as files; return the items."""
    (folder / "photos").mkdir()
    items = []
    for number in range(COUNT):
        names = [f"{number}-{place}.{'jpg' if place else 'png'}" for place in range(number % 3)]
        for place, name in enumerate(names):
            form = "JPEG" if name.endswith("jpg") else "PNG"
            (folder / "photos" / name).write_bytes(
                encoded(drawn(90 + 20 * number, 60 + 9 * place, number), form)
            )
        asked = "".join("<image>\n" for _ in names) + "What is the answer?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": f"It is {number}."}]
        items.append({"id": number, "conversations": turns, "images": names})
    lines = "".join(json.dumps(item) + "\n" for item in items)
    (folder / "chats.jsonl").write_text(lines)
    return items


def write_jobs(folder: Path, **processor: Any) -> Path:
    """Write a job of one conversation a batch, in the order of the file."""
    write_vision_folder(folder / "model", "qwen2_vl")
    job = {
        "source": {"type": "jsonl", "files": "chats.jsonl"},
        "distributor": {"type": "map", "shuffle": "none"},
        "media": {"dir": "photos"},
        "processor": {"type": "conversation", "tokenizer": "model", **processor},
        "batch_size": 1,
        "lanes": 1,
        "epochs": 1,
    }
    return write_job_file(folder / "jobs.yaml", {"chats": job})


def fails(file: Path) -> PenstockError:
    """Return the error with which a reader of the job ends."""
    with (
        serving(file) as node,
        Loader(node.address, "chats") as loader,
        pytest.raises(PenstockError) as caught,
    ):
        list(loader)
    return caught.value


def opened(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("patches", ["float32", "uint8"])
def test_a_trainer_gets_what_transformers_gives(patches: str, tmp_path: Path) -> None:
    """Ids, grids and pixels of every item, read by a worker from names in the data."""
    items = write_data(tmp_path)
    file = write_jobs(tmp_path, patches=patches)
    theirs = whole_processor("qwen2_vl", tmp_path / "model")
    ready = partial(media.normalize, dtype=torch.float32)

    with serving(file) as node, Loader(node.address, "chats", arrive=ready) as loader:
        batches = [dict(batch) for batch in loader]

    assert len(batches) == COUNT
    for item, batch in zip(items, batches, strict=True):
        images = [opened(tmp_path / "photos" / name) for name in item["images"]]
        content = [{"type": "image"} for _ in images]
        content.append({"type": "text", "text": "What is the answer?"})
        messages = [
            {"role": "user", "content": content},
            {"role": "assistant", "content": [{"type": "text", "text": f"It is {item['id']}."}]},
        ]
        text = theirs.apply_chat_template(messages, tokenize=False)
        expected = theirs(text=[text], images=images or None)
        assert batch["input_ids"][0].tolist() == list(expected["input_ids"][0])
        assert batch["pixel_values"].dtype == torch.float32
        assert "pixel_norm" not in batch
        if not images:
            assert batch["pixel_values"].shape == (1, 0, 1176)
            continue
        assert np.array_equal(batch["image_grid_thw"][0], expected["image_grid_thw"])
        exact = torch.from_numpy(expected["pixel_values"])
        apart = (batch["pixel_values"][0] - exact).abs().max().item()
        assert apart == 0 if patches == "float32" else apart < 1e-5


def test_a_trainer_gets_what_transformers_gives_of_videos(tmp_path: Path) -> None:
    """From files that the data name, through workers, packed: ids, pixels, grids and seconds.

    And `penstockd index` counts them, by their indexes.
    """
    write_vision_folder(tmp_path / "model", "qwen2_5_vl")
    (tmp_path / "clips").mkdir()
    data = [film("H.264, key frame every 2nd"), film("VP9")]
    for number, each in enumerate(data):
        (tmp_path / "clips" / f"{number}.mp4").write_bytes(each)
    asked, answer = "<video>\nWhat is the answer?", "It is four."
    clips = [[{"path": f"{number}.mp4", "nframes": 4 + 2 * number}] for number in range(2)]
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]
    lines = [json.dumps({"conversations": turns, "videos": each}) for each in clips]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    job = {
        "source": {"type": "jsonl", "files": "chats.jsonl"},
        "distributor": {"type": "map", "shuffle": "none"},
        "media": {"dir": "clips"},
        "processor": {"type": "conversation", "tokenizer": "model", "kernel": "torch"},
        "batcher": {"type": "knapsack", "max_tokens": 400, "window": 2},
        "collator": {"type": "vlm", "layout": "flash"},
        "lanes": 1,
        "epochs": 1,
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"chats": job})

    with serving(file) as node, Loader(node.address, "chats") as loader:
        [batch] = [dict(batch) for batch in loader]
    output = str(tmp_path / "sizes.index")
    told = call_command("penstockd", "index", str(file), "chats", "--output", output, "--json")

    theirs = whole_processor("qwen2_5_vl", tmp_path / "model", kernel="torch")
    parts = [{"type": "video"}, {"type": "text", "text": "What is the answer?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
    text = theirs.apply_chat_template(messages, tokenize=False)
    videos, metadata = [], []
    for number, each in enumerate(data):
        medium = HeldMedium("v", each)
        index = index_video(medium)
        chosen = by_count(index, 4 + 2 * number)
        frames = VideoFrames(1, 1, 0).frames(medium, index, chosen)
        videos.append(np.stack([frame.rgb24() for frame in frames]))
        metadata.append({"total_num_frames": 60, "fps": 30.0, "frames_indices": chosen})
    expected = theirs(text=[text] * 2, videos=videos, video_metadata=metadata)
    order = sorted(range(2), key=lambda n: -len(expected["input_ids"][n]))
    patches = np.split(np.asarray(expected["pixel_values_videos"]), [len(videos[0]) // 2 * 60])
    ids = [token for n in order for token in expected["input_ids"][n]]
    assert batch["input_ids"][0].tolist() == ids
    assert np.array_equal(batch["pixel_values_videos"], np.concatenate([patches[n] for n in order]))
    for name in ("video_grid_thw", "second_per_grid_ts"):
        found = np.asarray(batch[name])
        assert np.array_equal(found, np.asarray(expected[name]).astype(found.dtype)[order]), name
    assert batch["n_videos_per_sample"].tolist() == [2]
    assert json.loads(told.stdout)["measures"]["videos"] == 2


def test_what_is_wrong_with_a_picture_names_the_item_and_the_file(tmp_path: Path) -> None:
    """One that is not there, and one that is cut off: bad items, by the name in the data."""
    write_data(tmp_path)
    file = write_jobs(tmp_path)
    photo = tmp_path / "photos" / "2-1.jpg"
    photo.write_bytes(photo.read_bytes()[:900])

    cut_off = fails(file)
    (tmp_path / "photos" / "1-0.png").unlink()
    missing = fails(file)

    assert (cut_off.code, missing.code) == ("bad_item", "bad_item")
    assert "2-1.jpg" in cut_off.message
    assert "1-0.png" in missing.message


COLLATE = """
import numpy as np

def rows(row):
    return {
        "lengths": np.array([len(sample["input_ids"]) for sample in row]),
        "images": np.array([len(sample["image_grid_thw"]) for sample in row]),
        "patches": np.array([len(sample["pixel_values"]) for sample in row]),
    }
"""


def test_packs_are_planned_from_headers_within_limits(tmp_path: Path) -> None:
    """A row closes at its tokens, pictures or patches; and every conversation is in one."""
    write_data(tmp_path)
    file = write_jobs(tmp_path, patches="uint8", unanswered="error")
    job = yaml.safe_load(file.read_text())["jobs"]["chats"]
    del job["batch_size"]
    limits = {"images": 3, "patches": 260}
    job["batcher"] = {"type": "best_fit", "max_tokens": 220, "pool_size": 6, "limits": limits}
    (tmp_path / "roles.py").write_text(COLLATE)
    job["collator"] = {"function": "./roles.py:rows"}
    file = write_job_file(tmp_path / "packed.yaml", {"chats": job})

    with Loader(f"local:{file}", "chats") as loader:
        packs = [{name: np.asarray(batch[name]) for name in batch} for batch in loader]

    assert sum(len(pack["lengths"]) for pack in packs) == COUNT
    assert sum(pack["images"].sum() for pack in packs) == sum(n % 3 for n in range(COUNT))
    for pack in packs:
        assert pack["lengths"].sum() <= 220
        assert pack["images"].sum() <= 3
        assert pack["patches"].sum() <= 260 or len(pack["patches"]) == 1
    assert any(pack["images"].sum() == 3 for pack in packs)
    assert len(packs) < COUNT


def test_check_says_once_how_many_images_there_are(tmp_path: Path) -> None:
    """They are a measure of samples and a count of the batch: two names for one number."""
    write_data(tmp_path)
    file = write_jobs(tmp_path)
    job = yaml.safe_load(file.read_text())["jobs"]["chats"]
    del job["batch_size"]
    job["batcher"] = {"type": "next_fit", "max_tokens": 256, "overlong": "drop"}
    job["collator"] = {"type": "vlm", "layout": "indexed", "pad_to": 256}
    write_job_file(file, {"chats": job})
    done = call_command("penstockd", "check", str(file), "--batches=9")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  images in ") == 1, done.stdout


def test_of_a_far_video_little_is_fetched(tmp_path: Path) -> None:
    """What the frames take that are shown, once there is an index; and the bytes are those near.

    So it is in a job that filters, and in one that is planned from sizes.
    """
    write_vision_folder(tmp_path / "model", "qwen2_vl")
    (tmp_path / "clips").mkdir()
    options = {"preset": "ultrafast", "crf": "1", "threads": "1"}
    long = replace(H264, frames=600, width=320, height=240, gop=4, b_frames=0, options=options)
    (tmp_path / "clips" / "long.mp4").write_bytes(written(long))
    size = (tmp_path / "clips" / "long.mp4").stat().st_size
    turns = [{"from": "human", "value": "<video> Which?"}, {"from": "gpt", "value": "Four."}]
    items = [
        {"conversations": turns, "videos": [{"path": "long.mp4", "frame_indices": wanted}]}
        for wanted in ([24, 160, 300, 440, 580], [30, 31, 310, 460], [25, 302, 458, 581])
    ]

    def job_of(seed: int, dir: str, **said: Any) -> dict[str, Any]:
        return {
            "source": {"type": "items", "items": items},
            "distributor": {"type": "map", "shuffle": "none"},
            # Room for the whole file; chunks of it, at every place of frames, would take too much.
            "media": {"dir": dir, "ahead_bytes": size + (1 << 20)},
            "processor": {"type": "conversation", "tokenizer": "model", **said},
            "batcher": {"type": "next_fit", "max_tokens": 1000},
            "collator": "lists",
            "lanes": 1,
            "epochs": 1,
            "seed": seed,  # each has a log of its own
        }

    with FarStore(tmp_path / "clips") as store:
        jobs = {
            "near": job_of(0, "clips"),
            "first": job_of(1, store.url),
            "far": job_of(2, store.url),
            "sized": job_of(3, store.url, unanswered="error"),
        }
        file = write_job_file(tmp_path / "job.yaml", jobs, hash_cache=str(tmp_path / "cache"))
        found, asked = {}, {}
        with serving(file, "--workers", "1") as node:
            for name in jobs:
                before = len(store.asked)
                with Loader(node.address, name, as_numpy=True) as loader:
                    [batch] = list(loader)
                found[name] = [
                    np.asarray(each).tobytes()
                    for key in ("input_ids", "pixel_values_videos", "video_grid_thw")
                    for each in batch[key]
                ]
                spans = [span.removeprefix("bytes=") for _, span in store.asked[before:]]
                asked[name] = [int(b) - int(a) + 1 for a, _, b in (s.partition("-") for s in spans)]

    assert all(values == found["near"] for values in found.values())
    assert asked["near"] == []
    assert sum(asked["first"]) >= size
    for name in ("far", "sized"):  # a node makes the first batch of a log twice, to compare it
        assert 0 < sum(asked[name]) < size / 4, asked
        assert len(asked[name]) <= 48, asked
