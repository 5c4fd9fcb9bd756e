"""The tables of a store in SQLite, and how their rows are written so that damage shows.

SQLite has no checksums of pages: a flipped bit in a number is another number. So every row carries
a **seal**, a hash of its columns, as a CHECK constraint: no statement can forget it, and SQLite's
own check at open recomputes it for every row. Tables are keyed b-trees without secondary indexes,
so no index can disagree with its table.
"""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

FORMAT = 4
"""Raised by every change of the text below, with a step in `_UPGRADES`: stores compare it with what
they hold."""

APPLICATION_ID = 0x70656E73
"""`pens`, at byte 68 of the file: tells a store from another program's SQLite file."""

DELETED = "deleted_generation"
"""Key in `meta`: the highest generation that a group had which was deleted since; 0 = none was."""

_TABLES: dict[str, tuple[str, dict[str, str]]] = {
    # table: (primary key, {column: type})
    "meta": ("key", {"key": "TEXT", "value": "TEXT"}),
    "jobs": (
        "name, log_id",
        {
            "name": "TEXT",
            "log_id": "BLOB",
            "number": "INTEGER",
            "plan": "TEXT",
            "first_seen": "TEXT",
        },
    ),
    "groups": (
        "job, name",
        {
            "job": "TEXT",
            "name": "TEXT",
            "id": "INTEGER",
            "batches_per_step": "INTEGER",
            "committed_at": "TEXT",
            "committed_by": "INTEGER",
        },
    ),
    "timelines": (
        "group_id, from_step",
        {"group_id": "INTEGER", "from_step": "INTEGER", "log_id": "BLOB"},
    ),
    "generations": (
        "group_id, generation",
        {
            "group_id": "INTEGER",
            "generation": "INTEGER",
            "token": "TEXT",
            "world_size": "INTEGER",
            "start_step": "INTEGER",
            "owner": "TEXT",
            "made_by": "TEXT",  # begin | state | seek | restore
            "checkpoint": "TEXT",
            "request_id": "TEXT",
            "made_at": "TEXT",
        },
    ),
    "cursors": (
        "group_id, generation, rank",
        {"group_id": "INTEGER", "generation": "INTEGER", "rank": "INTEGER", "step": "INTEGER"},
    ),
    "checkpoints": (
        "group_id, name",
        {
            "group_id": "INTEGER",
            "name": "TEXT",
            "step": "INTEGER",
            "log_id": "BLOB",
            "made_at": "TEXT",
        },
    ),
    "snapshots": (
        "log_id, lane, offset",
        {
            "log_id": "BLOB",
            "lane": "INTEGER",
            "offset": "INTEGER",
            "checksum": "BLOB",
            "body": "INTEGER",
        },
    ),
    "verdicts": (
        "log_id, number",
        {
            "log_id": "BLOB",
            "number": "INTEGER",
            "stage": "TEXT",
            "source": "TEXT",
            "item": "INTEGER",
            "epoch": "INTEGER",
            "every_epoch": "INTEGER",
            "lane": "INTEGER",
            "offset": "INTEGER",  # from here on it holds in its lane
            "above": "INTEGER",  # from here on it holds in every lane
            "released": "INTEGER",  # from here on it holds no more; -1 = it was not released
            "content_hash": "TEXT",
            "reason": "TEXT",
        },
    ),
    "lane_ends": (
        "log_id, lane",
        {"log_id": "BLOB", "lane": "INTEGER", "batches": "INTEGER"},
    ),
    "libraries": (
        "log_id, name",
        {"log_id": "BLOB", "name": "TEXT", "version": "TEXT", "first_seen": "TEXT"},
    ),
}

# Bytes of snapshots stand apart: long rows would make every search in a keyed b-tree deep. Their
# checksum is in the sealed row of `snapshots`, and is compared when they are read.
_BODIES = "CREATE TABLE bodies (id INTEGER PRIMARY KEY, data BLOB NOT NULL)"


def _create(table: str) -> str:
    key, columns = _TABLES[table]
    lines = [f"{name} {kind} NOT NULL" for name, kind in columns.items()]
    lines.append("seal BLOB NOT NULL")
    lines.append(f"PRIMARY KEY ({key})")
    lines.append(f"CHECK (seal = seal({', '.join(columns)}))")
    return f"CREATE TABLE {table} ({', '.join(lines)}) WITHOUT ROWID"


SCHEMA: tuple[str, ...] = (*(_create(table) for table in _TABLES), _BODIES)

_UPGRADES: dict[int, Callable[[sqlite3.Connection], None]] = {
    # format: what makes the next one of it
    1: lambda connection: _execute(connection, _create("libraries")),
    2: lambda connection: _number_verdicts(connection),
    3: lambda connection: insert(connection, "meta", key=DELETED, value="0"),
}

OLDEST = min(_UPGRADES)
"""The oldest format that `upgrade` knows."""


def seal(*values: int | str | bytes) -> bytes:
    """Return 8 bytes that change when any of a row's columns does."""
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        kind = type(value).__name__.encode()
        data = value if isinstance(value, bytes) else str(value).encode()
        digest.update(b"%s %d " % (kind, len(data)) + data)
    return digest.digest()


def prepare(connection: sqlite3.Connection) -> None:
    """Teach a connection the function that the schema's constraints call."""
    connection.create_function("seal", -1, seal, deterministic=True)
    connection.execute("PRAGMA trusted_schema = ON")  # some builds forbid functions in constraints


def create(connection: sqlite3.Connection) -> None:
    """Fill an empty database with the tables and an identity of its own, in one transaction."""
    prepare(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for statement in SCHEMA:
        connection.execute(statement)
    insert(connection, "meta", key="uuid", value=str(uuid.uuid4()))
    insert(connection, "meta", key="format", value=str(FORMAT))
    insert(connection, "meta", key=DELETED, value="0")
    connection.execute("COMMIT")


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a store of an older format, at least `OLDEST`, up to this one.

    In the caller's transaction: a store is of one format or of the other, whenever it is killed.
    """
    for step in range(version, FORMAT):
        _UPGRADES[step](connection)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    update(connection, "meta", {"value": str(FORMAT)}, "key = 'format'", {})


def _execute(connection: sqlite3.Connection, statement: str) -> None:
    connection.execute(statement)


def _number_verdicts(connection: sqlite3.Connection) -> None:
    """Give verdicts numbers and places: each holds for its item and epoch everywhere, as it did."""
    old = connection.execute(
        "SELECT log_id, stage, source, item, epoch, content_hash, reason FROM verdicts "
        "ORDER BY log_id, source, item, epoch, stage"
    ).fetchall()
    connection.execute("DROP TABLE verdicts")
    connection.execute(_create("verdicts"))
    numbers: dict[bytes, int] = {}
    for log_id, stage, source, item, epoch, content_hash, reason in old:
        numbers[log_id] = numbers.get(log_id, 0) + 1
        insert(
            connection,
            "verdicts",
            log_id=log_id,
            number=numbers[log_id],
            stage=stage,
            source=source,
            item=item,
            epoch=epoch,
            every_epoch=0,
            lane=0,
            offset=0,
            above=0,
            released=-1,
            content_hash=content_hash,
            reason=reason,
        )


def insert(connection: sqlite3.Connection, table: str, **values: int | str | bytes) -> None:
    """Insert one sealed row; every column must be given."""
    columns = _TABLES[table][1]
    row = [values[column] for column in columns]
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, seal(*row)))


def insert_many(
    connection: sqlite3.Connection, table: str, rows: Iterable[tuple[int | str | bytes, ...]]
) -> None:
    """Insert sealed rows, each with every column in the table's order."""
    marks = ", ".join("?" * (len(_TABLES[table][1]) + 1))
    sealed = ((*row, seal(*row)) for row in rows)
    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", sealed)


def update(
    connection: sqlite3.Connection,
    table: str,
    changes: Mapping[str, int | str | bytes],
    where: str,
    parameters: Mapping[str, Any],
) -> int:
    """Change columns of the rows that `where` picks, and their seals; return how many rows.

    Args:
        connection: In a transaction.
        table: One of the sealed tables.
        changes: New values by column.
        where: An SQL condition with named parameters.
        parameters: Their values.
    """
    sealed = [f":new_{column}" if column in changes else column for column in _TABLES[table][1]]
    settings = [f"{column} = :new_{column}" for column in changes]
    settings.append(f"seal = seal({', '.join(sealed)})")
    cursor = connection.execute(
        f"UPDATE {table} SET {', '.join(settings)} WHERE {where}",
        {**parameters, **{f"new_{column}": value for column, value in changes.items()}},
    )
    return cursor.rowcount


def touch(connection: sqlite3.Connection) -> None:
    """Write a page as it is: SQLite leaves a row out that would be the same, but not this."""
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def now(connection: sqlite3.Connection) -> str:
    """Return the store's time, ISO 8601 UTC: for people only, nothing compares it."""
    row = connection.execute("SELECT strftime('%Y-%m-%dT%H:%M:%SZ', 'now')").fetchone()
    return str(row[0])


__all__ = [
    "APPLICATION_ID",
    "DELETED",
    "FORMAT",
    "OLDEST",
    "SCHEMA",
    "create",
    "insert",
    "insert_many",
    "now",
    "prepare",
    "seal",
    "touch",
    "update",
    "upgrade",
]
