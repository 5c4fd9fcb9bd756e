"""How a SQLite store of an older format becomes one of this: a list of steps, in one transaction.

A step turns format n into format n + 1, and knows only these two: it names tables and columns as
they were then, never by `rows`, which are those of today. Each format has a kept file that is
opened in a test, see `tests/data/stores`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from penstock.server.store.rows import Value
from penstock.server.store.sqlite_schema import FORMAT, insert, seal, sealed_table


def _record_libraries(connection: sqlite3.Connection) -> None:
    """Format 2: with which versions of libraries a log was computed first."""
    kinds = {"log_id": "BLOB", "name": "TEXT", "version": "TEXT", "first_seen": "TEXT"}
    connection.execute(sealed_table("libraries", "log_id, name", kinds))


_VERDICTS_3 = {
    "log_id": "BLOB",
    "number": "INTEGER",
    "stage": "TEXT",
    "source": "TEXT",
    "item": "INTEGER",
    "epoch": "INTEGER",
    "every_epoch": "INTEGER",
    "lane": "INTEGER",
    "offset": "INTEGER",
    "above": "INTEGER",
    "released": "INTEGER",
    "content_hash": "TEXT",
    "reason": "TEXT",
}


def _number_verdicts(connection: sqlite3.Connection) -> None:
    """Format 3: numbers and offsets. Each holds for its item and epoch everywhere, as it did."""
    old = connection.execute(
        "SELECT log_id, stage, source, item, epoch, content_hash, reason FROM verdicts "
        "ORDER BY log_id, source, item, epoch, stage"
    ).fetchall()
    connection.execute("DROP TABLE verdicts")
    connection.execute(sealed_table("verdicts", "log_id, number", _VERDICTS_3))
    numbers: dict[bytes, int] = {}
    for log_id, stage, source, item, epoch, content_hash, reason in old:
        numbers[log_id] = numbers.get(log_id, 0) + 1
        since = (0, 0, 0, 0, -1)  # every_epoch, lane, offset, above, released
        row = (log_id, numbers[log_id], stage, source, item, epoch, *since, content_hash, reason)
        insert(connection, "verdicts", *row)


def _remember_deleted(connection: sqlite3.Connection) -> None:
    """Format 4: the highest generation of all groups that were deleted."""
    insert(connection, "meta", "deleted_generation", "0")


def _number_changes(connection: sqlite3.Connection) -> None:
    """Format 5: changes of a log are numbered, its verdicts and its halts together."""
    old = connection.execute(f"SELECT {', '.join(_VERDICTS_3)} FROM verdicts").fetchall()
    connection.execute("DROP TABLE verdicts")
    kinds = {**_VERDICTS_3, "change": "INTEGER"}
    connection.execute(sealed_table("verdicts", "log_id, number", kinds))
    for row in old:
        number = row[1]
        insert(connection, "verdicts", *row, number)
    halts = {
        "log_id": "BLOB",
        "change": "INTEGER",
        "lane": "INTEGER",
        "offset": "INTEGER",
        "code": "TEXT",
        "message": "TEXT",
        "fields": "TEXT",
        "node": "TEXT",
        "made_at": "TEXT",
    }
    connection.execute(sealed_table("halts", "log_id, change", halts))


def _keep_definitions(connection: sqlite3.Connection) -> None:
    """Format 6: what the job of a log is built from."""
    kinds = {"log_id": "BLOB", "definition": "BLOB"}
    connection.execute(sealed_table("definitions", "log_id", kinds))


def _let_nodes_follow(connection: sqlite3.Connection) -> None:
    """Format 7: what nodes follow, how far they plan, what batches were, and what made them."""
    log, text, number = "BLOB", "TEXT", "INTEGER"
    followed = {"kind": text, "scope": text, "name": text, "number": number}
    connection.execute(sealed_table("followed", "kind, scope, name", followed))
    leads = {"log_id": log, "lane": number, "planned": number, "reserved": number}
    connection.execute(sealed_table("leads", "log_id, lane", leads))
    witnesses = {"log_id": log, "lane": number, "offset": number, "digest": log, "environment": log}
    connection.execute(sealed_table("witnesses", "log_id, lane, offset", witnesses))
    environments = {"log_id": log, "environment": log, "packages": text, "first_seen": text}
    connection.execute(sealed_table("environments", "log_id, environment", environments))
    changes = connection.execute(
        "SELECT log_id, max(change) FROM (SELECT log_id, change FROM verdicts UNION ALL "
        "SELECT log_id, change FROM halts) GROUP BY log_id"
    ).fetchall()
    for log_id, change in changes:
        insert(connection, "followed", "log", log_id.hex(), "", change)
    groups = connection.execute(
        "SELECT job, name, (SELECT max(generation) FROM generations WHERE group_id = id) "
        "FROM groups"
    ).fetchall()
    for job, name, generation in groups:
        insert(connection, "followed", "group", job, name, generation)


STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {
    # format -> what turns it into the next one
    1: _record_libraries,
    2: _number_verdicts,
    3: _remember_deleted,
    4: _number_changes,
    5: _keep_definitions,
    6: _let_nodes_follow,
}

OLDEST = min(STEPS)
"""The oldest format that `upgrade` knows."""


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a store of an older format, at least `OLDEST`, up to this one.

    In the caller's transaction: a kill at any moment leaves a store of one format or the other.
    """
    for step in range(version, FORMAT):
        STEPS[step](connection)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    row: tuple[Value, ...] = ("format", str(FORMAT))
    connection.execute("REPLACE INTO meta VALUES (?, ?, ?)", (*row, seal(*row)))
