"""The demo's input: made once, by the server half, as a program of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.wire.errors import InvalidRequest, MissingExtra, PenstockError

EXAMPLE = "penstock.server.examples.stdlib"


@dataclass(frozen=True)
class Input:
    """What the demo reads.

    Attributes:
        job_file: The job file that is served.
        job: The job's name in it.
        title: What it is, for people.
    """

    job_file: Path
    job: str
    title: str


def standard_library(folder: Path | None) -> Input:
    """Return the standard library as a job; the first time it is written and a tokenizer trained.

    The client half never imports the server half, so it runs it as a program.

    Args:
        folder: Where it is kept; None = below the user's cache folder.

    Raises:
        MissingExtra: The server half is not installed.
        PenstockError: It could not be made; the sentence is the program's own.
    """
    command = [sys.executable, "-m", EXAMPLE, *([str(folder)] if folder is not None else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        if "ModuleNotFoundError" in said[-1]:
            raise missing_server(said[-1])
        raise PenstockError(said[-1].removeprefix("penstock: error: "))
    about = json.loads(done.stdout)
    return Input(
        job_file=Path(about["job_file"]),
        job="stdlib",
        title=f"the standard library of Python {about['python']}: {about['files']:,} files, "
        f"{about['bytes'] / 1e6:.1f} MB",
    )


def missing_server(said: str) -> MissingExtra:
    """Return the error for a server half whose packages are missing."""
    return MissingExtra(
        f"the demo starts a server, which is not installed whole ({said}): "
        "pip install 'penstock[server,tokenizers]'",
        extra="server",
    )


def own(job_file: str, job: str | None) -> Input:
    """Return a user's own job as the demo's input.

    Raises:
        InvalidRequest: There is no such file, or no job is named.
    """
    path = Path(job_file).absolute()
    if not path.is_file():
        raise InvalidRequest(f"there is no job file {job_file}", field="path", value=job_file)
    if job is None:
        raise InvalidRequest(f"name the job of {job_file} too: penstock demo {job_file} JOB")
    return Input(job_file=path, job=job, title=f"job {job} of {job_file}")


__all__ = ["Input", "missing_server", "own", "standard_library"]
