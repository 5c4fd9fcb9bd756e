"""Conversations with pictures from any offset on; and bytes that nothing but the item decides."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sounds
from indexes import made
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles import (
    BestFitPackingBatcher,
    ImageProcessor,
    KnapsackPackingBatcher,
    ProcessContext,
    SoundProcessor,
)
from penstock.server.roles.collators import VlmCollator
from penstock.server.roles.processor import MediaProcessor
from penstock.server.roles.processors import ConversationProcessor
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_job
from talks import as_sharegpt, media_of, talk
from vision import drawn, encoded, write_vision_folder

LIMITS = {"images": 4, "patches": 160}


def conversations(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """Return items of no to three pictures, some with a video of three; one cannot be decoded."""
    draw = random.Random(seed)
    items = []
    for number in range(count):
        files = [
            encoded(drawn(draw.randint(20, 110), draw.randint(20, 110), number), "JPEG")
            for _ in range(number % 4)
        ]
        item = as_sharegpt(talk(draw, len(files)), files, draw)
        if number % 4 == 3:
            first = next(turn for turn in item["conversations"] if turn["from"] == "human")
            first["value"] = "<video>" + first["value"]
            item["videos"] = [[encoded(drawn(40, 30, n)) for n in range(3)]]
        items.append(item)
    items[5]["images"] = [items[5]["images"][0][:-40], *items[5]["images"][1:]]
    return items


def job_of(folder: Path, *, headers: bool, plan: Plan | None = None) -> Job:
    """Return a job that is planned from headers, or of which pictures wait in the pool."""
    if not (folder / "model").exists():
        write_vision_folder(folder / "model", "qwen2_vl")
    processor = ConversationProcessor(
        folder / "model",
        patches="uint8",
        fake_image=True,
        fps=1,
        **({"unanswered": "error"} if headers else {"max_length": 150, "overlong": "truncate"}),
    )
    batcher = (
        KnapsackPackingBatcher(200, window=9, overlong="drop", limits=LIMITS)
        if headers
        else BestFitPackingBatcher(200, pool_size=5, overlong="drop", limits=LIMITS)
    )
    return Job(
        ItemsSource(conversations(17)),
        processor=processor,
        batcher=batcher,
        collator=VlmCollator(layout="indexed", pad_to=200),
        plan=plan,
        lanes=2,
        on_item_error="quarantine",
    )


@pytest.mark.parametrize("form", ["headers", "processed", "planned"])
def test_every_offset_goes_on_with_the_same_pictures(form: str, tmp_path: Path) -> None:
    """Beside a picture that cannot be decoded, with limits, fake pictures and cuts."""
    plan = None
    if form == "planned":
        made(job_of(tmp_path, headers=True), tmp_path / "sizes.index")
        plan = Plan(str(tmp_path / "sizes.index"), window=12)

    found = check_job(
        lambda: job_of(tmp_path, headers=form != "processed", plan=plan), lane=1, batches=9
    )

    assert len({step.body for step in found}) > 5
    assert any(b"pixel_values_videos" in step.header for step in found)


def sample_bytes(sample: Any) -> list[tuple[str, str]]:
    return [
        (name, f"{value.dtype}{value.shape}{value.tobytes().hex()}")
        if isinstance(value, np.ndarray)
        else (name, repr(value))
        for name, value in sample.items()
    ]


def roles_and_items(folder: Path, draw: random.Random) -> list[tuple[MediaProcessor, list[Any]]]:
    write_vision_folder(folder / "model", "qwen3_vl")
    pictures = [
        encoded(drawn(draw.randint(40, 300), draw.randint(40, 300), n), "JPEG") for n in range(8)
    ]
    noises = [sounds.drawn(draw.uniform(0.1, 0.5), 22050, 1, n) for n in range(6)]
    return [
        (
            ImageProcessor(column="x", kernel="torch", crop="random_resized", crop_to=64, flip=0.5),
            [{"x": data} for data in pictures],
        ),
        (
            ConversationProcessor(folder / "model", kernel="torch"),
            [as_sharegpt(talk(draw, n % 3), pictures[: n % 3], draw) for n in range(6)],
        ),
        (
            SoundProcessor(sample_rate=16000),
            [{"audio": sounds.written(each, 22050, "flac")} for each in noises],
        ),
    ]


def test_bytes_are_the_items_alone(tmp_path: Path) -> None:
    """Not of torch's threads, of the other items of a batch, or of the order in which they come."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    threads = torch.get_num_threads()
    for role, items in roles_and_items(tmp_path, draw):

        def contexts(numbers: list[int], role: Any = role, items: Any = items) -> Any:
            return [
                ProcessContext(ItemRef("main", number, 0), 5, media_of(role, items[number]))
                for number in numbers
            ]

        every = list(range(len(items)))
        alone = [
            sample_bytes(role.process(items[number], context))
            for number, context in zip(every, contexts(every), strict=True)
        ]
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            try:
                order = draw.sample(every, draw.randint(2, len(every)))
                together = role.clone().process_batch(
                    [items[number] for number in order], contexts(order)
                )
            finally:
                torch.set_num_threads(threads)
            for number, sample in zip(order, together, strict=True):
                assert sample_bytes(sample) == alone[number], (seed, type(role), count, number)
