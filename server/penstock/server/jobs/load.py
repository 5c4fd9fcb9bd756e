"""Job files: what a node serves, read, checked and built.

A target is a YAML or JSON job file, or `jobs.py:name`, where the name is a dict of `Job`s, a `Job`,
or a function that returns one of these. Flags override PENSTOCK_* variables, which override the
file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.server.core.contained import contained
from penstock.server.core.frames import error_line, user_line, user_traceback
from penstock.server.core.imports import load_attribute
from penstock.server.job import MAX_SOURCE_NAME, SOURCE_NAME, Job, find_job
from penstock.server.jobs import yaml_file
from penstock.server.jobs.location import Location
from penstock.server.jobs.override import override
from penstock.server.jobs.registry import KINDS, build
from penstock.server.jobs.settings import JobFile, JobSettings, ServerSettings
from penstock.server.jobs.validate import shown, validate
from penstock.server.sources.catalog import keep_in
from penstock.wire.errors import InvalidJob, PenstockError

JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Names of jobs: they are used in commands, metrics and stores, so they must need no quoting."""


class Jobs(Mapping[str, Job]):
    """The jobs of a target by name; each is built when it is first asked for, and then kept."""

    def __init__(self, builders: Mapping[str, Callable[[], Job]]) -> None:
        self._builders = dict(builders)
        self._built: dict[str, Job] = {}

    def __getitem__(self, name: str) -> Job:
        """Return a job, built.

        Raises:
            KeyError: There is no job of that name.
            InvalidJob: It does not hold together.
        """
        if name not in self._built:
            self._built[name] = self._builders[name]()
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a job, without building it."""
        return name in self._builders

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the file's order."""
        return iter(self._builders)

    def __len__(self) -> int:
        """Return how many jobs there are."""
        return len(self._builders)


@dataclass(frozen=True)
class Config:
    """What a target says.

    Attributes:
        target: The target with an absolute path: another process that loads it gets the same.
        server: The node's settings, with environment and flags worked in.
        jobs: The jobs by name, built on demand.
        base: The folder that relative paths start from.
    """

    target: str
    server: ServerSettings
    jobs: Mapping[str, Job]
    base: Path

    def job(self, name: str) -> Job:
        """Return a job, built.

        Raises:
            UnknownJob: There is no job of that name.
            InvalidJob: It does not hold together.
        """
        return find_job(self.jobs, name)


def load(
    target: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read a target.

    The whole file is checked at once; sources and roles are built when a job is asked for, and use
    the setting `hash_cache` of the target that this process read last.

    Args:
        target: A job file, or `jobs.py:name`.
        overrides: Server settings that override file and environment; None values are left out.
        environ: The environment; default `os.environ`.

    Raises:
        InvalidJob: The file cannot be read or is wrong; names file, line and key.
        InvalidRequest: An override or a PENSTOCK_* variable has an invalid value.
    """
    environ = os.environ if environ is None else environ
    path, colon, name = target.rpartition(":")
    if colon and path.endswith(".py"):
        return _load_python(target, Path(path), name, overrides, environ)
    if target.endswith(".py"):
        return _load_python(target, Path(target), "jobs", overrides, environ)
    return _load_file(target, overrides, environ)


def _load_file(
    target: str, overrides: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> Config:
    path = Path(target).expanduser()
    if not path.exists():
        raise InvalidJob(
            f"there is no job file {target!r}: name one, or write one with: penstockd init DATA",
            key="",
            file=target,
        )
    data, location = yaml_file.read(path, target)
    if not isinstance(data, dict):
        raise location.error(
            f"the job file holds {'nothing' if data is None else shown(data)} in place of keys and "
            "values: "
            "it needs `jobs:` and, below it, at least one job"
        )
    # `x-...` keys are for YAML anchors that several jobs share.
    data = {key: value for key, value in data.items() if not str(key).startswith("x-")}
    _check_job_names(data.get("jobs"), location)
    file = validate(JobFile, data, location)
    for name, settings in file.jobs.items():
        _check_sources(settings, location.at("jobs", name))
    server = override(file.server, overrides, environ)
    keep_in(server.hash_cache, location.base)
    jobs = Jobs(
        {
            name: lambda name=name, job=job: build_job(name, job, location.at("jobs", name))  # type: ignore[misc]
            for name, job in file.jobs.items()
        }
    )
    return Config(
        target=str(path.absolute()),
        server=server,
        jobs=jobs,
        base=location.base,
    )


def _check_job_names(jobs: Any, location: Location) -> None:
    if not isinstance(jobs, dict):
        return
    for name in jobs:
        if not isinstance(name, str) or not JOB_NAME.fullmatch(name):
            raise location.at("jobs", str(name)).error(
                f"{name!r} is not a name for a job: use letters, digits, dots, dashes and "
                "underscores"
            )


def _check_sources(settings: JobSettings, location: Location) -> None:
    """Refuse a job without a source, with two kinds of them, or with one that cannot be named."""
    at = location.at("source")
    if settings.source is None and settings.sources is None:
        raise at.error(
            f"{at.key} is missing: give a source: {{type: NAME, its parameters ...}}, or several "
            "by name in sources"
        )
    if settings.source is not None and settings.sources is not None:
        raise at.error(
            f"{at.key} and {location.at('sources').key} are both given: remove one of them"
        )
    for name in settings.sources or ():
        if not SOURCE_NAME.fullmatch(name):
            raise location.at("sources", name).error(
                f"{name!r} is not a name for a source: use letters, digits and underscores, and no "
                f"digit first, at most {MAX_SOURCE_NAME} characters"
            )


def build_job(name: str, settings: JobSettings, location: Location) -> Job:
    """Build the sources and the roles of a job, and the job from them.

    Args:
        name: Its name.
        settings: Its section of the file, checked.
        location: Where the section stands.

    Raises:
        InvalidJob: Something in it does not hold together; names the key.
        PenstockError: The data cannot be opened; the message begins with the key.
    """
    values = settings.model_dump(exclude_unset=True)
    function = values.pop("function", None)
    if function is not None:
        if values.get("processor") is not None:
            at = location.at("function")
            raise at.error(
                f"{at.key} and {location.at('processor').key} are both given: remove one of them"
            )
        values["processor"] = {"function": function}
    roles: dict[str, Any] = {}
    several = values.pop("sources", None)
    if several is not None:
        roles["source"] = {
            key: build(KINDS["source"], spec, location.at("sources", key))
            for key, spec in several.items()
        }
    for role, kind in KINDS.items():
        spec = values.pop(role, None)
        if spec is not None:
            at = location if role == "processor" and function is not None else location.at(role)
            roles[role] = build(kind, spec, at)
    try:
        job = Job(**roles, **values, name=name)
        job.check_end()  # whether lanes end, and where, is part of what the file says
        if not job.needs_counting:
            _ = job.order
        return job
    except PenstockError as error:
        key = str(error.fields.get("key") or "")
        keys = key.split(".")
        if several is not None and keys[0] == "source":
            keys = ["sources"]
        at = location.at(*keys) if keys[0] in JobSettings.model_fields else location
        if not isinstance(error, InvalidJob):
            raise error.reworded(f"{location.key}: {error.message}") from error
        raise at.error(f"{location.key}: {error.message}") from error


def _load_python(
    target: str,
    path: Path,
    name: str,
    overrides: Mapping[str, Any] | None,
    environ: Mapping[str, str],
) -> Config:
    spec = f"{path.expanduser().absolute()}:{name}"
    server = override(ServerSettings(), overrides, environ)
    # Before the file runs: it may open sources as it is imported.
    keep_in(server.hash_cache, path.expanduser().absolute().parent)
    found = load_attribute(spec)
    if callable(found) and not isinstance(found, Job):
        found = _called(target, found)
    if isinstance(found, Job):
        found = {found.name: found}
    if not isinstance(found, Mapping) or not found:
        raise InvalidJob(
            f"{target} is {shown(found)}: it must be a dict of names and Jobs, a Job, or a "
            "function that returns one of these",
            key=name,
            file=str(path),
        )
    builders: dict[str, Callable[[], Job]] = {}
    for key, value in found.items():
        if not isinstance(key, str) or not JOB_NAME.fullmatch(key):
            raise InvalidJob(
                f"{target}: {key!r} is not a name for a job: use letters, digits, dots, dashes and "
                "underscores",
                key=str(key),
                file=str(path),
            )
        builders[key] = _python_builder(target, key, value)
    return Config(
        target=spec,
        server=server,
        jobs=Jobs(builders),
        base=path.expanduser().absolute().parent,
    )


def _python_builder(target: str, name: str, value: Any) -> Callable[[], Job]:
    def make() -> Job:
        job = value if isinstance(value, Job) or not callable(value) else _called(target, value)
        if not isinstance(job, Job):
            raise InvalidJob(
                f"{target}: the job {name!r} is {shown(job)} and no Job: give "
                "penstock.server.job.Job(source=..., ...) or a function that returns one",
                key=name,
            )
        job.name = name
        return job

    return make


def _called(target: str, function: Callable[[], Any]) -> Any:
    """Call a user's function that makes jobs."""
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


__all__ = ["Config", "Jobs", "build_job", "load"]
