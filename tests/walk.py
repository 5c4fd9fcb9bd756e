"""Which lines of penstock a node, its worker and a client run for a batch in mid-run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from harness import ENVIRONMENT, Server

ROOT = Path(__file__).parents[1]
WARM, BATCHES = 40, 240

CLIENT = f"""
import sys
from penstock.client import Loader
with Loader(sys.argv[1], sys.argv[2], rank=0, world_size=1, as_numpy=True) as loader:
    batches = iter(loader)
    with open(sys.argv[3], "r+b", buffering=0) as switch:
        for number in range({WARM + BATCHES}):
            if number == {WARM}:
                switch.write(b"\\1")
            next(batches)
        switch.seek(0)
        switch.write(b"\\0")
"""


def walked(job_file: Path, job: str, folder: Path) -> dict[str, set[int]]:
    """Serve a job by one worker, read it, and return the lines that steady batches run.

    Args:
        job_file: A job file.
        job: The job of it that is read.
        folder: An empty folder, for notes.

    Returns:
        Files below the project's folder, and the numbers of their lines.
    """
    switch = folder / "switch"
    switch.write_bytes(b"\0")
    traced = {
        "WALKED": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "walked"), ENVIRONMENT["PYTHONPATH"]]),
    }
    flags = (
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "off",
        "--workers",
        "1",
        "--ready-bytes",
        "8MB",
    )
    server = Server(job_file, *flags, "--log-format", "json", environment=traced).start()
    try:
        subprocess.run(
            [sys.executable, "-c", CLIENT, server.address, job, str(switch)],
            env={**ENVIRONMENT, **traced},
            timeout=300,
            check=True,
        )
    finally:
        server.kill()
    found: dict[str, set[int]] = defaultdict(set)
    for notes in folder.glob("*.lines"):
        for line in notes.read_text().splitlines():
            file, _, number = line.rpartition(":")
            found[Path(file).relative_to(ROOT).as_posix()].add(int(number))
    return dict(found)
