"""The demo's input: made once, by the server half, as a program of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.wire.errors import ERRORS, InvalidRequest, PenstockError

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
        PenstockError: It could not be made, or the server half's packages are not installed; the
            program's own error.
    """
    command = [sys.executable, "-m", EXAMPLE, *([str(folder)] if folder is not None else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise named_error(said[-1])
    about = json.loads(done.stdout)
    return Input(
        job_file=Path(about["job_file"]),
        job="stdlib",
        title=f"the standard library of Python {about['python']}: {about['files']:,} files, "
        f"{about['bytes'] / 1e6:.1f} MB",
    )


def named_error(said: str) -> PenstockError:
    """Return the error that the last line of a program of the server half tells of."""
    named = re.fullmatch(r"penstockd?: error: (?P<sentence>.*) \[(?P<code>\w+)\]", said)
    if named is None:
        return PenstockError(said)
    return ERRORS.get(named["code"], PenstockError).with_fields(named["sentence"], {})


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
