"""Signals at bad moments: a node that is not ready yet, or stuck, ends when it is told to."""

from __future__ import annotations

import signal
from pathlib import Path

from harness import Server, children
from invariants import eventually

SLOW_TO_LOAD = """
import sys
import time

from penstock.server.job.job import Job
from penstock.server.sources import ItemsSource

if sys.argv[0].endswith("worker_main.py"):
    time.sleep(600)
jobs = {"slow": Job(ItemsSource([1, 2, 3]), batch_size=1, lanes=1)}
"""


def test_a_node_that_is_still_starting_ends_at_the_first_signal(tmp_path: Path) -> None:
    """Its workers load for minutes: Ctrl-C is not kept waiting for that."""
    file = tmp_path / "jobs.py"
    file.write_text(SLOW_TO_LOAD)
    server = Server(
        f"{file}:jobs", "--listen", f"unix:{tmp_path}/n.sock", "--workers", "2", "--metrics", "off"
    )
    try:
        server.start(wait=False)
        eventually(
            lambda: len(children(server.process.pid)) == 2, 60, "the workers have been started"
        )
        workers = children(server.process.pid)
        # The store is opened once signals are handled; workers are started before that.
        eventually((tmp_path / "penstock.db").exists, 60, "the store has been opened")
        server.process.send_signal(signal.SIGINT)

        assert server.wait_end() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        server.close()
