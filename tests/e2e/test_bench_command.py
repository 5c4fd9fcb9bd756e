"""`penstock bench` reads a job and says how fast, and who waited."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from harness import run_command


def test_bench_prints_what_it_read(tmp_path: Path) -> None:
    """On a finite job it ends with the job, and counts what there was behind the warm-up."""
    job = {
        "lanes": 2,
        "epochs": 1,
        "batch_size": 2,
        "source": {"type": "items", "items": [{"x": n} for n in range(40)]},
    }
    file = tmp_path / "penstock.yaml"
    file.write_text(yaml.safe_dump({"jobs": {"tiny": job}}))

    read = ["bench", f"local:{file}", "tiny", "--warm", "5", "--seconds", "60", "--json"]
    done = run_command(["penstock.client.cli", *read])

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["batches"] == 15
    assert 0 <= result["wait_share"] <= 1
