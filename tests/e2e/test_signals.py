"""Signals at bad moments: a node that is not ready yet, or stuck, ends when it is told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness import ENVIRONMENT, Server, children, write_job_file
from invariants import eventually

SLOW_TO_LOAD = """
import sys
import time

if "penstock.server.processes.zygote" in sys.orig_argv:
    time.sleep(600)
"""


def test_a_node_that_is_still_starting_ends_at_the_first_signal(tmp_path: Path) -> None:
    """What workers are forked from loads for minutes: Ctrl-C is not kept waiting for that."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_LOAD)
    job = {"source": {"type": "items", "items": [1, 2, 3]}, "batch_size": 1, "lanes": 1}
    server = Server(
        write_job_file(tmp_path / "jobs.yaml", {"slow": job}, workers=2),
        environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"},
    )
    try:
        server.start(wait=False)
        # Signals are handled before the store is opened.
        eventually((tmp_path / "penstock.db").exists, 60, "the store has been opened")
        [zygote] = children(server.process.pid, zygotes=True)
        server.process.send_signal(signal.SIGINT)

        assert server.wait_end() == 0
        assert not Path(f"/proc/{zygote}").exists()
    finally:
        server.close()
