"""Job files: what a node serves, read, checked and built.

A target is a YAML or JSON job file, or `jobs.py:name`, where the name is a dict of `Job`s, a `Job`,
or a function that returns one of these. Flags override PENSTOCK_* variables, which override the
file; `--set` overrides keys of a file's jobs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.server.config import yaml_file
from penstock.server.config.location import Location
from penstock.server.core.shown import shown
from penstock.server.files.catalog import keep_in
from penstock.server.job.job import MAX_SOURCE_NAME, SOURCE_NAME, Job, find_job
from penstock.server.jobs.assign import FLAG, assign
from penstock.server.jobs.checked_keys import validate
from penstock.server.jobs.definition import Definition
from penstock.server.jobs.needed_imports import imported
from penstock.server.jobs.override import override
from penstock.server.jobs.python_file import JOB_NAME, jobs_in
from penstock.server.jobs.settings import JobFile, JobSettings, RolesSettings, ServerSettings
from penstock.server.process.allocator import prefer
from penstock.server.store import refuse_password
from penstock.wire.errors import InvalidJob, InvalidRequest


class Jobs(Mapping[str, Job]):
    """The jobs of a target by name; each is built when it is first asked for, and then kept."""

    def __init__(self, builders: Mapping[str, Callable[..., Job]]) -> None:
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

    def unplanned(self, name: str) -> Job:
        """Return a job for which an index of sizes is to be made: none is opened.

        Raises:
            UnknownJob: There is no job of that name.
            InvalidJob: It does not hold together.
        """
        return find_job(self._builders, name)(planned=False)

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
        target: The target with an absolute path: another process that loads it, with the same
            assignments, gets the same.
        server: The node's settings, with environment and flags worked in.
        jobs: The jobs by name, built on demand.
        base: The folder that relative paths start from.
        assignments: What `--set` gave keys of the jobs, as it was written.
        imports: The modules that built-in roles of a job file import, in workers too.
    """

    target: str
    server: ServerSettings
    jobs: Jobs
    base: Path
    assignments: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()

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
    assignments: Sequence[str] = (),
) -> Config:
    """Read a target.

    The whole file is checked at once; sources and roles are built when a job is asked for, and use
    the settings `hash_cache` and `allocator` of the target that this process read last.

    Args:
        target: A job file, or `jobs.py:name`.
        overrides: Server settings that override file and environment; None values are left out.
        environ: The environment; default `os.environ`.
        assignments: `JOB.KEY=VALUE`, the value as YAML: override keys of the file's jobs.

    Raises:
        InvalidJob: The file cannot be read or is wrong; names file, line and key.
        InvalidRequest: An override, an assignment or a PENSTOCK_* variable has an invalid value, a
            flag has a password, or code builds the jobs.
        UnknownJob: An assignment names a job that the file lacks.
    """
    environ = os.environ if environ is None else environ
    refuse_password((overrides or {}).get("store") or "")
    path, colon, name = target.rpartition(":")
    if not (colon and path.endswith(".py")):
        path, name = target, "jobs"
    if not path.endswith(".py"):
        return _load_file(target, overrides, environ, assignments)
    if assignments:
        raise InvalidRequest(
            f"{FLAG} {assignments[0]}: the jobs of {target} are built by code, and {FLAG} changes "
            "keys of a job file: let the code build what you want, or write a job file",
            field=FLAG,
            value=assignments[0],
        )
    return _load_python(target, Path(path), name, overrides, environ)


def _load_file(
    target: str,
    overrides: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    assignments: Sequence[str],
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
    if isinstance(data.get("jobs"), dict):
        _check_job_names(data["jobs"], location)
        data, location = assign(data, location, assignments)
    file = validate(JobFile, data, location)
    for name, settings in file.jobs.items():
        _check_roles(settings, location.at("jobs", name))
    server = override(file.server, overrides, environ)
    keep_in(server.hash_cache, location.base)
    prefer(server.allocator, location.base)
    said, base = str(path.absolute()), str(location.base)
    builders: dict[str, Callable[..., Job]] = {}
    for name, settings in file.jobs.items():
        definition = Definition(name, said, base, settings.model_dump(exclude_unset=True))
        builders[name] = partial(definition.build, location.at("jobs", name))
    return Config(
        target=said,
        server=server,
        jobs=Jobs(builders),
        base=location.base,
        assignments=tuple(assignments),
        imports=imported(file.jobs.values()),
    )


def _check_job_names(jobs: dict[Any, Any], location: Location) -> None:
    for name in jobs:
        if not isinstance(name, str) or not JOB_NAME.fullmatch(name):
            raise location.at("jobs", str(name)).error(
                f"{name!r} is not a name for a job: use letters, digits, dots, dashes and "
                "underscores"
            )


def _check_roles(settings: JobSettings, location: Location) -> None:
    """Refuse a joint job with roles beside its sets; else check the sources of all sets."""
    if settings.joint is None:
        if "choice" in settings.model_fields_set:
            at = location.at("choice")
            raise at.error(
                f"{at.key} says which set of roles makes a batch, and the job has one: give "
                "several in joint, or remove it"
            )
        _check_sources(settings, location)
        return
    for key in RolesSettings.model_fields:
        if getattr(settings, key) is not None:
            at = location.at(key)
            raise at.error(
                f"{at.key} and {location.at('joint').key} are both given: the sets of a joint job "
                f"have their roles each, so put {key} into them"
            )
    if "later_within" in settings.model_fields_set:
        at = location.at("later_within")
        raise at.error(
            f"{at.key} is for jobs of one set of roles: leave it out of a joint job, or serve the "
            "set as a job of its own"
        )
    for name, roles in settings.joint.items():
        _check_sources(roles, location.at("joint", name))


def _check_sources(settings: RolesSettings, location: Location) -> None:
    """Refuse roles without a source, with two kinds of them, or with one that cannot be named."""
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


def _load_python(
    target: str,
    path: Path,
    name: str,
    overrides: Mapping[str, Any] | None,
    environ: Mapping[str, str],
) -> Config:
    path = path.expanduser().absolute()
    spec, base = f"{path}:{name}", path.parent
    server = override(ServerSettings(), overrides, environ)
    # Before the file runs: it may open sources as it is imported.
    keep_in(server.hash_cache, base)
    prefer(server.allocator, base)
    builders = {
        key: partial(Definition(key, spec, str(base), None).build, make=make)
        for key, make in jobs_in(spec, target).items()
    }
    return Config(target=spec, server=server, jobs=Jobs(builders), base=base)
