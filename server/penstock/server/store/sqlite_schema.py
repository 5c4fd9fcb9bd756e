"""The tables of a store in SQLite, and how their rows are written so that damage shows.

SQLite has no checksums of pages: a flipped bit in a number is another number. So every row carries
a **seal**, a hash of its columns, as a CHECK constraint: no statement can forget it, and SQLite's
own check at open recomputes it for every row. Tables are keyed b-trees without secondary indexes,
so no index can disagree with its table. Their columns are those of `rows`.
"""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from functools import cache
from typing import get_type_hints

from penstock.server.store.rows import DELETED, TABLES, BodyRow, MetaRow, Row, Value

FORMAT = 7
"""Raised by every change of a class of `rows`, with a step in `migrations`: stores compare it with
what they hold."""

APPLICATION_ID = 0x70656E73
"""`pens`, at byte 68 of the file: tells a store from another program's SQLite file."""

_KINDS = {int: "INTEGER", str: "TEXT", bytes: "BLOB"}

# Bytes of snapshots are in a table of their own: long rows would make every search in a keyed
# b-tree deep. Their checksum is in the sealed row of `snapshots`, and is compared when they are
# read.
_BODIES = "CREATE TABLE bodies (id INTEGER PRIMARY KEY, data BLOB NOT NULL)"


@cache
def columns(kind: type[Row]) -> tuple[str, ...]:
    """Return the columns of a class of rows, in their order."""
    return tuple(get_type_hints(kind))


def create_statement(kind: type[Row]) -> str:
    """Return the statement that makes the table of a class of rows."""
    if kind is BodyRow:
        return _BODIES
    kinds = {name: _KINDS[hint] for name, hint in get_type_hints(kind).items()}
    table, key = TABLES[kind]
    return sealed_table(table, ", ".join(list(kinds)[:key]), kinds)


def sealed_table(table: str, key: str, kinds: dict[str, str]) -> str:
    """Return the statement that makes a table whose rows are sealed.

    Args:
        table: Its name.
        key: The columns of its key, with commas.
        kinds: The types of its columns, without the seal.
    """
    lines = [f"{name} {kind} NOT NULL" for name, kind in kinds.items()]
    lines.append("seal BLOB NOT NULL")
    lines.append(f"PRIMARY KEY ({key})")
    lines.append(f"CHECK (seal = seal({', '.join(kinds)}))")
    return f"CREATE TABLE {table} ({', '.join(lines)}) WITHOUT ROWID"


SCHEMA = frozenset(create_statement(kind) for kind in TABLES)
"""What `sqlite_master` holds of a store of this format."""


def seal(*values: Value) -> bytes:
    """Return 8 bytes that change when any of a row's columns does."""
    parts = []
    for value in values:
        if type(value) is int:
            data = b"%d" % value
            parts.append(b"int %d %b" % (len(data), data))
        else:
            data = value if isinstance(value, bytes) else str(value).encode()
            parts.append(b"%b %d %b" % (type(value).__name__.encode(), len(data), data))
    return hashlib.blake2b(b"".join(parts), digest_size=8).digest()


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
    for statement in sorted(SCHEMA):
        connection.execute(statement)
    for key, value in (("uuid", str(uuid.uuid4())), ("format", str(FORMAT)), (DELETED, "0")):
        insert(connection, TABLES[MetaRow].name, key, value)
    connection.execute("COMMIT")


def insert(connection: sqlite3.Connection, table: str, *row: Value) -> None:
    """Insert one row with its seal; every column must be given."""
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, seal(*row)))


def touch(connection: sqlite3.Connection) -> None:
    """Write a page as it is: SQLite leaves a row out that would be the same, but not this."""
    connection.execute(f"PRAGMA user_version = {FORMAT}")
