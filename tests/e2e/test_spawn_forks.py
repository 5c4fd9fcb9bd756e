"""`spawn:` beside processes that a trainer forks: they hold its files, and must hold nobody up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import ENVIRONMENT, write_job_file

SCRIPT = """
import os, sys, time
from penstock.server.transports import spawn

first = spawn.open_transport(sys.argv[1])
ours, theirs = os.pipe()
child = os.fork()
if child == 0:  # as a worker of another data loader: it lives on, with every open file
    os.close(theirs)
    os.read(ours, 1)
    os._exit(0)
began = time.monotonic()
first.close()
print(f"closed after {time.monotonic() - began:.1f} s", flush=True)
second = spawn.open_transport(sys.argv[1])
print("open again", flush=True)
second.close()
os.close(theirs)
os.waitpid(child, 0)
"""


def test_a_forked_child_keeps_neither_the_node_nor_its_lock(tmp_path: Path, runtime: Path) -> None:
    """The last Loader ends the node although a child lives, and the next one starts a new one."""
    job = {"lanes": 1, "source": {"type": "items", "items": [{"x": 1}]}, "batch_size": 1}
    file = write_job_file(tmp_path / "jobs.yaml", {"one": job})
    environment = {**ENVIRONMENT, "XDG_RUNTIME_DIR": str(runtime)}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    closed, again = done.stdout.splitlines()
    assert again == "open again"
    assert float(closed.split()[2]) < 20
