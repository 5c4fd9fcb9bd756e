"""Sources in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.server.sources import HfSource


def write_jsonl(path: Path, numbers: range) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"n": n, "list": [n, n]}) + "\n" for n in numbers))
    return str(path)


def numbers(source: HfSource) -> list[int]:
    return [item["n"] for item in source.fetch(range(len(source)))]


def test_processes_that_prepare_at_once_get_the_same_rows(tmp_path: Path) -> None:
    """Server and workers open a source at the same time: one prepares, all read that."""
    files = write_jsonl(tmp_path / "rows.jsonl", range(2000))
    code = (
        "import sys; from penstock.server.sources import HfSource;"
        "source = HfSource('json', data_files=sys.argv[1]);"
        "print(sum(item['n'] for item in source.fetch(range(len(source)))))"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}

    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, files],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=240) for process in running]

    assert [out.strip() for out, _ in said] == [str(sum(range(2000)))] * 3, said
    assert len([*(tmp_path / "cache").rglob("dataset_info.json")]) == 1


LATE_TORCH = """
from penstock.server.usercode.seeding import drawn_since, seeded_globals

with seeded_globals(7):
    import torch
    assert not drawn_since(7), "the import itself draws nothing"
    first = torch.rand(3).tolist()
    assert drawn_since(7)
assert torch.initial_seed() != 7, "the process has its own state again"
with seeded_globals(7):
    assert torch.rand(3).tolist() == first
"""


def test_torch_that_is_imported_by_an_item_is_seeded_for_it() -> None:
    """`import torch` in `__getitem__`: the first item of a process draws what it draws anywhere."""
    pytest.importorskip("torch")

    done = subprocess.run(
        [sys.executable, "-c", LATE_TORCH], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
