"""Operations that write are about something, so that those of several nodes follow each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from penstock.server.store import Store
from penstock.server.store.about import READING, describe
from penstock.server.store.group_operations import GroupOperations
from penstock.server.store.log_operations import LogOperations
from penstock.server.store.node_operations import NodeOperations
from penstock.server.store.records import SnapshotRecord
from penstock.server.testing.store import JOB, LOG, ask

OPERATIONS: dict[str, Callable[..., Any]] = {
    name: found
    for room in (GroupOperations, LogOperations, NodeOperations)
    for name, found in vars(room).items()
    if inspect.isfunction(found) and not name.startswith("_")
}


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - READING))
def test_an_operation_that_writes_is_about_something(name: str) -> None:
    """Else transactions of several nodes would overlap; it is read from the parameters' names."""
    words = {"log_id", "job", "request", "snapshots", "node_id"}

    assert words & set(inspect.signature(OPERATIONS[name]).parameters)


def test_what_is_said_to_read_is_there() -> None:
    """A name that no operation has would let one of that name go without locks."""
    assert OPERATIONS.keys() >= READING
    assert all(hasattr(Store, name) for name in READING)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "keys"),
    [
        ("commit", ("code", "run", "t", 1, 0, 5), {}, [("group", "code", "run")]),
        ("seek", ("code",), {"group": "run", "step": 5}, [("group", "code", "run")]),
        ("begin", (ask(),), {}, [("group", "code", "run"), ("job", "code")]),
        ("register_job", (JOB,), {}, [("job", "code")]),
        ("add_halt", (LOG, None), {}, [("log", LOG)]),
        (
            "put_snapshots",
            ([SnapshotRecord(log, 0, 0, b"") for log in (b"b", b"a", b"b")],),
            {},
            [("log", b"a"), ("log", b"b")],
        ),
        (
            "delete_group",
            ("code", "run"),
            {},
            [("group", "code", "run"), ("job", "code"), ("deleted",)],
        ),
    ],
)
def test_what_an_operation_is_about_is_what_it_names(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], keys: list[tuple[Any, ...]]
) -> None:
    about = describe(inspect.unwrap(OPERATIONS[name]))(args, kwargs)

    assert (about.name, list(about.keys), about.reads) == (name, keys, False)
