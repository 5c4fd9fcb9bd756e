"""Write the pinned wheels of the image, with their hashes: for Linux on x86-64 and this Python.

    python deploy/image/lock.py

`requirements.txt` is what a node needs, but `datasets`; `datasets.txt` is what that needs besides;
`build.txt` builds the wheel of penstock. Run it with the Python of the image's base (3.11).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BESIDES = "datasets"
HEAD = "# Written by deploy/image/lock.py.\n"


def needs() -> list[str]:
    """Return what penstock and its extras `server`, `tokenizers` and `postgres` need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = (extras[name] for name in ("server", "tokenizers", "postgres"))
    return [*project["dependencies"], *(each for extra in needed for each in extra)]


def resolved(wanted: list[str], pinned: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return the version and the hash of each distribution that pip would install."""
    pins = [f"{name}=={version}" for name, version in pinned.items()]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--only-binary", ":all:", "--report", "-", *wanted, *pins]
    report: Any = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {
        one["metadata"]["name"].lower().replace("_", "-"): (
            one["metadata"]["version"],
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in report["install"]
    }


def text(found: dict[str, tuple[str, str]]) -> str:
    """Return a file of requirements for `pip install --require-hashes`."""
    return HEAD + "".join(
        f"{name}=={version} --hash=sha256:{digest}\n"
        for name, (version, digest) in sorted(found.items())
    )


def main() -> None:
    """Write the files."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (HERE / "build.txt").write_text(text(resolved(build, {})))
    wanted = needs()
    least = resolved([one for one in wanted if not one.startswith(BESIDES)], {})
    pinned = {name: version for name, (version, _) in least.items()}
    every = resolved(wanted, pinned)
    (HERE / "requirements.txt").write_text(text(least))
    besides = {name: found for name, found in every.items() if name not in least}
    (HERE / "datasets.txt").write_text(text(besides))


if __name__ == "__main__":
    main()
