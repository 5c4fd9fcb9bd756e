"""Print the newest Python of this machine that penstock says it runs on, beside the one that runs.

Looked for among the programs on the path and the versions of pyenv. Where there is none nothing is
printed, and a sentence goes to stderr.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

WORKS = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def promised() -> list[str]:
    """Return the versions that pyproject.toml names, the newest first: `3.13`, ..."""
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    found = re.findall(r"Python :: (\d+\.\d+)$", "\n".join(project["project"]["classifiers"]), re.M)
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])[::-1]


def candidates(version: str) -> Iterator[str]:
    """Return programs that may be a Python of this version."""
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted(root.joinpath("versions").glob(f"{version}.*")):
        if folder.name.removeprefix(f"{version}.").isdigit():  # not one without the GIL
            yield str(folder / "bin" / "python")


def is_version(program: str, version: str) -> bool:
    """Tell whether a program is a Python of this version that can make venvs."""
    try:
        done = subprocess.run([program, "-c", WORKS], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return done.stdout.strip() == version  # a shim of pyenv may lead nowhere


def main() -> None:
    """Print it."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    others = [version for version in promised() if version != own]
    for version in others:
        for program in candidates(version):
            if is_version(program, version):
                sys.stdout.write(f"{program}\n")
                return
    sys.stderr.write(
        f"no other Python than {own} is installed here, so no test is run on another: "
        f"install one of {', '.join(others)}\n"
    )


if __name__ == "__main__":
    main()
