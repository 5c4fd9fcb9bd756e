"""`penstockd index` on a meta file: samples and tokens of each data set that it lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import call_command, write_job_file

ROLES = """
def tokens(raw, context):
    if raw["size"] == 0:
        return context.skip("empty")
    return [{"input_ids": [7] * raw["size"]}] * raw["times"]

tokens.uses_global_rng = False
"""

ROWS = {
    "code": [{"size": n % 5, "times": 1, "keep": n % 3 > 0} for n in range(300)],
    "prose": [{"size": 7, "times": 2, "keep": True} for _ in range(40)],
    "left": [{"size": 0, "times": 1, "keep": False} for _ in range(5)],
}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """A job over three data sets, one of them half twice."""
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    meta: dict[str, Any] = {name: {"file_name": f"{name}.jsonl"} for name in ROWS}
    meta["prose"]["sample_ratio"] = 1.5
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "roles.py").write_text(ROLES)
    return {
        "lanes": 2,
        "source": {"type": "meta", "file": "meta.json"},
        "function": "./roles.py:tokens",
        "batcher": {"type": "knapsack", "max_tokens": 64},
        "collator": {"type": "packed", "pad_to": 64},
        "plan": {"index": "sizes.index"},
    }


def index(folder: Path, job: dict[str, Any], *options: str) -> str:
    file = write_job_file(folder / "penstock.yaml", {"main": job})
    done = call_command("penstockd", "index", str(file), "main", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("where", [None, {"keep": True}])
def test_each_data_set_has_its_counts(
    where: dict[str, Any] | None, tmp_path: Path, job: dict[str, Any]
) -> None:
    """What processing its items gives, as often as an epoch draws them; in sum, the source's."""
    if where:
        job["distributor"] = {"type": "map", "where": where}

    index(tmp_path, job)
    found = json.loads(index(tmp_path, job, "--json"))["sources"]["main"]

    rows = {name: [r for r in ROWS[name] if r["keep"] or not where] for name in ROWS}
    rows["prose"] += rows["prose"][:20]  # all of them are alike
    assert list(found["data_sets"]) == ["code", "left", "prose"]
    for name, counts in found["data_sets"].items():
        full = [row for row in rows[name] if row["size"]]
        assert counts == {
            "items": len(rows[name]),
            "samples": sum(row["times"] for row in full),
            "tokens": sum(row["times"] * row["size"] for row in full),
            "left_out": {"filtered:empty": empty} if (empty := len(rows[name]) - len(full)) else {},
        }
    for count in ("items", "samples", "tokens"):
        assert found[count] == sum(counts[count] for counts in found["data_sets"].values())


def test_people_see_them_too(tmp_path: Path, job: dict[str, Any]) -> None:
    """A line for each."""
    assert "data set prose  120 samples, 840 tokens" in index(tmp_path, job)


def test_a_meta_file_that_is_not_drawn_from_has_no_counts(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    """The index knows nothing of it."""
    meta = job.pop("source")
    drawn = {"type": "jsonl", "files": "code.jsonl"}
    job |= {
        "sources": {"one": drawn, "more": meta},
        "distributor": {"type": "map", "source": "one"},
    }

    index(tmp_path, job)
    found = json.loads(index(tmp_path, job, "--json"))["sources"]

    assert list(found) == ["one"]
    assert "data_sets" not in found["one"]
