"""`--set JOB.KEY=VALUE`: keys of a job that the command line overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.server.jobs.definition import rebuild
from penstock.server.jobs.load import Config, load

FILE = """\
x-batcher: &batcher {type: best_fit, max_tokens: 64, pool_size: 8}
jobs:
  code:
    lanes: 4
    source: {type: items, items: [{input_ids: [1]}, {input_ids: [2]}]}
    distributor: map
    batcher: *batcher
    collator: {type: packed, pad_to: 64}
  code.v2:
    source: {type: items, items: [{input_ids: [1]}, {input_ids: [2]}]}
    batcher: *batcher
    collator: {type: packed, pad_to: 64}
"""


def read(folder: Path, text: str, *assignments: str) -> Config:
    path = folder / "penstock.yaml"
    path.write_text(text)
    return load(str(path), environ={}, assignments=assignments)


@pytest.mark.parametrize(
    ("assignment", "old", "new"),
    [
        ("code.batcher.max_tokens=32", "batcher: *batcher", "batcher: {type: best_fit, "
         "max_tokens: 32, pool_size: 8}"),
        ("code.lanes=2", "lanes: 4", "lanes: 2"),
        ("code.seed=0x10", "lanes: 4", "lanes: 4\n    seed: 16"),
        ("code.distributor.shuffle=none", "distributor: map", "distributor: {type: map, "
         "shuffle: none}"),
        ("code.source.items[1].input_ids=[7, 8]", "{input_ids: [2]}", "{input_ids: [7, 8]}"),
        ("code.batcher={type: next_fit, max_tokens: 8}", "batcher: *batcher",
         "batcher: {type: next_fit, max_tokens: 8}"),
        ("code.plan=null", "lanes: 4", "lanes: 4"),
    ],
)  # fmt: skip
def test_a_job_is_what_the_edited_file_would_make_of_it(
    tmp_path: Path, assignment: str, old: str, new: str
) -> None:
    """The same log, here and where a worker builds it again."""
    edited = read(tmp_path, FILE.replace(old, new, 1)).job("code")

    job = read(tmp_path, FILE, assignment).job("code")

    assert job.log_id == edited.log_id
    assert rebuild(job.definition, job.log_id).log_id == job.log_id


def test_what_is_set_changes_the_log(tmp_path: Path) -> None:
    """Unless it decides no byte; and the last of a key counts."""
    plain = read(tmp_path, FILE).job("code").log_id

    found = {
        name: read(tmp_path, FILE, *options).job("code").log_id
        for name, options in {
            "tokens": ["code.batcher.max_tokens=32"],
            "step": ["code.batches_per_step=4"],
            "back": ["code.batcher.max_tokens=32", "code.batcher.max_tokens=64"],
        }.items()
    }

    assert found["tokens"] != plain
    assert found["step"] == found["back"] == plain


def test_a_shared_section_changes_for_the_named_job_alone(tmp_path: Path) -> None:
    """An anchor is written out; and names of jobs may hold dots."""
    plain = read(tmp_path, FILE)

    config = read(tmp_path, FILE, "code.v2.batcher.max_tokens=32")

    assert config.job("code").log_id == plain.job("code").log_id
    assert config.job("code.v2").log_id != plain.job("code.v2").log_id


def test_relative_paths_start_at_the_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those in the file do, whatever folder the command runs in."""
    (tmp_path / "lines.jsonl").write_text('{"input_ids": [1]}\n' * 3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    job = read(tmp_path, FILE, "code.source={type: jsonl, files: lines.jsonl}").job("code")

    source: Any = job.sources["main"]
    assert len(source) == 3
