"""What the built-in roles of a job file import, so that workers import it while they start.

It is known before a job is built, by the names in the file alone. Roles of users are left out:
their code runs where a job is built, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.server.jobs.settings import JobSettings, RolesSettings
from penstock.server.sources.on_demand import PACKAGE, PLACES

IMPORTED: dict[str, dict[str, str]] = {
    "source": {
        "parquet": "pyarrow.parquet",
        "csv": "pyarrow.csv",
        "arrow": "pyarrow.ipc",
        "saved": "pyarrow.ipc",
        "hf": "datasets",
        "hf_stream": "datasets",
    },
    "processor": {
        "tokenize": "tokenizers",
        "chat": "tokenizers",
        "sound": "soundfile",
        "robot": "av",
        "video": "av",
    },
}
"""By kind of role and `type:`, the package or module that takes longest to import."""


def imported(jobs: Iterable[JobSettings]) -> tuple[str, ...]:
    """Return the modules that the built-in sources and processors of jobs import."""
    found = {module for job in jobs for roles in _sets(job) for module in _of(roles)}
    return tuple(sorted(found))


def _sets(job: JobSettings) -> Iterator[RolesSettings]:
    yield job
    yield from (job.joint or {}).values()


def _of(roles: RolesSettings) -> Iterator[str]:
    specs: list[tuple[str, dict[str, Any] | None]] = [("processor", roles.processor)]
    specs += [("source", spec) for spec in (roles.source, *(roles.sources or {}).values())]
    for kind, spec in specs:
        name = str((spec or {}).get("type"))
        if kind == "source" and name in PLACES:
            yield f"{PACKAGE}.{PLACES[name][0]}"
        if (module := IMPORTED[kind].get(name)) is not None:
            yield module
