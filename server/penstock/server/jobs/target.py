"""What `local:` and `spawn:` name: a job file, or `jobs.py:name`."""

from __future__ import annotations

from pathlib import Path


def absolute_target(target: str) -> str:
    """Return a target with an absolute path, for a process that may run in another folder."""
    path, colon, attribute = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, colon, attribute = target, "", ""
    return f"{Path(path).expanduser().absolute()}{colon}{attribute}"
