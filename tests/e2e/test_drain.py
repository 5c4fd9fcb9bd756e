"""From SIGTERM to the exit: within `drain_seconds`, whatever hangs."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from harness import serving, write_job_file
from invariants import eventually

ROLES = """
import pathlib
import time

import numpy as np

HERE = pathlib.Path(__file__).parent


def hangs(raw):
    (HERE / "hung").touch()
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return {"n": raw["n"]}


def big(raw):
    return {"x": np.full(1 << 22, raw["n"])}
"""

DRAIN_S = {"nothing": 20.0, "all": 5.0}
"""Where nothing hangs the node waits for nothing, but may get little of a busy machine."""

SLACK_S = 2.0
"""How long the end of an interpreter may take on a machine that does much else."""


@pytest.mark.parametrize("hang", ["nothing", "all"])
def test_the_whole_shutdown_fits_the_time_to_drain(tmp_path: Path, hang: str) -> None:
    """A hung item, a reader that stopped reading and an idle scraper cost no more than that."""
    (tmp_path / "roles.py").write_text(ROLES)
    drain_s = DRAIN_S[hang]
    job = {
        "source": {"type": "items", "items": [{"n": n} for n in range(12)]},
        "lanes": 2,
        "batch_size": 1,
    }
    jobs = {
        "hung": {**job, "function": "./roles.py:hangs"},
        "big": {**job, "function": "./roles.py:big"},
    }
    if hang == "nothing":
        (tmp_path / "go").touch()
    file = write_job_file(
        tmp_path / "penstock.yaml", jobs, workers=2, drain_seconds=drain_s, metrics="127.0.0.1:0"
    )
    with serving(file) as server:
        stalled = server.read("big", horizon=8)  # 256 MB that nobody takes
        hung = server.read("hung", horizon=4)
        eventually((tmp_path / "hung").exists, 90, "an item is at work")
        [event] = server.events("ready")
        host, _, port = event["metrics"].rpartition(":")
        with socket.create_connection((host, int(port))) as scraper:
            scraper.sendall(b"GET /healthz HTTP/1.1\r\nHost: penstock\r\n\r\n")
            assert scraper.recv(100)
            if hang == "nothing":
                stalled.cancel()
                hung.cancel()
            start = time.monotonic()
            code = server.terminate()
            took_s = time.monotonic() - start
        [stopped] = server.events("stopped", at_least=1)
        stalled.cancel()
        hung.cancel()

    assert code == 0
    assert stopped["took_s"] < drain_s - 0.7, stopped["stages_s"]
    assert took_s < drain_s + SLACK_S, stopped["stages_s"]
    assert set(stopped["stages_s"]) == {"drain", "port", "metrics", "workers", "store"}
