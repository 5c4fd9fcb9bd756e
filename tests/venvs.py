"""A venv beside that of the tests: some packages of its own, all others from there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

INSTALL_S = 300.0


def bare_environment() -> dict[str, str]:
    """Return this environment without what would lead an interpreter back to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def venv_with(home: Path, *packages: str) -> Path:
    """Make a venv that has packages of its own, without what they need; return its Python.

    Args:
        home: Its folder.
        packages: Wheels, by their paths, or what pip takes from its index, such as `numpy==1.26.4`.
    """
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    install += ["--only-binary=:all:", "--disable-pip-version-check", "-q", *packages]
    done = subprocess.run(
        install, timeout=INSTALL_S, env=bare_environment(), check=False, capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode != 0:
        why = f"pip could not install {', '.join(packages)}: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(f"NOT RUN: {why}")
    [site] = home.glob("lib/python3*/site-packages")
    # A path that a .pth file adds has its own .pth files left alone: the editable install of the
    # checkout, which is in that folder too, does not come along.
    rest = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "rest.pth").write_text("\n".join(rest) + "\n")
    return python


def of_the_checkout() -> Mapping[str, str]:
    """Return variables by which a Python of `venv_with` finds the checkout's penstock."""
    paths = [path for path in sys.path if path and Path(path).name != "site-packages"]
    return {"PYTHONPATH": os.pathsep.join(paths)}
