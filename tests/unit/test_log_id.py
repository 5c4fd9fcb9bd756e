"""The log id: the same for the same bytes, another for other bytes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.jobs.load import load

ROLE = """\
from penstock.server.roles import RawItemProcessor

class Upper(RawItemProcessor):
    path_params = ("table",)
    {version}
    def __init__(self, factor: int = 1, table: str | None = None) -> None:
        self.factor, self.table = factor, table

    def process(self, raw, context):
        return {{"text": raw["text"].upper()}}
"""

FUNCTION = "def to_sample(raw):\n    return {'n': len(raw['text'])}\n"

JOB: dict[str, Any] = {
    "seed": 7,
    "lanes": 4,
    "source": {"type": "parquet", "files": "corpus/*.parquet", "columns": ["text"]},
    "distributor": {"type": "map", "shuffle": "blocks"},
    "processor": {"type": "tokenize", "tokenizer": "tokenizer.json", "column": "text"},
    "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4},
    "collator": {"type": "packed", "pad_to": 16},
}


def write_tokenizer(path: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(["<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job file's folder with data, a tokenizer and roles in it."""
    home = tmp_path / "home"
    (home / "corpus").mkdir(parents=True)
    for name in ("a", "b"):
        texts = [f"{name} text {number}" for number in range(10)]
        pq.write_table(pa.table({"text": texts, "other": texts}), home / f"corpus/{name}.parquet")
    write_tokenizer(home / "tokenizer.json", ["text", "a", "b"])
    (home / "my_roles.py").write_text(ROLE.format(version=""))
    (home / "data.py").write_text(FUNCTION)
    (home / "table.txt").write_text("one")
    return home


def log_id(folder: Path, job: dict[str, Any], server: dict[str, Any] | None = None) -> str:
    (folder / "penstock.yaml").write_text(json.dumps({"server": server or {}, "jobs": {"j": job}}))
    built = load(str(folder / "penstock.yaml"), environ={}).job("j")
    try:
        return built.log_id.hex()
    finally:
        built.close()


def changed(job: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of a job with one key set; None takes it away."""
    copy = json.loads(json.dumps(job))
    section, _, key = path.rpartition(".")
    target = copy[section] if section else copy
    if value is None:
        del target[key]
    else:
        target[key] = value
    return dict(copy)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(inner) for key, inner in reversed(value.items())}
    return value


def test_it_is_independent_of_location_and_of_times(folder: Path, tmp_path: Path) -> None:
    """Copied elsewhere, touched, and loaded from another working directory: the same log."""
    before = log_id(folder, JOB)

    shutil.copytree(folder, tmp_path / "other" / "place")
    for path in (tmp_path / "other").rglob("*"):
        os.utime(path, (1, 1))

    assert log_id(tmp_path / "other" / "place", JOB) == before


def test_it_is_independent_of_the_order_of_keys(folder: Path) -> None:
    """A job file sorted by hand is the same job."""
    assert log_id(folder, reversed_keys(JOB)) == log_id(folder, JOB)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("batches_per_step", 12),
        ("on_item_error", "quarantine"),
        ("max_quarantined", 3),
        ("max_replay", 3),
        ("snapshot_every", 3),
        ("epochs", None),
        ("distributor.window_blocks", 16),
        ("distributor.reading_groups", 1),
        ("batcher.rows", 1),
        ("batcher.overlong", "split"),
        ("batcher.length_key", "input_ids"),
        ("collator.labels", "unshifted"),
        ("collator.layout", "flash"),
        ("processor.add_special_tokens", False),
        ("source.cache_bytes", 1 << 20),
        ("distributor", "map"),
    ],
)
def test_it_is_not_changed_by_what_decides_no_bytes(folder: Path, path: str, value: Any) -> None:
    """Policies, and defaults spelled out."""
    job = changed(JOB, path, value) if value is not None else {**JOB, path: None}

    assert log_id(folder, job) == log_id(folder, JOB)


def test_it_is_not_changed_by_the_servers_settings(folder: Path) -> None:
    """Workers, byte bounds and addresses belong to a node, not to a log."""
    server = {"workers": 3, "ready_bytes": "1 GiB", "listen": "h:1", "snapshot_seconds": 0}

    assert log_id(folder, JOB, server) == log_id(folder, JOB)


def test_sugar_is_the_same_job(folder: Path) -> None:
    """`batch_size` and `function` stand for roles that can be written out."""
    short = {"source": JOB["source"], "batch_size": 2, "function": "./data.py:to_sample"}
    long = {
        "source": JOB["source"],
        "distributor": {"type": "map"},
        "processor": {"function": "./data.py:to_sample"},
        "batcher": {"type": "simple", "batch_size": 2},
        "collator": "default",
        "seed": 0,
        "lanes": 48,
    }

    assert log_id(folder, short) == log_id(folder, long)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 8),
        ("lanes", 5),
        ("source.columns", ["text", "other"]),
        ("source.files", "corpus/a.parquet"),
        ("distributor.shuffle", "none"),
        ("distributor.window_blocks", 1),
        ("distributor.reading_groups", 2),
        ("processor.max_length", 9),
        ("processor.append", "a"),
        ("batcher.max_tokens", 15),
        ("batcher.pool_size", 5),
        ("batcher.overlong", "truncate"),
        ("batcher.type", "sequential"),
        ("collator.labels", "shifted"),
        ("collator.pad_to", 17),
    ],
)
def test_it_is_changed_by_what_decides_bytes(folder: Path, path: str, value: Any) -> None:
    """The seed, the lanes, and every parameter of every role."""
    job = changed(JOB, path, value)
    if value == "sequential":
        job["batcher"] = {"type": "sequential", "max_sequence_length": 16}

    assert log_id(folder, job) != log_id(folder, JOB)


def test_it_is_changed_by_the_content_of_files(folder: Path) -> None:
    """A retrained tokenizer or other rows under the same name are another log."""
    seen = {log_id(folder, JOB)}

    write_tokenizer(folder / "tokenizer.json", ["text", "b", "a"])
    seen.add(log_id(folder, JOB))
    texts = [f"a text {number}" for number in reversed(range(10))]
    pq.write_table(pa.table({"text": texts, "other": texts}), folder / "corpus/a.parquet")
    seen.add(log_id(folder, JOB))

    assert len(seen) == 3


@pytest.mark.parametrize("key", ["processor", "function"])
def test_it_is_changed_by_the_source_of_users_code(folder: Path, key: str) -> None:
    """Code without a version is identified by its module's text."""
    named = {"processor": {"type": "./my_roles.py:Upper"}, "function": "./data.py:to_sample"}[key]
    job = {**JOB, "batcher": {"type": "simple", "batch_size": 2}, "collator": "default", key: named}
    if key == "function":
        del job["processor"]
    before = log_id(folder, job)

    for name in ("my_roles.py", "data.py"):
        with (folder / name).open("a") as file:
            file.write("# edited\n")

    assert log_id(folder, job) != before


def test_a_pinned_version_stands_for_the_source(folder: Path) -> None:
    """With `version` a refactoring keeps the log, and raising it makes another."""
    job = changed(JOB, "processor", {"type": "./my_roles.py:Upper"})
    seen = []

    for version, comment in (
        ("version = 1", ""),
        ("version = 1", "# edited\n"),
        ("version = 2", ""),
    ):
        (folder / "my_roles.py").write_text(ROLE.format(version=version) + comment)
        seen.append(log_id(folder, job))

    assert seen[0] == seen[1] != seen[2]


def test_a_users_subclass_is_not_taken_for_the_builtin(folder: Path) -> None:
    """Inheriting a built-in's name and pinning the same version does not make it the built-in."""
    (folder / "mine.py").write_text(
        "from penstock.server.roles import BestFitPackingBatcher\n"
        "class Mine(BestFitPackingBatcher):\n"
        "    version = 1\n"
    )

    mine = changed(JOB, "batcher.type", "./mine.py:Mine")

    assert log_id(folder, mine) != log_id(folder, JOB)


def test_a_users_files_count_by_content_and_not_by_place(folder: Path, tmp_path: Path) -> None:
    """What `path_params` names is hashed, unasked."""
    job = changed(JOB, "processor", {"type": "./my_roles.py:Upper", "table": "table.txt"})
    before = log_id(folder, job)

    shutil.copytree(folder, tmp_path / "copy")
    (folder / "table.txt").write_text("two")

    assert log_id(tmp_path / "copy", job) == before
    assert log_id(folder, job) != before


def test_a_users_parameters_count(folder: Path) -> None:
    """A parameter of a user's own class is in the log id, unless it is equal to its default."""
    upper = {"type": "./my_roles.py:Upper"}

    same, default, other = (
        log_id(folder, changed(JOB, "processor", {**upper, **parameters}))
        for parameters in ({}, {"factor": 1}, {"factor": 2})
    )

    assert same == default != other


# --- modules beside a role's file ---
