"""Pictures through a node: what a trainer gets is what the processor gives, or an item by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import pictures
from harness import serving, write_job_file
from penstock.client import Loader
from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ImageProcessor, ProcessContext

THREADS = """
import cv2
import numpy as np
import torch


def threads(pixels):
    return np.array([torch.get_num_threads(), cv2.getNumThreads()])
"""


def write_pictures(folder: Path, count: int) -> dict[str, bytes]:
    """Write pictures in several formats, and the lines that name them; return them by name."""
    kinds = (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"))
    (folder / "media").mkdir()
    found = {}
    for number in range(count):
        kind, ending = kinds[number % 3]
        image = pictures.photograph(300 + 10 * number, 200)
        found[f"{number}.{ending}"] = pictures.encoded(image, kind)
    for name, data in found.items():
        (folder / "media" / name).write_bytes(data)
    lines = (json.dumps({"image": name, "n": n}) + "\n" for n, name in enumerate(found))
    (folder / "items.jsonl").write_text("".join(lines))
    return found


def test_a_trainer_gets_what_the_processor_gives(tmp_path: Path) -> None:
    """By two workers, with a kernel of torch in one thread, and a random part of each picture."""
    found = write_pictures(tmp_path, 12)
    told = {"kernel": "torch", "crop": "random_resized", "crop_to": 48, "flip": 0.5}
    file = write_job_file(
        tmp_path / "jobs.yaml",
        {
            "main": {
                "source": {"type": "jsonl", "files": "items.jsonl"},
                "processor": {"type": "image", "columns": ["n"], **told},
                "media": {"dir": "media"},
                "batch_size": 4,
                "lanes": 2,
                "epochs": 1,
                "seed": 7,
            }
        },
    )

    with serving(file, "--workers", "2") as server, Loader(server.address, "main") as loader:
        given = {
            int(n): image.numpy()
            for batch in loader
            for n, image in zip(batch["n"], batch["image"], strict=True)
        }

    processor = ImageProcessor(columns=["n"], **told)
    for number, (name, data) in enumerate(found.items()):
        context = ProcessContext(ItemRef("main", number, 0), 7, [HeldMedium(name, data)])
        ours = processor.process({"image": name, "n": number}, context)["image"]
        assert np.array_equal(given[number], ours), name
    assert len(given) == len(found)


def test_numeric_libraries_have_one_thread_in_a_worker(tmp_path: Path) -> None:
    """Those of torch and of OpenCV: more would compete with the other workers."""
    write_pictures(tmp_path, 3)
    (tmp_path / "augment.py").write_text(THREADS)
    job = {
        "source": {"type": "jsonl", "files": "items.jsonl"},
        "processor": {
            "type": "image",
            "transform": "./augment.py:threads",
            "transform_takes": "array",
        },
        "media": {"dir": "media"},
        "batch_size": 3,
        "lanes": 1,
        "epochs": 1,
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"main": job})

    with serving(file) as server, Loader(server.address, "main") as loader:
        seen = next(iter(loader))["image"].tolist()

    assert seen == [[1, 1]] * 3


def test_a_picture_that_was_cut_off_is_left_out_by_name(tmp_path: Path) -> None:
    """With on_item_error: quarantine; the event says which file, and what is wrong with it."""
    found = write_pictures(tmp_path, 9)
    (tmp_path / "media" / "3.jpg").write_bytes(found["3.jpg"][:-200])
    (tmp_path / "media" / "5.webp").write_bytes(b"no picture")
    job = {
        "source": {"type": "jsonl", "files": "items.jsonl"},
        "processor": {"type": "image", "columns": ["n"], "resize": "exact", "resize_to": 32},
        "media": {"dir": "media"},
        "batch_size": 1,
        "lanes": 1,
        "epochs": 1,
        "on_item_error": "quarantine",
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"main": job})

    with serving(file) as server, Loader(server.address, "main") as loader:
        given = [int(n) for batch in loader if not batch.is_padding for n in batch["n"]]
        server.terminate()
        said = [line for line in server.lines if "3.jpg" in line]

    assert sorted(given) == [0, 1, 2, 4, 6, 7, 8]
    assert any("this JPEG cannot be decoded" in line for line in said), said
