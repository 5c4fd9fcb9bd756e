"""A real vision-language model, small, learns from packs what it learns from samples one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import write_job_file
from penstock.client import Batch, Loader
from vision import drawn, encoded, loss_and_tokens, small_qwen, write_vision_folder

ROW_TOKENS = 256
CHATS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of no, one and two pictures of several sizes, and a model's processor."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "photos").mkdir()
    lines = []
    for number in range(CHATS):
        names = [f"{number}-{place}.png" for place in range((0, 1, 2, 1)[number % 4])]
        for place, name in enumerate(names):
            picture = drawn(60 + 12 * number, 60 + 20 * place, number)
            (folder / "photos" / name).write_bytes(encoded(picture))
        asked = "".join("<image>\n" for _ in names) + f"What is {number}?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": f"It is {number}."}]
        lines.append(json.dumps({"conversations": turns, "images": names}) + "\n")
    (folder / "chats.jsonl").write_text("".join(lines))
    write_vision_folder(folder / "model", "qwen2_vl")
    conversation = {"type": "conversation", "tokenizer": "model"}
    shared = {
        "source": {"type": "jsonl", "files": "chats.jsonl"},
        "distributor": {"type": "map", "shuffle": "none"},
        "media": {"dir": "photos"},
        "processor": conversation,
        "lanes": 1,
        "epochs": 1,
    }
    packed = {
        "batcher": {"type": "knapsack", "max_tokens": ROW_TOKENS, "rows": 2},
        "collator": {
            "type": "vlm",
            "layout": "indexed",
            "pad_to": ROW_TOKENS,
            "labels": "unshifted",
        },
    }
    jobs = {
        "packed": {**shared, **packed},
        "alone": {**shared, "batch_size": 1, "collator": "vlm"},
        "fake": {**shared, **packed, "processor": {**conversation, "fake_image": True}},
    }
    write_job_file(folder / "jobs.yaml", jobs)
    return folder


@pytest.fixture(scope="module")
def model() -> Any:
    return small_qwen()


def batches_of(folder: Path, job: str) -> list[Batch]:
    with Loader(f"local:{folder / 'jobs.yaml'}", job) as loader:
        return list(loader)


def totals(model: Any, batches: list[Batch]) -> tuple[float, int]:
    found = [loss_and_tokens(model, batch) for batch in batches]
    return sum(float(loss) for loss, _ in found), sum(tokens for _, tokens in found)


def test_a_pack_has_the_loss_of_its_samples(folder: Path, model: Any) -> None:
    """Whatever lies beside them, with positions of mRoPE that start anew in every document."""
    packed, alone = batches_of(folder, "packed"), batches_of(folder, "alone")

    assert len(packed) < len(alone) == CHATS
    assert all(batch["input_ids"].shape[1] == ROW_TOKENS for batch in packed)
    assert sum(int(batch["n_images_per_sample"].sum()) for batch in packed) == CHATS
    with torch.no_grad():
        (loss, tokens), (expected, of) = totals(model, packed), totals(model, alone)
    assert tokens == of > CHATS
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_tokens_of_a_fake_picture_change_nothing(folder: Path, model: Any) -> None:
    """Every document has a picture, and the loss is that of the same texts without."""
    faked, plain = batches_of(folder, "fake"), batches_of(folder, "packed")

    without = sum(number % 4 == 0 for number in range(CHATS))
    assert sum(batch.counts["fake_images"] for batch in faked) == without
    assert sum(len(batch["image_grid_thw"]) for batch in faked) == CHATS + without
    with torch.no_grad():
        (loss, tokens), (expected, of) = totals(model, faked), totals(model, plain)
    assert tokens == of
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_step_trains_the_vision_tower(folder: Path, model: Any) -> None:
    """The loss of a batch as it comes falls, by steps that reach the first layer of the tower."""
    [batch, *_] = batches_of(folder, "packed")
    tower = model.model.visual.patch_embed.proj.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss, tokens = loss_and_tokens(model, batch)
        (loss / tokens).backward()
        assert tower.grad.abs().sum() > 0
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert losses[0] > losses[1] > losses[2]
