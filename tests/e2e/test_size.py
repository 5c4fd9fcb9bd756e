"""`penstockd size` on real jobs, measured for a moment: what it says, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT
from penstock.server.cli import run
from penstock.server.commands.core_rate import measure_core
from penstock.server.commands.meter import Clocks
from penstock.server.jobs.load import load

JOBS: dict[str, dict[str, Any]] = {
    "packed": {
        "lanes": 1,
        "source": {
            "type": "items",
            "items": [{"input_ids": [7] * (1 + number % 9)} for number in range(400)],
        },
        "function": "./code.py:tokens",
        "batcher": {"type": "best_fit", "max_tokens": 32, "pool_size": 8},
        "collator": {"type": "packed", "pad_to": 32},
    },
    "rows": {
        "lanes": 1,
        "source": {"type": "items", "items": [{"x": number} for number in range(40)]},
        "batch_size": 4,
    },
    "short": {
        "lanes": 2,
        "epochs": 1,
        "source": {"type": "items", "items": [{"x": number} for number in range(10)]},
        "batch_size": 3,
    },
    "failing": {
        "lanes": 1,
        "source": {"type": "items", "items": [{"x": 1}]},
        "function": "./code.py:fails",
        "batch_size": 1,
    },
}
BOTH = ["--tokens-per-s-per-rank", "1", "--samples-per-s-per-rank", "1"]

CODE = """
import sys

def tokens(raw):
    return {"input_ids": raw["input_ids"]}

def fails(raw):
    raise ValueError("too cold")
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job file, for a node of one worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "job.yaml").write_text(json.dumps({"jobs": JOBS}))
    return tmp_path


def size(job: str, *more: str, unit: str = "tokens", per_rank: str = "1000") -> int:
    arguments = ["size", "job.yaml", job, "--ranks", "8", "--seconds", "0.2", *more]
    return run([*arguments, f"--{unit}-per-s-per-rank", per_rank])


def test_what_it_says_hangs_together(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts of the object, as scripts read them, follow from each other."""
    node = ("--cores-per-node", "5", "--gib-per-node", "16")
    assert size("packed", "--json", *node, "--seconds", "1", per_rank="20000") == 0

    found = json.loads(capsys.readouterr().out)
    assert found["job"] == "packed"
    assert len(found["log_id"]) == 64
    assert (found["unit"], found["ranks"], found["per_s"]) == ("tokens", 8, 160_000)
    measured, core = found["measured"], found["core"]
    assert 1 <= measured["seconds"] < 5
    assert 2 <= measured["windows"] <= 20
    assert measured["pools_filled"] is True
    assert measured["whole_lanes"] is False
    assert 0 < core["low_per_s"] <= core["median_per_s"] <= core["high_per_s"]
    assert core["planned_per_s"] > core["mean_per_s"]
    assert core["together"] == {"processes": 0, "share": 1.0}
    cores = found["cores"]
    assert cores["low"] <= cores["high"]
    assert cores["with_head_room"] >= found["head_room"] * cores["low"]
    nodes = found["nodes"]
    assert (nodes["cores_each"], nodes["memory_bytes_each"]) == (5, 16 << 30)
    assert nodes["workers_each"] <= 4
    assert nodes["count"] * nodes["workers_each"] >= cores["with_head_room"]
    assert found["lanes"]["lanes"] >= nodes["count"] * nodes["workers_each"]
    network = found["network"]
    # ids, labels, positions and documents of at least four bytes each, without padding
    assert network["bytes_per_token"] > 16
    assert network["bytes_per_s"] == pytest.approx(160_000 * network["bytes_per_token"], rel=1e-3)
    assert network["rank_bytes_per_s"] == pytest.approx(network["bytes_per_s"] / 8, rel=1e-3)
    memory = found["memory"]
    assert memory["ready_bytes"] == 4 << 30
    assert memory["keeping_up"] <= memory["ranks_keep_up"] <= memory["stalled"]
    assert found["store"]["snapshots_per_s"] > 0
    assert found["store"]["bytes_per_s"] >= 4096 * found["store"]["snapshots_per_s"] * 0.99
    assert any("log id" in note for note in found["notes"])


def test_people_get_ranges_and_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each thing that is asked for, and no row of JSON's precision."""
    assert size("packed") == 0

    out = capsys.readouterr().out
    rows = ["measured", "one core", "needed", "cores", "nodes", "lanes", "network", "memory"]
    for row in [*rows, "store"]:
        assert f"\n  {row}" in out
    assert "8,000 tokens/s by 8 ranks" in out
    assert "25% of head room" in out
    assert "in which pools fill" in out


def test_samples_are_counted_where_there_are_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """And a job that ends within the time is measured by whole lanes, over and over."""
    assert size("rows", "--json", unit="samples") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"] == "samples"
    assert found["network"]["bytes_per_sample"] > 8
    assert found["store"]["snapshots_per_s"] == 0

    assert size("short", "--json", unit="samples") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"]["whole_lanes"] is True
    assert found["measured"]["batches"] > 4
    assert found["measured"]["lanes"] == 2


def test_whole_lanes_are_counted_with_their_ends() -> None:
    """A clock that moves by a second a look: all batches of both lanes, then all again."""
    ticks = iter(range(10**6))
    job = load("job.yaml").job("short")
    try:
        core = measure_core(job, 90.0, clocks=Clocks(wall=lambda: float(next(ticks))))
    finally:
        job.close()

    assert core.whole_lanes
    found = core.metered
    assert found.lanes == 2
    assert found.counts["samples"] >= 2 * 10
    assert sum(window.counts["samples"] for window in found.windows) == found.counts["samples"]
    assert sum(window.seconds for window in found.windows) == found.seconds


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rows", "--ranks", "0", "--tokens-per-s-per-rank", "1"], "--ranks"),
        (["rows", "--ranks", "1"], "Give --tokens-per-s-per-rank, or --samples"),
        (
            ["rows", "--ranks", "1", *BOTH],
            "and not both",
        ),
        (["rows", "--ranks", "1", "--tokens-per-s-per-rank", "0"], "tokens-per-s-per-rank"),
        (["rows", "--ranks", "1", "--tokens-per-s-per-rank", "nan"], "nan is not a number above 0"),
        (["rows", "--ranks", "1", "--tokens-per-s-per-rank", "inf"], "inf is not a number above 0"),
        (["rows", "--ranks", "1", "--samples-per-s-per-rank", "1", "--seconds", "0"], "--seconds"),
        (
            ["rows", "--ranks", "1", "--tokens-per-s-per-rank", "1", "--seconds", "0.1"],
            "the batches of job 'rows' count no tokens (they count samples): give --samples-per-s",
        ),
        (["row", "--ranks", "1", "--samples-per-s-per-rank", "1"], "did you mean rows?"),
        (["failing", "--ranks", "1", "--samples-per-s-per-rank", "1"], "too cold"),
        (
            ["rows", "--ranks", "1000000", "--samples-per-s-per-rank", "1e9", "--seconds", "0.1"],
            "and a job has at most 65,536 lanes",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers, units, names, and jobs that a node would stop with."""
    assert run(["size", "job.yaml", *arguments]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err


def test_ctrl_c_ends_it(home: Path) -> None:
    """While it measures, with the status of an interrupted command and without a traceback."""
    (home / "code.py").write_text(
        "import functools, sys\n\n"
        "@functools.cache\ndef begin():\n    print('begun', file=sys.stderr, flush=True)\n\n"
        "def f(raw):\n    begin()\n    return raw\n"
    )
    job = {**JOBS["rows"], "function": "./code.py:f"}
    (home / "job.yaml").write_text(json.dumps({"jobs": {"rows": job}}))
    command = [sys.executable, "-m", "penstock.server.cli", "size", "job.yaml", "rows"]
    with subprocess.Popen(
        [*command, "--ranks", "1", "--samples-per-s-per-rank", "1", "--seconds", "3000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "begun\n"

            process.send_signal(signal.SIGINT)

            out, error = process.communicate(timeout=60)
        finally:
            process.kill()  # what did not end shall not measure on
    assert (process.returncode, out, error.strip()) == (130, "", "penstockd: stopped")
