"""`make PYTHON=...` runs on that Python, or says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
VERSION = "Python " + sys.version.split()[0]


def make(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Let make say what it would do, in the checkout, with a venv that is elsewhere."""
    command = ["make", "-n", f"VENV={venv}", *arguments]
    # What the make that runs the tests was told is not for this one.
    told = ("PYTHON", "VENV", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
    own = {name: value for name, value in os.environ.items() if name not in told}
    return subprocess.run(command, cwd=HOME, env=own, capture_output=True, text=True)


def venv_of(version: str, folder: Path) -> Path:
    """Return a folder whose `bin/python` says that it has this version."""
    program = folder / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("goal", ["check", "test", "dev-all"])
def test_another_python_than_that_of_the_venv_is_refused(goal: str, tmp_path: Path) -> None:
    venv = venv_of("Python 3.9.1", tmp_path)

    done = make(venv, goal, f"PYTHON={sys.executable}")

    assert done.returncode == 2
    assert f"{venv} has Python 3.9.1, and PYTHON={sys.executable} is {VERSION}: run" in done.stderr


def test_the_python_of_the_venv_may_be_named(tmp_path: Path) -> None:
    done = make(venv_of(VERSION, tmp_path), "check", f"PYTHON={sys.executable}")

    assert done.returncode == 0, done.stderr


def test_a_venv_may_be_of_any_python_where_none_is_named(tmp_path: Path) -> None:
    done = make(venv_of("Python 3.9.1", tmp_path), "check")

    assert done.returncode == 0, done.stderr


def test_what_a_venv_has_does_not_matter_to_clean(tmp_path: Path) -> None:
    done = make(venv_of("Python 3.9.1", tmp_path), "clean", f"PYTHON={sys.executable}")

    assert done.returncode == 0, done.stderr
