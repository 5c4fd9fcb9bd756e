"""Who makes a call, and what it may do."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from penstock.wire.errors import Forbidden

READ, TEXT, COMMIT, ADMIN = "read", "read+text", "commit", "admin"

INCLUDED: dict[str, frozenset[str]] = {
    READ: frozenset((READ,)),
    TEXT: frozenset((READ, TEXT)),
    COMMIT: frozenset((READ, COMMIT)),
    ADMIN: frozenset((READ, COMMIT, ADMIN)),
}
"""What each scope includes. `admin` moves and deletes, and does not show what data say."""


@dataclass(frozen=True)
class Caller:
    """Who calls, and what it may do.

    Attributes:
        name: Its name in the file; empty = nobody was asked for.
        shown: What it is known by: the hash of its token, or the name in its certificate.
        scopes: What it may do, with what that includes.
        jobs: Patterns of the jobs that it is for.
        groups: Patterns of the groups.
        ends: When it ends to be valid; None = never.
        streams: How many streams it may have at a time; None = any number; so below.
        lanes: How many lanes a stream may read.
        horizon: How many batches beyond the next one are made for a stream.
    """

    name: str = ""
    shown: str = ""
    scopes: frozenset[str] = frozenset((READ, TEXT, COMMIT, ADMIN))
    jobs: tuple[str, ...] = ("*",)
    groups: tuple[str, ...] = ("*",)
    ends: datetime | None = None
    streams: int | None = None
    lanes: int | None = None
    horizon: int | None = None

    @property
    def reads_text(self) -> bool:
        """Whether it is shown which items are in a batch."""
        return TEXT in self.scopes

    def sees_item(self, stage: str) -> bool:
        """Tell whether it is shown which item a reader waits for.

        Args:
            stage: Where the reader's batch is; what holds up a queued one may be another job's.
        """
        return self.reads_text and (stage != QUEUED or "*" in self.jobs)

    def need(self, scope: str, what: str) -> None:
        """Refuse what the caller has no scope for.

        Args:
            scope: What it needs.
            what: What it would do, as in "it cannot ...".

        Raises:
            Forbidden: It does not have it.
        """
        if scope not in self.scopes:
            raise Forbidden(
                f"{self.name!r} cannot {what}: that needs the scope {scope}, and it has "
                f"{self.shown_scopes}; ask the operator of the node",
                name=self.name,
                scope=scope,
            )

    @property
    def shown_scopes(self) -> str:
        """Return its scopes for people."""
        return ", ".join(scope for scope in INCLUDED if scope in self.scopes)

    def sees_job(self, job: str) -> bool:
        """Tell whether it is for a job."""
        return _matches(job, self.jobs)

    def sees_group(self, group: str) -> bool:
        """Tell whether it is for a group; reading without one is for all."""
        return not group or _matches(group, self.groups)

    def check(self, job: str, group: str = "") -> None:
        """Refuse a job or a group that the caller is not for.

        Raises:
            Forbidden: It is not.
        """
        for kind, name, sees, patterns in (
            ("job", job, self.sees_job, self.jobs),
            ("group", group, self.sees_group, self.groups),
        ):
            if not sees(name):
                raise Forbidden(
                    f"{self.name!r} is for {kind}s {', '.join(patterns)}, and not for "
                    f"{kind} {name[:200]!r}; ask the operator of the node",
                    name=self.name,
                    job=job,
                    group=group,
                )


QUEUED = "queued"
"""The stage of a batch whose worker is busy with something else."""

ANYBODY = Caller()
"""Who calls where nobody is asked who it is: a Unix socket, or a node without tokens."""

CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)
"""Who makes the call that this task serves."""


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
