"""The operator's commands on a real terminal: what is drawn there, and not into a pipe."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

from harness import ENVIRONMENT, run_command

JOB = """
server: {workers: 1}
jobs:
  main:
    lanes: 2
    source: {type: items, items: [{input_ids: [1, 2, 3]}, {input_ids: [4, 5]}]}
    batcher: {type: best_fit, max_tokens: 8, pool_size: 2}
    collator: {type: packed}
"""

SIZED = """
server: {workers: 1}
jobs:
  main:
    lanes: 2
    source: {type: tokens, files: ids.npy}
    batcher: {type: best_fit, max_tokens: 100, pool_size: 4}
    collator: {type: packed}
"""


def on_a_terminal(
    folder: Path, *arguments: str, columns: int = 80, program: str = "penstock.server.cli"
) -> tuple[int, str]:
    """Run `penstockd` with a terminal as its output; return its status and all that it wrote."""
    # The terminal's own size holds: where these are set, they would.
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment["TERM"] = "xterm-256color"
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", program, *arguments],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the process has ended, and its side is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    return process.wait(60), written.decode()


def test_check_says_on_a_terminal_what_it_is_doing(tmp_path: Path) -> None:
    """A line that is taken away before the results; the cursor is shown again."""
    (tmp_path / "job.yaml").write_text(JOB)

    status, written = on_a_terminal(tmp_path, "check", "job.yaml")

    assert status == 0
    told, _, results = written.rpartition("log id")
    assert "all of it again with other surroundings" in told
    assert "all of it again" not in results
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l"), "the cursor is back"


@pytest.mark.parametrize("columns", [80, 120])
def test_the_tables_of_a_plan_are_no_wider_than_a_terminal(tmp_path: Path, columns: int) -> None:
    """Each row is a line; what folds are notes, between words."""
    (tmp_path / "job.yaml").write_text(SIZED)
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint16).reshape(100, 40))

    status, written = on_a_terminal(tmp_path, "plan", "job.yaml", "main", columns=columns)

    assert status == 0
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in written.splitlines()]
    assert max(map(len, lines)) <= columns
    [first] = [number for number, line in enumerate(lines) if line.startswith("    lanes ")]
    rows = [line.split() for line in lines[first + 1 : first + 4]]
    assert [(lanes, len(rest)) for lanes, *rest in rows] == [("1", 3), ("2", 3), ("4", 3)]


@pytest.mark.parametrize("forced", [False, True], ids=["plain", "colours forced"])
def test_check_says_nothing_beside_its_results_into_a_pipe(tmp_path: Path, forced: bool) -> None:
    """Neither stdout nor stderr holds a line of progress, even where colours are asked for."""
    (tmp_path / "job.yaml").write_text(JOB)
    environment = ENVIRONMENT | ({"FORCE_COLOR": "1"} if forced else {})

    done = run_command(
        ["penstock.server.cli", "check", "job.yaml"], environment=environment, folder=tmp_path
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "again with" not in done.stdout
    assert "log id" in done.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_batch_of_cat_is_one_line_of_any_terminal(tmp_path: Path, columns: int) -> None:
    """What does not fit is cut, and the beginning says most: position, digest, tokens, samples."""
    (tmp_path / "job.yaml").write_text(JOB)
    arguments = ["cat", "local:job.yaml", "main", "--count", "3"]

    status, written = on_a_terminal(
        tmp_path, *arguments, columns=columns, program="penstock.client.cli"
    )

    assert status == 0
    batches = [line for line in written.replace("\r", "").split("\n") if "  step " in line]
    assert [line.split()[0] for line in batches] == ["0", "1", "2"]
    assert all(len(line) <= columns for line in batches)
    assert all(re.search(r"lane \d+:\d+  [0-9a-f]{16}  [\d,]+ tok", line) for line in batches)


@pytest.mark.parametrize("columns", [40, 80])
def test_ping_breaks_between_what_it_says(tmp_path: Path, columns: int) -> None:
    (tmp_path / "job.yaml").write_text(JOB)

    status, written = on_a_terminal(
        tmp_path, "ping", "local:job.yaml", columns=columns, program="penstock.client.cli"
    )

    assert status == 0
    lines = written.replace("\r", "").split("\n")
    assert all(len(line) <= columns for line in lines)
    for part in (r"penstock 0\.", r"node \w{12}", r"up \d+ s", "answered in "):
        assert sum(bool(re.search(part, line)) for line in lines) == 1, (part, lines)
