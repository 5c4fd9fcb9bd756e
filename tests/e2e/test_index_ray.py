"""`penstockd index --engine ray`: on a Ray of this machine, the same bytes and the same errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.test_index_command import index, told, write_jobs
from harness import ENVIRONMENT

pytest.importorskip("ray", reason="Ray is not installed: pip install 'penstock[ray]'")

COMMANDS = """
import contextlib, io, json, sys
import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
from penstock.server.cli import run

for folder in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        with contextlib.chdir(folder):
            status = run(["index", "jobs.yaml", "both", "--engine", "ray", "--output", "x"])
    print(json.dumps([status, said.getvalue()]))
"""


def test_ray_makes_the_same_index(tmp_path: Path) -> None:
    """Whatever the environment of Ray's own processes is; an item that fails is named."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    write_jobs(good)
    write_jobs(bad, item280="fail")
    told(index(good, "both", "--json", output="here"))

    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(good), str(bad)],
        env={**ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0", "TZ": "Asia/Kabul"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    made, failed = map(json.loads, done.stdout.splitlines())
    assert made[0] == 0, made
    assert (good / "x").read_bytes() == (good / "here").read_bytes()
    assert failed[0] == 2
    assert "[280] in epoch 0 of job 'both' fails" in failed[1]
    assert "ValueError: cannot be decoded" in failed[1]
