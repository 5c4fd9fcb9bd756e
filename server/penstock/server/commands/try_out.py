"""A job file tried out: what `penstockd check` says of it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.server.process.environment import worker_environment
from penstock.wire.errors import ERRORS, Internal, PenstockError

ITEMS, BATCHES = 8, 2
"""Few: it is a trial of the file, and no measurement."""


def try_out(path: Path) -> dict[str, Any]:
    """Return what a short check says of the one job of a file: keys as `check --json` has them.

    Code of roles runs there, in the environment of the workers, and not in this process.

    Raises:
        PenstockError: The check's own, if the job fails it.
        Internal: The check gave no answer.
    """
    command = [sys.executable, "-P", "-m", "penstock.server.cli", "check", str(path), "--json"]
    done = subprocess.run(
        [*command, "--items", str(ITEMS), "--batches", str(BATCHES)],
        capture_output=True,
        text=True,
        check=False,
        env=worker_environment(os.environ),
    )
    try:
        [found] = json.loads(done.stdout)["jobs"]
    except ValueError as error:
        said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise Internal(f"the check of {path} gave no answer: {said[-1]}") from error
    if not found["ok"]:
        fields = dict(found["error"])
        code, message = fields.pop("code"), fields.pop("message")
        raise ERRORS.get(code, PenstockError).with_fields(message, fields)
    job: dict[str, Any] = found
    return job
