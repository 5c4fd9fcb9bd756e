"""A job's whole definition as a value that is stored and sent: any process builds it from there.

It holds what the section of a job file says, and the folder that its paths start from. Data, and
the code of users' roles, it names and does not hold: so whoever builds the job compares the log id,
which knows of both. A job that code has built may hold any object, which no text can say: its
definition names that code, which then runs again. Where modules are searched for is the node's own:
its workers search as it does (`penstock.server.process.environment`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from penstock.server.config.location import Location
from penstock.server.job.job import Job, find_job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.jobs.checked_keys import validate
from penstock.server.jobs.python_file import jobs_in
from penstock.server.jobs.registry import KINDS, absolute, build
from penstock.server.jobs.settings import JobSettings, RolesSettings, SetSettings
from penstock.server.media.media_files import MediaFiles
from penstock.server.planning.log.job_plan import Plan
from penstock.wire.credentials import value_without_credentials
from penstock.wire.errors import InvalidJob, JobChanged, PenstockError

FORMAT = 1

UNSTORED = "storage_options"
"""What of a source goes to workers and into no store: it may hold credentials, which belong into
the job file or the environment alone, and it changes no batch."""


@dataclass(frozen=True)
class Definition:
    """What a job is made of.

    Attributes:
        name: Its name.
        file: The job file that it stands in, absolute, for messages; or `/abs/jobs.py:name`.
        base: The folder that relative paths start from, absolute.
        settings: Its section of the job file; None = `file` is code, which builds the job.
    """

    name: str
    file: str
    base: str
    settings: dict[str, Any] | None

    def encode(self) -> bytes:
        """Return it as JSON, the same bytes for the same section of the same file.

        The section's keys keep their order: sources are drawn from in the order they are given in.

        Raises:
            InvalidJob: It holds what JSON cannot hold, such as a date.
        """
        data = json.dumps({"format": FORMAT, **asdict(self)}, default=str, skipkeys=True).encode()
        if decode(data) != self:
            raise InvalidJob(
                f"{self.file}: jobs.{self.name} holds a value that JSON cannot hold, such as a "
                "date, bytes, .nan or a key that is no text: put it in quotes",
                key=f"jobs.{self.name}",
                file=self.file,
            )
        return data

    def build(
        self,
        location: Location | None = None,
        make: Callable[[], Job] | None = None,
        *,
        planned: bool = True,
    ) -> Job:
        """Build the job.

        Args:
            location: Where it stands in its file, with the lines; None = they are not known.
            make: The code that builds it, where it was run already.
            planned: False leaves the index of its plan unopened: it is to be made.

        Raises:
            InvalidJob: Something in it does not hold together; names the key.
            PenstockError: The data cannot be opened; the message begins with the key.
        """
        definition = self.encode()
        if self.settings is None:
            job = (make or find_job(_jobs_of_code(self.file), self.name))()
            if planned:
                job.open_plans()
        else:
            location = location or Location(self.file, Path(self.base), ("jobs", self.name))
            settings = validate(JobSettings, self.settings, location)
            job = _built(self.name, settings, location, planned=planned)
        job.definition, job.stored_definition = definition, self._stored().encode()
        return job

    def _stored(self) -> Definition:
        """Return it without what no store shall hold."""
        if self.settings is None:
            return self
        settings = _storable(self.settings)
        if settings.get("joint") is not None:
            settings["joint"] = {name: _storable(own) for name, own in settings["joint"].items()}
        return replace(self, settings=settings)


def _storable(section: dict[str, Any]) -> dict[str, Any]:
    """Return a job's section, or that of a set of roles, without what may be credentials.

    These are the options of its sources, and users, passwords and queries in URLs.
    """
    found = dict(section)
    if found.get("source") is not None:
        found["source"] = _without_options(found["source"])
    if found.get("sources") is not None:
        found["sources"] = {name: _without_options(spec) for name, spec in found["sources"].items()}
    for key in ("plan", "media"):
        if found.get(key) is not None:
            found[key] = _without_options(found[key])
    plain: dict[str, Any] = value_without_credentials(found)
    return plain


def _without_options(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != UNSTORED}


@cache
def _jobs_of_code(spec: str) -> dict[str, Callable[[], Job]]:
    """Run the code that builds jobs, once for all of them."""
    return jobs_in(spec, spec)


def decode(data: bytes) -> Definition:
    """Return the definition that `encode` wrote.

    Raises:
        InvalidJob: It is none, or of another format.
    """
    what = "is none"
    try:
        found = json.loads(data)
        written = found.pop("format")
        if written == FORMAT:
            return Definition(**found)
        what = f"has format {written!r}"
    except (ValueError, TypeError, AttributeError, KeyError):
        if not data:
            what = (
                "is empty: the job was built in code that nobody named, so serve it as jobs.py:NAME"
            )
    raise InvalidJob(f"the definition of a job {what} (this penstock reads format {FORMAT})")


def rebuild(data: bytes, log_id: bytes) -> Job:
    """Return the job of a definition, in another process or at another time than it was written.

    Args:
        data: What `encode` wrote.
        log_id: The log that it must be.

    Raises:
        JobChanged: It is another one now.
        PenstockError: As `decode` and `Definition.build`.
    """
    job = decode(data).build()
    if job.log_id != log_id:
        raise JobChanged(
            f"job {job.name!r} is not what it was when the server started: the files changed that "
            "its definition names, data or code; restart the server, and put the old files back if "
            "its cursors shall go on",
            job=job.name,
            differences=["log id"],
        )
    return job


def _built(name: str, settings: JobSettings, location: Location, *, planned: bool) -> Job:
    """Build the sources and the roles of one job, and the job of them.

    Args:
        name: Its name.
        settings: Its section of the file, checked.
        location: Where the section stands.
        planned: Open the indexes of plans.

    Raises:
        InvalidJob: Something in it does not hold together; names the key.
        PenstockError: The data cannot be opened; the message begins with the key.
    """
    values = settings.model_dump(exclude_unset=True)
    sets = values.pop("joint", None)
    parts: dict[str, Any] = {}
    if sets is not None:
        parts["sets"] = {
            key: _role_set(spec, location.at("joint", key)) for key, spec in sets.items()
        }
    else:
        parts = _roles(values, location)
    numbers = {key: value for key, value in values.items() if key not in RolesSettings.model_fields}
    try:
        job = Job(**parts, **numbers, name=name) if sets is None else None
        job = job or JointJob(**parts, **numbers, name=name)
        if not planned:
            return job
        job.open_plans()
        job.check_end()  # whether lanes end, and where, is part of what the file says
        if not job.needs_counting:
            _ = job.order
        return job
    except PenstockError as error:
        raise _placed(error, values, location) from error


def _role_set(spec: dict[str, Any], location: Location) -> RoleSet:
    """Build one of the sets of a joint job."""
    kept = {key: spec[key] for key in ("ratio", "exhausted") if key in spec}
    roles = _roles(spec, location)
    try:
        return RoleSet(**roles, **kept)
    except PenstockError as error:
        raise _placed(error, spec, location) from error


def _roles(given: dict[str, Any], location: Location) -> dict[str, Any]:
    """Build the sources and the roles of a section: what a job is made of, by parameter."""
    values = {
        key: value
        for key, value in given.items()
        if key in RolesSettings.model_fields and value is not None
    }
    function = values.pop("function", None)
    if function is not None:
        if values.get("processor") is not None:
            at = location.at("function")
            raise at.error(
                f"{at.key} and {location.at('processor').key} are both given: remove one of them"
            )
        values["processor"] = {"function": function}
    if (plan := values.get("plan")) is not None:
        values["plan"] = _plan(plan, location.at("plan"))
    if (media := values.get("media")) is not None:
        values["media"] = _media(media, location.at("media"))
    several = values.pop("sources", None)
    if several is not None:
        values["source"] = {
            key: build(KINDS["source"], spec, location.at("sources", key))
            for key, spec in several.items()
        }
    for role, kind in KINDS.items():
        if role in values and not (role == "source" and several is not None):
            at = location if role == "processor" and function is not None else location.at(role)
            values[role] = build(kind, values[role], at)
    return values


def _plan(given: dict[str, Any], location: Location) -> Plan:
    """Build the plan of a section; its index is relative to the job file."""
    try:
        return Plan(**{**given, "index": absolute(given["index"], location.base)})
    except InvalidJob as error:
        key = str(error.key or "").removeprefix("plan.")
        raise location.at(key).error(f"{location.key}: {error.message}", error) from error


def _media(given: dict[str, Any], location: Location) -> MediaFiles:
    """Build what says where media lie; its paths are relative to the job file."""
    paths = {key: absolute(given[key], location.base) for key in ("dir", "allow") if given.get(key)}
    try:
        return MediaFiles(**{**given, **paths})
    except InvalidJob as error:
        key = str(error.key or "").removeprefix("media.")
        raise location.at(key).error(f"{location.key}: {error.message}", error) from error


def _placed(error: PenstockError, given: dict[str, Any], location: Location) -> PenstockError:
    """Return an error of a section whose roles do not go together, with its key."""
    keys = str(error.fields.get("key") or "").split(".")
    if given.get("sources") is not None and keys[0] == "source":
        keys = ["sources"]
    known = JobSettings.model_fields.keys() | SetSettings.model_fields.keys()
    at = location.at(*keys) if keys[0] in known else location
    if not isinstance(error, InvalidJob):
        return error.reworded(f"{location.key}: {error.message}")
    return at.error(f"{location.key}: {error.message}", error)
