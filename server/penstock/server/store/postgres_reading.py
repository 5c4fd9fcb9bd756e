"""A look into a store in PostgreSQL by commands: nothing is locked, written or created."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from psycopg import Connection

from penstock.server.store import postgres_sql as sql
from penstock.server.store.postgres_opening import teach
from penstock.server.store.postgres_place import PostgresPlace
from penstock.server.store.postgres_tables import ReadTables
from penstock.server.store.rows import TABLES, MetaRow
from penstock.server.store.sqlite_schema import FORMAT
from penstock.server.store.tables import finish
from penstock.server.store.transacting import Transaction
from penstock.wire.errors import PenstockError, StoreUnavailable

T = TypeVar("T")

AWAY_S = 60.0
"""For how long a database that could not be reached is not tried again: readers need not wait for
it at every lane."""


class PostgresLook:
    """Reads a store in transactions of its own; a standby does as well.

    Args:
        place: Where it is.
    """

    def __init__(self, place: PostgresPlace) -> None:
        self._place = place
        self._away: PenstockError | None = None
        self._until = 0.0

    def look(self, transaction: Transaction[T], *, any_format: bool) -> T | None:
        """Return what a transaction returns; None = there is no store, or of another format.

        Raises:
            StoreUnavailable: It cannot be read.
        """
        if self._away is not None and time.monotonic() < self._until:
            raise self._away
        try:
            with psycopg.connect(autocommit=True, **self._place.parameters) as connection:
                return self._read(connection, transaction, any_format)
        except psycopg.Error as error:
            named = self._place.named(error)
            if named is None:
                raise
            if isinstance(named, StoreUnavailable):
                self._away, self._until = named, time.monotonic() + AWAY_S
            raise named from error

    def _read(
        self, connection: Connection[Any], transaction: Transaction[T], any_format: bool
    ) -> T | None:
        teach(connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        table = f"{sql.quoted(self._place.schema)}.{TABLES[MetaRow].name}"
        (there,) = connection.execute("SELECT to_regclass(%s)::text", (table,)).fetchall()[0]
        if there is None:
            return None
        meta = dict(connection.execute(f"SELECT key, value FROM {table}").fetchall())
        if "since" not in meta or (int(meta["since"]) > FORMAT and not any_format):
            return None

        async def answers(statement: sql.Statement) -> list[tuple[Any, ...]]:
            return connection.execute(*statement, binary=True).fetchall()

        return finish(transaction(ReadTables(answers, self._place.schema)))
