"""`--set`: every command that reads a job file, and every process of it, has the same job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import call_command, run_command, serving, write_job_file
from penstock.server.jobs.load import load

OVERRIDE = "main.batcher={type: knapsack, max_tokens: 64, window: 100}"
"""Without it, the job has no batcher: no process can build it."""

KEY = "main.batcher.max_tokens=32"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A job file with a job that is not whole, for a node of two workers."""
    rows = [{"input_ids": [7] * (1 + number % 9)} for number in range(400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job: dict[str, Any] = {
        "lanes": 2,
        "source": {"type": "jsonl", "files": "rows.jsonl"},
        "function": "./roles.py:tokens",
        "collator": {"type": "packed", "pad_to": 64},
    }
    (tmp_path / "roles.py").write_text("def tokens(raw):\n    return dict(raw)\n")
    return write_job_file(tmp_path / "penstock.yaml", {"main": job}, workers=2)


def as_edited(file: Path, **more: Any) -> Path:
    """Return a file whose job says what the options say."""
    job = yaml.safe_load(file.read_text())["jobs"]["main"]
    job["batcher"] = {"type": "knapsack", "max_tokens": 32, "window": 100}
    return write_job_file(file.parent / "edited.yaml", {"main": {**job, **more}}, workers=2)


def answer(*arguments: str) -> Any:
    done = run_command(["penstock.server.cli", *arguments, "--json"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_check_and_size_measure_the_job_that_was_set(file: Path) -> None:
    """In processes of their own too, where they compare, and where as many run as workers."""
    found = answer("check", str(file), "main", "--set", OVERRIDE, "--set", KEY)["jobs"][0]
    rates = ("--ranks", "2", "--tokens-per-s-per-rank", "10", "--seconds", "0.2")
    size = answer("size", str(file), "main", *rates, "--set", OVERRIDE, "--set", KEY)

    edited = load(str(as_edited(file))).job("main")
    assert found["log_id"] == edited.log_id.hex()
    assert found["together"]["processes"] == 2
    assert size["core"]["together"]["processes"] == 2


def test_an_index_is_made_and_planned_by_the_job_that_was_set(file: Path) -> None:
    """Its workers build the job; and `plan` and `show` read the index by it."""
    options = ("--set", OVERRIDE, "--set", KEY, "--set", "main.plan.index=sizes.index")
    made = answer("index", str(file), "main", *options)
    planned = answer("plan", str(file), "main", *options)
    shown = answer("show", str(file), "main", "--position", "3", *options)

    edited = str(as_edited(file, plan={"index": "sizes.index"}))
    assert made["samples"] == 400
    assert planned["log_id"] == load(edited).job("main").log_id.hex()
    assert shown["digest"] == answer("show", edited, "main", "--position", "3")["digest"]


def test_a_node_serves_the_job_that_was_set(file: Path) -> None:
    """Its workers too; and its batches are those of the edited file."""
    with serving(file, "--set", OVERRIDE, "--set", KEY) as server:
        done = call_command("penstock", "cat", server.address, "main", "--count", "4", "--json")

    served = [json.loads(line)["digest"] for line in done.stdout.splitlines()]
    shown = answer("show", str(as_edited(file)), "main", "--position", "0")
    assert len(served) == 4
    assert served[0] == shown["digest"]


def test_a_wrong_key_ends_a_command_with_one_sentence(file: Path) -> None:
    """Which names the option and the nearest key."""
    done = call_command("penstockd", "show", str(file), "main", "--position", "0",
                        "--set", OVERRIDE, "--set", "main.batcher.max_tokns=1")  # fmt: skip

    assert done.returncode == 2
    assert done.stderr.strip().endswith(
        "error: --set main.batcher.max_tokns: jobs.main.batcher.max_tokns is not a parameter of "
        "knapsack: did you mean max_tokens or max_packs? [invalid_job]"
    )
