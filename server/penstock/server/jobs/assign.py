"""Keys of jobs that a command line sets: `--set JOB.KEY=VALUE` over what the job file says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.common.nearest import hint
from penstock.server.config import yaml_file
from penstock.server.config.location import KeyPath, Location, key_text
from penstock.server.core.shown import shown
from penstock.server.jobs.settings import ServerSettings
from penstock.wire.errors import InvalidJob, InvalidRequest, UnknownJob

FLAG = "--set"

_JOB_DEPTH = 2
"""How many keys lead to a job: `jobs` and its name."""

_PART = re.compile(r"([^.\[\]]+)((?:\[\d{1,9}\])*)")
"""A key, and the numbers of entries of lists in it, as `key_text` writes them."""


@dataclass(frozen=True)
class _Assignment:
    """One of them, read.

    Attributes:
        option: As an error names it: flag and key, without the value.
        path: The keys from the top of the file.
        value: What its YAML says.
    """

    option: str
    path: KeyPath
    value: Any


def assign(
    data: dict[str, Any], location: Location, assignments: Sequence[str]
) -> tuple[dict[str, Any], Location]:
    """Return the content of a job file with keys of its jobs set, and its location.

    Sections that several jobs share by an anchor change for the job that is named alone.

    Args:
        data: What the file says, with `jobs` by name; it stays as it is.
        location: Its top; errors about a key that was set name the option in place of the line.
        assignments: `JOB.KEY.KEY[NUMBER]=VALUE`, the value as YAML; the last of a key counts.

    Raises:
        InvalidRequest: One of them is not of this form, or its key leads through a value that holds
            no keys.
        UnknownJob: The file has no such job.
    """
    jobs = data["jobs"]
    options: dict[KeyPath, str] = {}
    lines = dict(location.lines)
    for text in assignments:
        found = _read(text, jobs)
        data = _with(data, found, 0)
        # What was below it is gone, with its lines.
        for places in (lines, options):
            for path in [path for path in places if path[: len(found.path)] == found.path]:
                del places[path]
        options[found.path] = found.option
        # A key above that the file lacks is there because of the first option that is below it.
        for length in range(_JOB_DEPTH + 1, len(found.path)):
            if found.path[:length] not in lines:
                options.setdefault(found.path[:length], found.option)
    return data, replace(location, lines=lines, options=options)


def _read(text: str, jobs: Mapping[str, Any]) -> _Assignment:
    key, equals, said = text.partition("=")
    option = f"{FLAG} {key}"
    if not equals or not said.strip():
        raise InvalidRequest(
            f"{FLAG} {text} gives no value: write {FLAG} JOB.KEY=VALUE, and null where none is "
            "meant",
            field=FLAG,
            value=text,
        )
    job = _job_of(key, jobs, option)
    path = _path(key[len(job) + 1 :])
    if not path:
        raise InvalidRequest(
            f"{option} names no key of the job: write {FLAG} {job}.KEY=VALUE, such as "
            f"{FLAG} {job}.seed=7",
            field=FLAG,
            value=text,
        )
    return _Assignment(option, ("jobs", job, *path), value_of(said, option))


def value_of(said: str, option: str) -> Any:
    """Return the value that an option of the command line gives as YAML.

    Args:
        said: The YAML.
        option: The flag and the key, for the error.

    Raises:
        InvalidRequest: It is not YAML.
    """
    try:
        value, _ = yaml_file.parse(said, Location(option, Path()))
    except InvalidJob as error:
        raise InvalidRequest(
            f"{error.message}; the value is read as YAML: put text with special characters into "
            "quotes",
            field=option.partition(" ")[0],
            value=f"{option}={said}",
        ) from None
    return value


def _job_of(key: str, jobs: Mapping[str, Any], option: str) -> str:
    """Return the job that a key begins with; names of jobs may hold dots."""
    fitting = [name for name in jobs if key == name or key.startswith(f"{name}.")]
    if fitting:
        return max(fitting, key=len)
    first, _, rest = key.partition(".")
    if first == "server" and (name := rest) in ServerSettings.model_fields:
        raise InvalidRequest(
            f"{option}: {FLAG} changes keys of jobs, and {name} is a setting of the node: set "
            f"PENSTOCK_{name.upper()}, or give --{name.replace('_', '-')} to serve",
            field=FLAG,
            value=key,
        )
    raise UnknownJob(
        f"{option}: there is no job {first!r}: {hint(first, jobs)}", job=first, jobs=sorted(jobs)
    )


def _path(text: str) -> KeyPath:
    """Return `source.files[0]` as keys; () = it is not of this form."""
    path: list[str | int] = []
    for part in text.split("."):
        match = _PART.fullmatch(part)
        if match is None:
            return ()
        path.append(match[1])
        path += [int(number) for number in re.findall(r"\d+", match[2])]
    return tuple(path) if len(path) <= yaml_file.MAX_DEPTH else ()


def _with(section: Any, found: _Assignment, depth: int) -> Any:
    """Return a section of the file with the value in it; what is shared with others is copied."""
    if depth == len(found.path):
        return found.value
    part = found.path[depth]
    key = key_text(found.path[:depth])
    if isinstance(part, int):
        if not isinstance(section, list) or part >= len(section):
            raise InvalidRequest(
                f"{found.option}: {key} is {shown(section)}, which has no entry [{part}]: entries "
                f"count from 0, and a new one comes with the whole list, {FLAG} "
                f"{key.removeprefix('jobs.')}='[...]'",
                field=FLAG,
                value=found.option,
            )
        return [*section[:part], _with(section[part], found, depth + 1), *section[part + 1 :]]
    if isinstance(section, str) and depth > _JOB_DEPTH:
        section = {"type": section}  # `distributor: map`
    if section is not None and not isinstance(section, dict):
        raise InvalidRequest(
            f"{found.option}: {key} is {shown(section)}, which holds no keys: give it whole, "
            f"{FLAG} {key.removeprefix('jobs.')}=VALUE",
            field=FLAG,
            value=found.option,
        )
    return {**(section or {}), part: _with((section or {}).get(part), found, depth + 1)}
