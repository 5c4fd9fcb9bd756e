"""What workers import before they have a job: what its built-in roles will, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from harness import ENVIRONMENT
from penstock.server.jobs.load import load
from penstock.server.jobs.needed_imports import IMPORTED
from penstock.server.jobs.registry import KINDS


def test_every_name_is_that_of_a_built_in_role() -> None:
    for kind, modules in IMPORTED.items():
        assert modules.keys() <= KINDS[kind].builtins.keys()


def write(folder: Path, **roles: object) -> Path:
    file = folder / "jobs.yaml"
    file.write_text(yaml.safe_dump({"jobs": {"one": {"batch_size": 1, **roles}}}))
    return file


@pytest.mark.parametrize(
    ("roles", "imports"),
    [
        (
            {"source": {"type": "items", "items": [1]}},
            ("penstock.server.sources.item_list",),
        ),
        ({"source": {"type": "./mine.py:Mine"}}, ()),
        (
            {
                "sources": {"a": {"type": "parquet", "files": "a"}, "b": {"type": "hf_stream"}},
                "processor": {"type": "tokenize"},
            },
            (
                "datasets",
                "penstock.server.sources.hf_stream",
                "penstock.server.sources.parquet",
                "pyarrow.parquet",
                "tokenizers",
            ),
        ),
    ],
)
def test_a_file_says_what_its_jobs_import(
    tmp_path: Path, roles: dict[str, object], imports: tuple[str, ...]
) -> None:
    """Without building one: the files that it names need not be there."""
    assert load(str(write(tmp_path, **roles))).imports == imports


@pytest.mark.parametrize("type_name", ["parquet", "csv", "arrow"])
def test_a_source_imports_what_is_said_of_it(tmp_path: Path, type_name: str) -> None:
    """In a process of its own: a name here that nothing imports would cost each worker."""
    data, table = tmp_path / f"data.{type_name}", pa.table({"x": [1, 2, 3]})
    if type_name == "parquet":
        pq.write_table(table, data)
    elif type_name == "csv":
        pa_csv.write_csv(table, data)
    else:
        with pa.OSFile(str(data), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    file = write(tmp_path, source={"type": type_name, "files": str(data)})
    script = f"""
import sys
from penstock.server.jobs.load import load

config = load({str(file)!r})
assert not set(config.imports) & sys.modules.keys(), "a worker has it in any case"
config.job("one")
assert set(config.imports) <= sys.modules.keys()
"""

    done = subprocess.run(
        [sys.executable, "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
