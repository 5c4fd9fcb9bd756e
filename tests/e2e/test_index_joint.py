"""`penstockd index` of a joint job: an index for each set of roles, which is then served."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.test_commands_on_a_terminal import on_a_terminal
from e2e.test_index_command import kill_when, told
from harness import call_command, run_command, serving, write_job_file
from invariants import Purity
from penstock.client import Loader
from penstock.server.jobs.load import load

COUNTS = {"a": 900, "b": 500}
BLOCK = 256
ROW = {"type": "best_fit_decreasing", "max_tokens": 64}

ROLES = """
def ids(raw, context):
    if not raw["n"]:
        return context.skip("empty")
    if raw["n"] > 25:
        return [{"input_ids": [1] * 10}, {"input_ids": [2] * raw["n"]}]
    return {"input_ids": [3] * raw["n"]}

ids.uses_global_rng = False

def slow(raw, context):
    sum(range(50_000))
    return ids(raw, context)

slow.uses_global_rng = False
"""


def write_jobs(folder: Path) -> Path:
    """Write a corpus of two files; a joint job over both, and jobs of each of its sets alone."""
    (folder / "roles.py").write_text(ROLES)
    sets: dict[str, dict[str, Any]] = {}
    for name, count in COUNTS.items():
        rows = [{"n": 7 * n % 30} for n in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        sets[name] = {
            "source": {"type": "jsonl", "files": f"{name}.jsonl"},
            "function": "./roles.py:ids",
            "batcher": ROW,
            "collator": {"type": "packed", "pad_to": 64},
        }
    slow = {name: {**each, "function": "./roles.py:slow"} for name, each in sets.items()}
    joint = {"lanes": 4, "choice": "batch", "seed": 2}
    plans = {name: {**each, "plan": {"index": f"{name}.index"}} for name, each in sets.items()}
    jobs = {
        "joint": {**joint, "joint": plans},
        "slow": {**joint, "joint": slow},
        "bare": {**joint, "joint": sets},
        "half": {**joint, "joint": {**sets, "a": plans["a"]}},
        **{f"{name}_alone": alone(name, each) for name, each in sets.items()},
        **{f"slow_{name}_alone": alone(name, each) for name, each in slow.items()},
    }
    return write_job_file(folder / "jobs.yaml", jobs, workers=2)


def alone(name: str, roles: dict[str, Any]) -> dict[str, Any]:
    """Return a job of one set alone: its sources have the set's name."""
    rest = {key: value for key, value in roles.items() if key != "source"}
    return {"seed": 2, **rest, "sources": {name: roles["source"]}}


def index(folder: Path, job: str, *flags: str) -> subprocess.CompletedProcess[str]:
    arguments = ["index", str(folder / "jobs.yaml"), job, *flags]
    return run_command(["penstock.server.cli", *arguments], 120.0, folder=folder)


def test_what_is_made_side_by_side_is_what_each_set_alone_gives(tmp_path: Path) -> None:
    """To the byte; and the job is served from it, by the same bytes as `local:` computes."""
    file = write_jobs(tmp_path)

    made = told(index(tmp_path, "joint", "--json"))
    for name in COUNTS:
        told(index(tmp_path, f"{name}_alone", "--output", f"{name}.alone", "--json"))
        same = (tmp_path / f"{name}.alone").read_bytes()
        assert (tmp_path / f"{name}.index").read_bytes() == same
    again = index(tmp_path, "joint")

    assert [*made["sets"]] == ["a", "b"]
    for name, count in COUNTS.items():
        each = made["sets"][name]
        assert (each["index"], each["made"]) == (str(tmp_path / f"{name}.index"), True)
        assert each["items"] == count
        assert [*each["sources"]] == [name]
    assert [line for line in again.stdout.splitlines() if line.startswith("index ")] == [
        f"index {tmp_path / f'{name}.index'}, of set {name}, is there already and fits"
        for name in COUNTS
    ]
    truth = Purity(load(str(file)).job("joint"))
    with (
        serving(file) as node,
        Loader(node.address, "joint", rank=0, world_size=1, as_numpy=True) as loader,
    ):
        for batch in islice(loader, 60):
            truth.saw(batch.header, bytes(batch.body))
    assert truth.seen == 60


def test_what_is_killed_goes_on_in_all_sets(tmp_path: Path) -> None:
    """Killed twice, with blocks of one set finished and then of both: the bytes are the same."""
    write_jobs(tmp_path)
    flags = ["--output", "a=a.here", "--output", "b=b.here"]
    command = ["penstock.server.cli", "index", str(tmp_path / "jobs.yaml"), "slow", *flags]
    parts = {name: tmp_path / f"{name}.here.parts" for name in COUNTS}

    def are_finished(*names: str) -> bool:
        return all([*parts[name].glob("[0-9]*")] for name in names)

    kill_when(command, tmp_path, partial(are_finished, "b"))
    kill_when(command, tmp_path, partial(are_finished, "a", "b"))
    assert not any((tmp_path / f"{name}.here").exists() for name in COUNTS)
    done = told(index(tmp_path, "slow", *flags, "--json"))

    assert sum(each["items_of_earlier_commands"] for each in done["sets"].values()) >= BLOCK
    for name in COUNTS:
        told(index(tmp_path, f"slow_{name}_alone", "--output", f"{name}.alone", "--json"))
        same = (tmp_path / f"{name}.alone").read_bytes()
        assert (tmp_path / f"{name}.here").read_bytes() == same
    assert not any(path.exists() for path in parts.values())


def test_one_set_is_made_alone(tmp_path: Path) -> None:
    """By its plan, or where the command says; the other has its index later, from the same job."""
    write_jobs(tmp_path)

    one = told(index(tmp_path, "joint", "--role-set", "b", "--json"))
    assert [*one["sets"]] == ["b"]
    assert not (tmp_path / "a.index").exists()
    both = told(index(tmp_path, "joint", "--json"))
    here = told(index(tmp_path, "bare", "--role-set", "a", "--output", "here.index", "--json"))

    assert {name: each["made"] for name, each in both["sets"].items()} == {"a": True, "b": False}
    assert here["sets"]["a"]["root"] == both["sets"]["a"]["root"]


def test_a_plan_takes_an_index_for_each_set_that_has_none(tmp_path: Path) -> None:
    """For all of them, or beside a set with a plan."""
    write_jobs(tmp_path)
    told(index(tmp_path, "joint", "--json"))
    lanes, step = ["--lanes", "4"], ["--batches-per-step", "4"]

    def planned(job: str, *flags: str) -> dict[str, Any]:
        arguments = ("plan", "jobs.yaml", job, "--json", *lanes, *step, *flags)
        return told(call_command("penstockd", *arguments, folder=tmp_path))

    bare = planned("bare", "--index", "a=a.index", "--index", "b=b.index")
    half = planned("half", "--index", "b=b.index")
    whole = planned("joint")

    for found in (bare, half, whole):
        assert found["sizes_from"] == "index"
        assert found["samples"] > 0


def test_a_terminal_has_one_bar_for_all_sets(tmp_path: Path) -> None:
    write_jobs(tmp_path)
    flags = ("--output", "a=a.here", "--output", "b=b.here")

    status, written = on_a_terminal(tmp_path, "index", "jobs.yaml", "slow", *flags)

    assert status == 0, written
    assert f"of {sum(COUNTS.values()):,} items" in written.partition("index ")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["index", "bare"], "no set of roles of job 'bare' says where its index of sizes lies"),
        (["index", "bare", "--role-set", "a"], "give --output a=URL, or the set a plan"),
        (["index", "joint", "--role-set", "c"], "the sets of job 'joint' are a, b"),
        (["index", "a_alone", "--role-set", "a"], "has one set of roles without a name"),
        (["index", "bare", "--output", "x"], "write NAME=URL, where NAME is a or b"),
        (
            ["index", "joint", "--role-set", "a", "--output", "b=x"],
            "add --role-set b, or leave the place",
        ),
        (
            ["index", "bare", "--role-set", "a", "--output", "aa=x"],
            "'aa=x', and job 'bare' has several sets of roles: write NAME=URL",
        ),
        (["index", "bare", "--output", "a=x", "--output", "a=y"], "is given twice for set 'a'"),
        (["index", "bare", "--output", "a="], "is given without a place for set 'a'"),
        (["index", "a_alone", "--output", "x", "--output", "y"], "is given twice"),
        (
            ["index", "bare", "--output", "a=x", "--output", "b=./x"],
            "sets 'a' and 'b' of job 'bare' name one place for their indexes of sizes, './x'",
        ),
        (["plan", "bare"], "the sizes of the samples of set 'a' of job 'bare' are not known"),
        (["plan", "bare", "--index", "x"], "write NAME=URL, where NAME is a or b"),
        (["plan", "bare", "--index", "b=none"], "there is no index of sizes at 'none'"),
        (["plan", "joint"], "there is no index of sizes at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_told_in_a_sentence(
    joint_folder: Path, arguments: list[str], said: str
) -> None:
    command, job, *flags = arguments

    done = call_command("penstockd", command, "jobs.yaml", job, *flags, folder=joint_folder)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def joint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which no index is made."""
    folder = tmp_path_factory.mktemp("joint")
    write_jobs(folder)
    return folder


def test_a_missing_index_is_told_with_the_line_of_its_set(tmp_path: Path) -> None:
    lines = write_jobs(tmp_path).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.strip() == "index: b.index")
    told(index(tmp_path, "joint", "--role-set", "a", "--json"))

    done = call_command("penstockd", "check", "jobs.yaml", "joint", folder=tmp_path)

    assert done.returncode == 2
    assert f"jobs.yaml:{number}: jobs.joint: there is no index of sizes at " in done.stderr


def test_a_set_that_cannot_be_planned_is_told_with_its_line(tmp_path: Path) -> None:
    """Its keys stand under its name in the job file."""
    text = write_jobs(tmp_path).read_text()
    told(index(tmp_path, "joint", "--json"))
    jobs = yaml.safe_load(text)["jobs"]
    sets = jobs["joint"]["joint"]
    sets["b"]["distributor"] = {"type": "map", "sample_ratio": 1.5, "resample": True}
    lines = write_job_file(tmp_path / "wrong.yaml", jobs).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.strip() == "resample: true")

    done = call_command("penstockd", "check", "wrong.yaml", "joint", folder=tmp_path)

    assert done.returncode == 2
    assert f"wrong.yaml:{number}: jobs.joint: resample draws other items" in done.stderr
