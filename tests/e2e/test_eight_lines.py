"""From a researcher's Dataset class to batches over the wire: the eight lines of docs/roles.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import serving

ROLES = Path(__file__).resolve().parents[2] / "docs" / "roles.md"


def _files() -> dict[str, str]:
    """Return the files that the page shows, by name."""
    pattern = r"<!-- file: (\S+) -->\n```\w+\n(.*?)```"
    return dict(re.findall(pattern, ROLES.read_text(), re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the three files of the page."""
    for name, text in _files().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def _train(folder: Path, target: str) -> str:
    program = (folder / "train.py").read_text().replace("local:penstock.yaml", target)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_needs_eight_lines() -> None:
    """A job file and a training loop of eight lines together serve an unedited Dataset class."""
    files = _files()

    ours = [line for name in ("penstock.yaml", "train.py") for line in files[name].splitlines()]

    assert len([line for line in ours if line.strip()]) == 8


@pytest.mark.usefixtures("runtime")
def test_the_eight_lines_read_the_same_over_the_wire(folder: Path) -> None:
    """In this process, from workers over a socket and from a served address: the same batches."""
    here = _train(folder, "local:penstock.yaml")

    free = ("--listen", "127.0.0.1:0", "--metrics", "off")
    with serving(folder / "penstock.yaml", "--workers", "2", *free) as server:
        served = _train(folder, server.address)
    spawned = _train(folder, "spawn:penstock.yaml?workers=1&store=sqlite:///spawned.db")

    assert len(here.splitlines()) == 10
    assert served == here
    assert spawned == here
