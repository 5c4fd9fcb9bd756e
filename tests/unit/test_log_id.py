"""The log id: the same for the same bytes, another for other bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import run_command
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


def test_it_is_the_same_in_another_process(folder: Path) -> None:
    """Nothing in it depends on hash randomisation or on what was loaded before."""
    job = changed(JOB, "processor", {"type": "./my_roles.py:Upper"})
    here = log_id(folder, job)
    code = (
        "import sys; from penstock.server.jobs.load import load;"
        "print(load(sys.argv[1]).job('j').log_id.hex())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "penstock.yaml")],
        env={**os.environ, "PYTHONHASHSEED": "99"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == here


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


NEIGHBOURS = {
    "roles7.py": """\
from penstock.server.roles import RawItemProcessor
import json
from helpers7 import factor

class Mine(RawItemProcessor):
    def process(self, raw, context):
        from package7 import late
        return {"n": late.twice(factor) * len(raw["text"])}
""",
    "helpers7.py": "import deep7\nfactor = deep7.value\n",
    "deep7.py": "value = 3\nimport helpers7\n",  # a circle
    "package7/__init__.py": "",
    "package7/late.py": "from . import beside\nfrom .inner import thing as t\n"
    "def twice(x): return 2 * x\n",
    "package7/beside.py": "import importlib\nby_name = importlib.import_module('named7')\n",
    "package7/inner/thing.py": "x = 1\n",  # a folder without __init__.py
    "named7.py": "y = 1\n",
    "unused7.py": "z = 1\n",
    "json.py": "raise RuntimeError('hidden by the json of Python')\n",
}

IDENTITY = (
    "import sys; from penstock.server.jobs.load import load;"
    "print(load(sys.argv[1]).job('j').log_id.hex())"
)


def write_neighbours(folder: Path) -> None:
    for name, text in NEIGHBOURS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    job = {
        "source": {"type": "items", "items": [{"text": "a"}]},
        "processor": {"type": "./roles7.py:Mine"},
        "batch_size": 1,
    }
    (folder / "penstock.yaml").write_text(json.dumps({"jobs": {"j": job}}))


def identity(folder: Path, code: str = IDENTITY, **environment: str) -> str:
    """Return what a process of its own says: modules are imported once per process.

    With other variables it is a fresh interpreter, else a fork of one without modules of a user's.
    """
    if environment:
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder / "penstock.yaml")],
            env={**os.environ, **environment},
            cwd=folder.parent,
            capture_output=True,
            text=True,
        )
    else:
        (folder.parent / "asking7.py").write_text(code)
        done = run_command(["asking7", str(folder / "penstock.yaml")], folder=folder.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_changed_by_every_module_that_a_role_imports_from_its_folder(tmp_path: Path) -> None:
    """Directly, through others, in a circle, in a function, from packages, by a literal name."""
    home = tmp_path / "home"
    write_neighbours(home)
    before = identity(home)

    changes = {}
    for name in NEIGHBOURS:
        write_neighbours(home)
        with (home / name).open("a") as file:
            file.write("# edited\n")
        changes[name] = identity(home) != before

    assert changes == {name: name not in ("unused7.py", "json.py") for name in NEIGHBOURS}


def test_neighbours_count_by_their_text_wherever_they_lie_and_whatever_ran(tmp_path: Path) -> None:
    """Copied, touched, reached by a link, with the imports in functions done or not: one id."""
    home = tmp_path / "home"
    write_neighbours(home)
    (home / "json.py").unlink()  # a user's own path comes before Python's
    before = identity(home)
    shutil.copytree(home, tmp_path / "there" / "copy")
    for path in (tmp_path / "there").rglob("*"):
        os.utime(path, (1, 1))
    (tmp_path / "link").symlink_to(home)
    ran = (
        f"import sys; sys.path.insert(0, '{home}'); import helpers7, package7.late;"  # by its user
        "from penstock.server.jobs.load import load; job = load(sys.argv[1]).job('j');"
        "job.role_sets[0].processor.process({'text': 'a'}, None); print(job.log_id.hex())"
    )

    assert identity(tmp_path / "there" / "copy") == before
    assert identity(tmp_path / "link") == before
    assert identity(home, ran) == before
    assert identity(tmp_path / "link", ran) == before
    assert identity(home, PYTHONPATH=str(home)) == before


def test_an_edited_neighbour_is_run_as_it_is_hashed(tmp_path: Path) -> None:
    """Python's cache of compiled code knows times and sizes: it gives no old code here."""
    home = tmp_path / "home"
    code = (
        "import sys; from penstock.server.jobs.load import load; job = load(sys.argv[1]).job('j');"
        "print(job.log_id.hex(), job.role_sets[0].processor.process({'text': 'a'}, None)['n'])"
    )

    said = []
    for value in (3, 4):
        write_neighbours(home)
        (home / "deep7.py").write_text(f"value = {value}\n")
        for path in home.rglob("*.py"):
            os.utime(path, (10**9, 10**9))
        said.append(identity(home, code).split())

    assert [n for _, n in said] == ["6", "8"]
    assert said[0][0] != said[1][0]


def test_what_is_hashed_is_what_runs_later_in_this_process(tmp_path: Path) -> None:
    """A neighbour that is imported late, and edited before that, runs as it was hashed."""
    home = tmp_path / "home"
    write_neighbours(home)
    code = (
        "import sys, pathlib; from penstock.server.jobs.load import load;"
        "job = load(sys.argv[1]).job('j'); before = job.log_id;"
        "late = pathlib.Path(sys.argv[1]).parent / 'package7' / 'late.py';"
        "late.write_text('def twice(x): return 200 * x');"
        "print(job.role_sets[0].processor.process({'text': 'a'}, None)['n'])"
    )

    assert identity(home, code) == "6"


def test_a_module_in_a_package_counts_with_its_package(tmp_path: Path) -> None:
    """`package.module:Class` brings what it imports from its package, and nothing installed."""
    home = tmp_path / "home"
    write_neighbours(home)
    package = tmp_path / "lib" / "mine7"
    shutil.copytree(home / "package7", package)
    (package / "roles").mkdir()
    (package / "roles" / "__init__.py").write_text("")
    (package / "other.py").write_text("x = 1\n")
    (package / "roles" / "role.py").write_text(
        "from ..inner import thing\nimport numpy\n"
        + NEIGHBOURS["roles7.py"].replace("helpers7", "mine7.inner.thing").replace("factor", "x")
    )
    job = json.loads((home / "penstock.yaml").read_text())
    job["jobs"]["j"]["processor"]["type"] = "mine7.roles.role:Mine"
    (home / "penstock.yaml").write_text(json.dumps(job))
    lib = {"PYTHONPATH": str(tmp_path / "lib")}
    before = identity(home, **lib)

    (package / "other.py").write_text("x = 2\n")
    same = identity(home, **lib)
    (package / "inner" / "thing.py").write_text("x = 2\n")
    other = identity(home, **lib)

    assert same == before != other


def test_two_folders_with_different_modules_of_one_name_are_refused(tmp_path: Path) -> None:
    """The second role would run the first one's module: it is named, with the way on."""
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "common7.py").write_text(f"value = {value}\n")
        (tmp_path / name / f"role_{name}.py").write_text(
            "from common7 import value\ndef f(raw): return {'n': value}\n"
        )
    code = (
        "import sys; from penstock.server.usercode.imports import load_attribute\n"
        "from penstock.wire.errors import InvalidJob\n"
        "f = load_attribute('a/role_a.py:f')\n"
        "try: load_attribute('b/role_b.py:f')\n"
        "except InvalidJob as error: print(error.message)"
    )

    said = identity(tmp_path / "a", code)

    assert f"{tmp_path}/b/common7.py cannot be imported" in said
    assert "rename one of them" in said
