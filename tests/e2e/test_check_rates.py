"""`penstockd check` says what workers give together: measured at once, and not multiplied."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from harness import run_command

HELD_S = 0.01

CODE = f"""
import fcntl, os, pathlib, sys, time

PLACE = pathlib.Path(__file__).with_name("lock")
MEASURING = sys.argv[0].endswith("side_by_side.py")

def one_at_a_time(raw):
    with PLACE.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep({HELD_S})
    return raw

def fails_late(raw):
    if raw["x"] == 101:
        raise ValueError("odd and late")
    return raw

def dies(raw):
    if MEASURING:
        print("out of luck", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    return raw
"""


def check(
    folder: Path, function: str, workers: int, **job: Any
) -> subprocess.CompletedProcess[str]:
    (folder / "code.py").write_text(CODE)
    items = [{"x": number} for number in range(400)]
    content = {
        "lanes": 2,
        "distributor": {"type": "map", "shuffle": "none"},
        "source": {"type": "items", "items": items},
        "function": f"./code.py:{function}",
        "batch_size": 1,
    }
    file = {"server": {"workers": workers}, "jobs": {"job": {**content, **job}}}
    (folder / "job.yaml").write_text(json.dumps(file))
    return run_command(["penstock.server.cli", "check", str(folder / "job.yaml"), "--json"], 120.0)


def test_what_workers_give_at_once_is_measured(tmp_path: Path) -> None:
    """Processes that wait for each other give together what one gives alone."""
    done = check(tmp_path, "one_at_a_time", 2)

    assert done.returncode == 0, done.stderr
    [job] = json.loads(done.stdout)["jobs"]
    assert job["together"]["processes"] == 2
    alone, together = job["per_second"]["samples"], job["together"]["per_second"]["samples"]
    assert 0 < alone <= 1 / HELD_S
    assert 0 < together < 1.3 / HELD_S


def test_no_more_processes_are_measured_than_have_work(tmp_path: Path) -> None:
    """Of two lanes, one process each; of one, none beside the one that was measured."""
    done = check(tmp_path, "fails_late", 2, lanes=1, source={"type": "items", "items": [{"x": 1}]})

    assert done.returncode == 0, done.stderr
    [job] = json.loads(done.stdout)["jobs"]
    assert job["together"] == {"processes": 0, "per_second": {}, "why_not": ""}


def test_an_item_that_fails_in_another_lane_is_an_error(tmp_path: Path) -> None:
    """It would stop a node as well."""
    done = check(tmp_path, "fails_late", 3)

    assert done.returncode == 2
    [job] = json.loads(done.stdout)["jobs"]
    assert job["error"]["code"] == "bad_item"
    assert "main[101]" in job["error"]["message"]
    assert "odd and late" in job["error"]["message"]


def test_a_process_that_dies_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    """Whatever was measured before is worth telling, and no rate is made up."""
    done = check(tmp_path, "dies", 2)

    assert done.returncode == 0, done.stderr
    [job] = json.loads(done.stdout)["jobs"]
    [note] = [note for note in job["warnings"] if "workers give together" in note]
    assert "what 2 workers give together was not measured: one of the processes ended" in note
    assert "status -9: out of luck" in note
    assert job["per_second"]["samples"] > 0
    assert job["together"]["per_second"] == {}
