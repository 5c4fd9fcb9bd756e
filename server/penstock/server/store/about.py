"""What an operation is about, so that those that write about the same thing follow each other.

Only a database that several processes write to needs it. It is read from the names of an
operation's parameters, so an operation that is added has it too: `log_id` is a log, `job` and
`group` a group, `job` alone a job's plans, `node_id` a node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.server.store.records import BeginRequest, JobRecord, SnapshotRecord

Key = tuple[Any, ...]
"""A kind of thing, `log`, `group`, `job`, `node` or `deleted`, and its name."""

READING = frozenset(
    {
        "batches_per_step",
        "changes",
        "check_token",
        "definition",
        "environments",
        "followed",
        "groups",
        "lane_ends",
        "latest",
        "nearest_snapshot",
        "some_witnesses",
        "verdicts",
    }
)
"""Operations that write nothing, or almost never: they wait for no other. An operation that is not
listed may write."""


class About(NamedTuple):
    """What an operation is about.

    Attributes:
        name: The operation's.
        keys: What it writes about.
        reads: It writes nothing, or almost never.
    """

    name: str
    keys: tuple[Key, ...] = ()
    reads: bool = False


def describe(operation: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], About]:
    """Return what tells from an operation's arguments what it is about.

    Args:
        operation: Its first two parameters are the store and the tables; arguments are given
            without them.
    """
    name = operation.__name__
    places = {name: at for at, name in enumerate(list(inspect.signature(operation).parameters)[2:])}
    known = [(word, places[word]) for word in _WORDS if word in places]

    def about(args: Sequence[Any], kwargs: Mapping[str, Any]) -> About:
        given = {
            word: args[place] if place < len(args) else kwargs.get(word) for word, place in known
        }
        return About(name, tuple(_keys(name, given)), name in READING)

    return about


_WORDS = ("log_id", "job", "group", "request", "snapshots", "node_id")


def _keys(name: str, given: Mapping[str, Any]) -> Iterable[Key]:
    if isinstance(request := given.get("request"), BeginRequest):
        yield "group", request.job.name, request.group
        yield "job", request.job.name  # the first begin of a group registers its plan
    if (log_id := given.get("log_id")) is not None:
        yield "log", log_id
    if snapshots := given.get("snapshots"):
        yield from sorted({("log", _log_of(snapshot)) for snapshot in snapshots})
    if (node_id := given.get("node_id")) is not None:
        yield "node", node_id
    job, group = given.get("job"), given.get("group")
    if isinstance(job, JobRecord):
        yield "job", job.name
    elif job is not None:
        yield ("job", job) if group is None else ("group", job, group)
    if name == "delete_group":
        yield "job", job  # plans that only it referred to are forgotten
        yield ("deleted",)  # the highest generation of all that were deleted is one number


def _log_of(snapshot: SnapshotRecord) -> bytes:
    return snapshot.log_id
