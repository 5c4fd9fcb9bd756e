"""The two benches say how fast a job can be read, who waited, and what it took."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import yaml

from harness import run_command


def write_job(folder: Path, **keys: Any) -> Path:
    """Write a job file of 40 items in 10 episodes, in batches of 2."""
    items = [{"x": n, "episode_index": n // 4} for n in range(40)]
    job = {"lanes": 2, "batch_size": 2, "source": {"type": "items", "items": items}, **keys}
    file = folder / "penstock.yaml"
    file.write_text(yaml.safe_dump({"jobs": {"tiny": job}}))
    return file


def test_bench_prints_what_it_read(tmp_path: Path) -> None:
    """On a finite job it ends with the job, and counts what there was behind the warm-up."""
    file = write_job(tmp_path, epochs=1)

    read = ["bench", f"local:{file}", "tiny", "--warm", "5", "--seconds", "60", "--json"]
    done = run_command(["penstock.client.cli", *read])

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["batches"], result["samples"], result["frames"]) == (15, 30, 0)
    assert 0 <= result["wait_share"] <= 1
    assert 0 < result["gap_s"]["p50"] <= result["gap_s"]["p99"] <= result["seconds"]
    assert 1 <= result["episodes_per_batch"]["least"] <= result["episodes_per_batch"]["mean"] <= 2
    assert result["first_batch_s"] > 0


def test_a_node_of_its_own_is_measured_whole(tmp_path: Path) -> None:
    """Rates, gaps, processor seconds of every process, stages and memory, of a real node."""
    file = write_job(tmp_path)

    read = ["bench", str(file), "tiny", "--seconds", "1", "--workers", "2", "--json"]
    done = run_command(["penstock.server.cli", *read])

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["job"], result["workers"]) == ("tiny", 2)
    assert result["seconds"] >= 1
    assert result["samples"] == 2 * result["batches"] > 0
    assert set(result["cpu_s"]) == {"workers", "node", "reader"}
    assert result["cpu_s_per_sample"] > 0
    assert result["cpu_s_per_frame"] is None
    assert {"collate", "encode", "fetch"} <= set(result["stages_s"])
    assert all(spent >= 0 for spent in result["stages_s"].values())
    assert result["first_batch_s"] > result["node_start_s"] > 0
    assert 20 << 20 < result["peak_memory_bytes"] < 4 << 30
    assert result["episodes_per_batch"]["mean"] <= 2


def test_csv_has_a_name_for_each_value(tmp_path: Path) -> None:
    """And `--set` reaches the node."""
    read = ["bench", str(write_job(tmp_path)), "tiny", "--seconds", "0.5", "--csv"]
    done = run_command(["penstock.server.cli", *read, "--set", "tiny.batch_size=5"])

    assert done.returncode == 0, done.stderr
    [row] = csv.DictReader(io.StringIO(done.stdout))
    assert int(row["samples"]) == 5 * int(row["batches"])
    assert float(row["gap_s.p99"]) > 0
    assert row["cpu_s_per_frame"] == ""


def test_no_sample_is_a_failure(tmp_path: Path) -> None:
    """The job ends within the warm-up: a figure of nothing would look like one."""
    file = write_job(tmp_path, epochs=1)

    done = run_command(["penstock.server.cli", "bench", str(file), "tiny", "--warm", "100"])

    assert done.returncode == 2
    assert done.stdout == ""
    assert "no sample of job 'tiny' came" in done.stderr
    assert "after 20 batches of warm-up" in done.stderr
