"""A connection to a store in PostgreSQL: opened with care, and never to another store."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.types.numeric import Int8BinaryDumper

from penstock.server.store import postgres_sql as sql
from penstock.server.store.postgres_place import PostgresPlace
from penstock.server.store.rows import DELETED, TABLES, Add, MetaRow, Put
from penstock.server.store.sqlite_schema import FORMAT

# It warns of each connection that breaks; the store says so once, and once that it is back.
logging.getLogger("psycopg").setLevel(logging.ERROR)

OLDEST_SERVER = 150000
"""PostgreSQL 15: older ones are not tried."""

META = {"uuid", "format", "since", DELETED}

_SERVER = (
    "SELECT current_setting('server_version_num')::bigint, current_setting('server_version'), "
    "pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', "
    "current_setting('synchronous_commit'), current_setting('fsync'), "
    "current_setting('server_encoding'), pg_backend_pid()::bigint, current_user::text, "
    "current_database()::text"
)


async def connect(place: PostgresPlace) -> AsyncConnection[Any]:
    """Return a connection to a server that keeps what it has answered.

    Raises:
        StoreUnavailable: The server is a standby, answers before a commit is durable, is too old,
            or a pooler stands before it.
        psycopg.Error: It cannot be reached.
    """
    connection = await AsyncConnection.connect(
        autocommit=True, prepare_threshold=2, **place.parameters
    )
    try:
        teach(connection)
        rows = await (await connection.execute(_SERVER)).fetchall()
        check_server(place, rows[0], connection.info.backend_pid)
    except BaseException:
        await connection.close()
        raise
    return connection


def teach(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Have integers travel as `bigint`: one statement that is prepared, not one for each size."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.prepared_max = 500


def check_server(place: PostgresPlace, found: tuple[Any, ...], backend_pid: int) -> None:
    """Refuse a server that cannot keep a store.

    Args:
        place: The store's.
        found: What `_SERVER` gives.
        backend_pid: What the server has said as the connection was made: a pooler says its own.

    Raises:
        StoreUnavailable: With the setting and what to do.
    """
    number, version, is_standby, synchronous, fsync, encoding, pid, _, _ = found
    if pid != backend_pid:
        raise place.pooled()
    if number < OLDEST_SERVER:
        raise place.unavailable(f"it is PostgreSQL {version}", "a store needs PostgreSQL 15")
    if is_standby:
        raise place.unavailable(
            "it takes no writes: it is a standby, or default_transaction_read_only is on",
            "name the primary; with several hosts, add target_session_attrs=read-write",
        )
    if synchronous == "off":
        raise place.unavailable(
            "synchronous_commit is off: commits that were answered would be lost with its power",
            "set synchronous_commit = on for this role or database",
        )
    if fsync == "off":
        raise place.unavailable(
            "fsync is off: a power loss would damage it", "set fsync = on in postgresql.conf"
        )
    if encoding != "UTF8":
        raise place.unavailable(
            f"the database's encoding is {encoding}", "make a database with ENCODING 'UTF8'"
        )


async def open_content(connection: AsyncConnection[Any], place: PostgresPlace) -> tuple[str, bool]:
    """Make a store where there is none, and check the one that there is; return UUID and `made`.

    In one transaction, and one node at a time: no kill leaves half of a store.

    Raises:
        StoreCorrupt: The schema is not a store's, or of another format.
        StoreUnavailable: The role may not make one.
        psycopg.Error: As the server says.
    """
    async with connection.transaction():
        await connection.execute(
            "SELECT pg_advisory_xact_lock(%s)", (lock_number(place.schema, ("open",)),)
        )
        made = await is_missing(connection, place)
        if made:
            await make_tables(connection, place, sql.fresh_meta())
        found = await check_content(connection, place)
    return found, made


async def is_missing(connection: AsyncConnection[Any], place: PostgresPlace) -> bool:
    """Tell whether a schema is not there, or empty."""
    rows = await (await connection.execute(sql.SHAPE, (place.schema,))).fetchall()
    return not rows


async def make_tables(
    connection: AsyncConnection[Any], place: PostgresPlace, meta: Sequence[MetaRow]
) -> None:
    """Make the tables of a store, in the caller's transaction.

    Args:
        connection: Its connection.
        place: Where.
        meta: What the store says about itself.

    Raises:
        StoreUnavailable: The role may not.
    """
    try:
        # Without a look, IF NOT EXISTS asks for a right that a schema that is there does not need.
        known = await (
            await connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.schema,)
            )
        ).fetchall()
        if not known:
            await connection.execute(f"CREATE SCHEMA {sql.quoted(place.schema)}")
        for statement in sql.creation(place.schema):
            await connection.execute(statement)
        for text, values in sql.writing(place.schema, list(map(Add, meta))):
            await connection.execute(text, values)
    except errors.InsufficientPrivilege as error:
        # The transaction has failed: nothing can be asked in it.
        role, base = connection.info.user, connection.info.dbname
        raise place.unavailable(
            f"there is no store yet, and role {role} may not make one "
            f"({error.diag.message_primary})",
            f"GRANT CREATE ON DATABASE {base} TO {role}, or CREATE SCHEMA {place.schema} "
            f"AUTHORIZATION {role}",
        ) from error


async def check_content(connection: AsyncConnection[Any], place: PostgresPlace) -> str:
    """Return the UUID of a store that this program may write to.

    Raises:
        StoreCorrupt: The schema is not a store's, or of another format.
    """
    found, meta = await _tables(connection, place), await _meta(connection, place)
    return check_shape(place, found, meta)


async def _tables(
    connection: AsyncConnection[Any], place: PostgresPlace
) -> dict[str, list[tuple[str, str, str]]]:
    rows = await (await connection.execute(sql.SHAPE, (place.schema,))).fetchall()
    found: dict[str, list[tuple[str, str, str]]] = {}
    for table, *column in rows:
        found.setdefault(table, []).append((column[0], column[1], column[2]))
    return found


async def _meta(connection: AsyncConnection[Any], place: PostgresPlace) -> dict[str, str]:
    """Return what a store says about itself; empty if it is not a store."""
    name = TABLES[MetaRow].name
    if (await _tables(connection, place)).get(name) != sql.shape()[name]:
        return {}
    table = f"{sql.quoted(place.schema)}.{name}"
    return dict(await (await connection.execute(f"SELECT key, value FROM {table}")).fetchall())


def check_shape(
    place: PostgresPlace, found: dict[str, list[tuple[str, str, str]]], meta: dict[str, str]
) -> str:
    """Return the UUID of a store, by what its schema holds.

    Raises:
        StoreCorrupt: It is another program's, half of a store, or of a format that this program may
            not write to.
    """
    if not found:
        raise place.corrupt("is not there", "name the schema that has it, or let a node make one")
    if not set(found) & set(sql.shape()):
        tables = ", ".join(sorted(found)[:3])
        raise place.corrupt(
            f"is the schema of another program, with tables such as {tables}",
            "name a schema of its own: ?options=-csearch_path%3Dpenstock",
        )
    wrong = sorted(name for name, shape in sql.shape().items() if found.get(name) != shape)
    version, since = meta.get("format", ""), meta.get("since", "")
    if set(meta) >= META and version.isdigit() and since.isdigit():
        if int(version) < FORMAT:
            raise place.corrupt(
                f"has format {version}, and this penstock has format {FORMAT}",
                "run `penstockd store upgrade` once, while nodes of the older version go on",
            )
        if int(since) > FORMAT:
            raise place.corrupt(
                f"has format {version}, and this penstock knows format {FORMAT}",
                "run the penstock version that wrote it, or a newer one",
            )
    if wrong:
        raise place.corrupt(
            f"is half a store: table {wrong[0]} "
            f"{'is not as it should be' if wrong[0] in found else 'is missing'}"
        )
    if not set(meta) >= META:
        raise place.corrupt("is damaged (it has no identity)")
    if not (version.isdigit() and since.isdigit()):
        raise place.corrupt(f"is damaged (its format is {version!r}, since {since!r})")
    return meta["uuid"]


def lock_number(store: str, key: tuple[Any, ...]) -> int:
    """Return the number of the lock on something of a store; others share it once in 2^64."""
    text = repr((store, key)).encode("utf-8", "backslashreplace")
    digest = hashlib.blake2b(text, digest_size=8, person=b"penstock").digest()
    return int.from_bytes(digest, "big", signed=True)


async def upgrade(place: PostgresPlace) -> tuple[int, int]:
    """Bring a store of an older format up to this one, in one transaction; return both formats.

    Tables that this format has more are made. Programs of the older format go on beside, as long as
    `SINCE` has them.

    Raises:
        StoreCorrupt: It is not a store, or a table is another one now.
        StoreUnavailable: The role may not, or the server cannot be reached.
    """
    try:
        connection = await connect(place)
        async with connection, connection.transaction():
            lock = lock_number(place.schema, ("open",))
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
            meta = await _meta(connection, place)
            if not (set(meta) >= META and meta["format"].isdigit()):
                await check_content(connection, place)  # which says what is wrong
            before = int(meta["format"])
            if before < FORMAT:
                found = await _tables(connection, place)
                for kind, table in TABLES.items():
                    if table.name not in found:
                        await connection.execute(sql.create_table(place.schema, kind))
                if before < 7:
                    for text in sql.followed_before(place.schema):
                        await connection.execute(text)
                news = [MetaRow("format", str(FORMAT)), MetaRow("since", str(sql.SINCE))]
                for text, values in sql.writing(place.schema, list(map(Put, news))):
                    await connection.execute(text, values)
            await check_content(connection, place)
        return before, FORMAT
    except psycopg.Error as error:
        named = place.named(error)
        if named is None:
            raise
        raise named from error
