"""A store in PostgreSQL as the source or the target of a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection

from penstock.server.store import postgres_opening as opening
from penstock.server.store import postgres_sql as sql
from penstock.server.store.postgres_place import PostgresPlace
from penstock.server.store.postgres_tables import ReadTables
from penstock.server.store.rows import Add, MetaRow, Row
from penstock.server.store.tables import Tables


@asynccontextmanager
async def reading(place: PostgresPlace) -> AsyncIterator[Tables]:
    """Give the rows of a store, all of one moment.

    Raises:
        StoreUnavailable, StoreCorrupt: It cannot be reached, or is not a store.
    """
    async with _named(place) as connection, connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await opening.check_content(connection, place)

        async def answers(statement: sql.Statement) -> list[tuple[Any, ...]]:
            return await (await connection.execute(*statement, binary=True)).fetchall()

        yield ReadTables(answers, place.schema)


class CopyTarget:
    """A store that is being made, in a transaction.

    Args:
        connection: Its connection.
        place: Where.
    """

    def __init__(self, connection: AsyncConnection[Any], place: PostgresPlace) -> None:
        self._db, self._place = connection, place

    async def begin(self, meta: Sequence[MetaRow]) -> bool:
        """Make the tables; False = the schema is not empty."""
        lock = opening.lock_number(self._place.schema, ("open",))
        await self._db.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
        if not await opening.is_missing(self._db, self._place):
            return False
        await opening.make_tables(self._db, self._place, meta)
        return True

    async def add(self, rows: Sequence[Row]) -> None:
        """Write rows of one class."""
        for text, values in sql.writing(self._place.schema, [Add(row) for row in rows]):
            await self._db.execute(text, values)

    async def number_from(self, highest: int) -> None:
        """Have numbers begin above one."""
        if highest:
            name = f"{sql.quoted(self._place.schema)}.{sql.NUMBERS}"
            await self._db.execute("SELECT setval(%s::regclass, %s)", (name, highest))


@asynccontextmanager
async def writing(place: PostgresPlace) -> AsyncIterator[CopyTarget]:
    """Give a store that is made whole as this ends without an error.

    Raises:
        StoreUnavailable: It cannot be reached, or the role may not make one.
    """
    async with _named(place) as connection, connection.transaction():
        yield CopyTarget(connection, place)


@asynccontextmanager
async def _named(place: PostgresPlace) -> AsyncIterator[AsyncConnection[Any]]:
    """Give a connection, and name its errors."""
    try:
        connection = await opening.connect(place)
        try:
            yield connection
        finally:
            await connection.close()
    except psycopg.Error as error:
        named = place.named(error)
        if named is None:
            raise
        raise named from error
