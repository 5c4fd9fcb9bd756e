"""Jobs that code builds: `jobs.py:name`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.server.core.shown import shown
from penstock.server.job.job import Job
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line, user_line, user_traceback
from penstock.server.usercode.imports import load_attribute
from penstock.wire.errors import InvalidJob, PenstockError

JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Names of jobs: they stand in commands, metrics and stores, so they need no quoting."""


def jobs_in(spec: str, target: str) -> dict[str, Callable[[], Job]]:
    """Return what builds the jobs of a Python file, by name.

    Args:
        spec: `/abs/jobs.py:name`, where the name is a dict of `Job`s, a `Job`, or a function that
            returns one of these.
        target: The same as the user wrote it, for messages.

    Raises:
        InvalidJob: The file cannot be run, or the name is something else.
    """
    found = load_attribute(spec)
    if callable(found) and not isinstance(found, Job):
        found = _called(target, found)
    if isinstance(found, Job):
        found = {found.name: found}
    if not isinstance(found, Mapping) or not found:
        raise InvalidJob(
            f"{target} is {shown(found)}: it must be a dict of names and Jobs, a Job, or a "
            "function that returns one of these",
            key=spec.rpartition(":")[2],
            file=spec.rpartition(":")[0],
        )
    builders: dict[str, Callable[[], Job]] = {}
    for key, value in found.items():
        if not isinstance(key, str) or not JOB_NAME.fullmatch(key):
            raise InvalidJob(
                f"{target}: {key!r} is not a name for a job: use letters, digits, dots, dashes and "
                "underscores",
                key=str(key),
                file=spec.rpartition(":")[0],
            )
        builders[key] = _python_builder(target, key, value)
    return builders


def _python_builder(target: str, name: str, value: Any) -> Callable[[], Job]:
    def make() -> Job:
        job = value if isinstance(value, Job) or not callable(value) else _called(target, value)
        if not isinstance(job, Job):
            raise InvalidJob(
                f"{target}: the job {name!r} is {shown(job)} and no Job: give "
                "penstock.server.job.job.Job(source=..., ...) or a function that returns one",
                key=name,
            )
        job.name = name
        return job

    return make


def _called(target: str, function: Callable[[], Any]) -> Any:
    """Call a function of the user's that makes jobs."""
    try:
        return contained(function)
    except PenstockError:
        raise
    except Exception as error:
        line = user_line(error)
        raise InvalidJob(
            f"{target}: {getattr(function, '__name__', 'the function')} raises {error_line(error)}"
            + (f" ({line})" if line else ""),
            traceback=user_traceback(error),
        ) from error
