"""A folder of pictures, whose items are names of files, goes on at every offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from penstock.server.job.job import Job
from penstock.server.roles import ImageProcessor, ListsCollator, SimpleBatcher
from penstock.server.sources import FolderSource
from penstock.server.testing import check_job


def test_every_offset_of_a_folder_restores_exactly(tmp_path: Path) -> None:
    for number in range(7):
        folder = tmp_path / ("cats" if number % 2 else "dogs")
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30 + number, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")

    def make() -> Job:
        return Job(
            FolderSource(str(tmp_path)),
            processor=ImageProcessor(columns=["label"], crop="random", crop_to=16, flip=0.5),
            batcher=SimpleBatcher(3),
            collator=ListsCollator(),
            lanes=2,
            seed=5,
            name="folder",
        )

    check_job(make, batches=9)
