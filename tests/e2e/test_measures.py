"""A job whose samples count images and patches: its commands, and a node with two workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.client import Loader
from penstock.server.cli import run

ROLES = """
from penstock.server.roles import RawItemProcessor, SampleSizes


class Pictures(RawItemProcessor):
    version = 1
    one_to_one = True
    measures = ("images", "patches")

    def process(self, raw, context):
        size, images, patches = raw["real"]
        return {"input_ids": [images, patches] + [raw["number"]] * (size - 2)}

    def counts(self, sample):
        return sample["input_ids"][:2]

    def size(self, raw):
        size, *counts = raw["real"]
        return SampleSizes(size, tuple(counts))
"""

ITEMS = [
    {"number": number, "real": [4 + number % 9, number % 4, number * 7 % 30]}
    for number in range(60)
]

JOBS = """
jobs:
  job: &job
    lanes: 2
    epochs: 2
    source: {{type: items, items: {items}}}
    processor: ./roles.py:Pictures
    batcher: {{type: best_fit, max_tokens: 32, limits: {{images: 3, patches: 40}}}}
    collator: {{type: packed, pad_to: 32}}
  planned:
    <<: *job
    batcher: {{type: knapsack, max_tokens: 32, rows: 2, limits: {{images: 3, patches: 40}}}}
    plan: {{index: sizes.index, window: 30}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "roles.py").write_text(ROLES)
    (tmp_path / "jobs.yaml").write_text(JOBS.format(items=json.dumps(ITEMS)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_say_what_samples_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The index all of it; `plan` and `check` per batch, too, and which limit closed rows."""
    images = sum(item["real"][1] for item in ITEMS)  # type: ignore[index,misc]

    def said(*arguments: str) -> str:
        assert run([*arguments]) == 0
        return capsys.readouterr().out

    index = json.loads(said("index", "jobs.yaml", "planned", "--json"))
    plan = json.loads(said("plan", "jobs.yaml", "planned", "--json"))
    text = said("plan", "jobs.yaml", "planned")
    check = said("check", "jobs.yaml", "planned")

    assert index["measures"]["images"] == images
    assert plan["measures"]["images"]["total"] == 2 * images
    assert plan["measures"]["images"]["per_batch"]["max"] <= 2 * 3
    assert plan["measures"]["patches"]["per_batch"]["max"] <= 2 * 40
    assert plan["batcher"]["closed_by_images"] + plan["batcher"]["closed_by_patches"] > 0
    assert f"{2 * images:,}; per batch" in text
    assert "closed_by_patches" in text
    assert "images in " in check


def test_a_limit_of_no_measure_is_refused_with_file_and_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "jobs.yaml"
    file.write_text(file.read_text().replace("images: 3", "seconds: 3"))

    assert run(["check", "jobs.yaml", "job"]) == 2

    [line] = capsys.readouterr().err.splitlines()
    assert "jobs.yaml:" in line
    assert "limits has 'seconds', and the processor's samples count images, patches: name" in line


def test_a_node_gives_rows_within_every_limit(folder: Path) -> None:
    """Plans travel to workers with their counts; each item comes once in each epoch."""
    assert run(["index", "jobs.yaml", "planned"]) == 0
    for job in ("job", "planned"):
        seen: list[tuple[int, int]] = []
        target = f"spawn:{folder / 'jobs.yaml'}?workers=2"
        with Loader(target, job, rank=0, world_size=1, as_numpy=True) as loader:
            for batch in loader:
                rows: dict[int, list[int]] = {}
                for sample in batch.header.samples:
                    rows.setdefault(sample.row, []).append(sample.index)
                    seen.append((sample.index, sample.epoch))
                for row in rows.values():
                    real = [ITEMS[number]["real"] for number in row]
                    assert sum(images for _, images, _ in real) <= 3  # type: ignore[misc]
                    assert sum(patches for *_, patches in real) <= 40  # type: ignore[misc]

        assert sorted(seen) == [(number, epoch) for number in range(60) for epoch in range(2)]
