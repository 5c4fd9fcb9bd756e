"""A store is copied to another place, with its identity: all of it, or nothing.

So a run's states load there: they name the store by its UUID.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.server.store import SqliteStore, Store, open_store
from penstock.server.store.database import made_file
from penstock.server.store.lock import FileLock
from penstock.server.store.rows import DELETED, TABLES, Add, BodyRow, GroupRow, MetaRow, Row
from penstock.server.store.sqlite_schema import FORMAT, create
from penstock.server.store.sqlite_tables import SqliteTables
from penstock.server.store.tables import Tables, finish
from penstock.wire.errors import InvalidRequest

PAGE = 500
"""Rows with the bytes of snapshots that are in memory at once."""

_Page = Callable[[type[Row], int | None], Awaitable[Sequence[Row]]]
"""Returns all rows of a class; of `BodyRow`, the next ones after a number."""


async def copy(source: str, target: str, base: Path) -> dict[str, int]:
    """Copy a store; return how many rows each table has.

    Args:
        source: Its URL; it stays as it is. A SQLite file that a node has open is refused; nodes of
            a PostgreSQL store must be stopped by the caller, as what they write from now on is not
            in the copy.
        target: Where there is no store yet.
        base: The folder that relative paths start from.

    Raises:
        InvalidRequest: The target is not empty, or there is no source.
        InvalidJob, StoreLocked, StoreCorrupt, StoreUnavailable: As of opening either.
    """
    begin, end = open_store(source, base), open_store(target, base)
    _check(begin, end)
    async with _reading(begin) as page:
        if isinstance(end, SqliteStore):
            return await _into_file(end.path, page)
        return await _into_postgres(end, page)


def _check(begin: Store, end: Store) -> None:
    if isinstance(begin, SqliteStore) and not begin.path.exists():
        raise InvalidRequest(
            f"there is no store {begin.where} to copy: name one that is there", field="FROM"
        )
    if isinstance(end, SqliteStore) and end.path.exists():
        raise _occupied(end)


def _occupied(end: Store) -> InvalidRequest:
    return InvalidRequest(
        f"{end.where} is not empty: a copy would mix two stores; name a place without one, or "
        "remove that one first",
        field="TO",
    )


@asynccontextmanager
async def _reading(store: Store) -> AsyncIterator[_Page]:
    """Give what reads a store at one moment."""
    if isinstance(store, SqliteStore):
        await store.open()  # with its lock: nobody writes meanwhile

        async def page(kind: type[Row], after: int | None) -> Sequence[Row]:
            return await store.transact(lambda tables: _read(tables, kind, after))

        try:
            yield page
        finally:
            await store.close()
        return
    from penstock.server.store.postgres import PostgresStore
    from penstock.server.store.postgres_copy import reading

    assert isinstance(store, PostgresStore)
    async with reading(store.place) as tables:
        yield lambda kind, after: _read(tables, kind, after)


async def _read(tables: Tables, kind: type[Any], after: int | None) -> Sequence[Row]:
    if kind is BodyRow:
        return await tables.all(kind, after=after or 0, limit=PAGE)
    return await tables.all(kind)


async def _rows(page: _Page, counts: dict[str, int]) -> AsyncIterator[Sequence[Row]]:
    """Yield all rows, some at a time, but for what a store says about itself."""
    for kind, (name, _) in TABLES.items():
        if kind is MetaRow:
            continue
        after = None
        counts[name] = 0
        while rows := await page(kind, after):
            counts[name] += len(rows)
            yield rows
            if kind is not BodyRow or len(rows) < PAGE:
                break
            after = rows[-1][0]


async def _identity(page: _Page) -> dict[str, str]:
    found = {row[0]: row[1] for row in await page(MetaRow, None)}
    return {"uuid": found["uuid"], DELETED: found[DELETED], "format": str(FORMAT)}


async def _into_file(path: Path, page: _Page) -> dict[str, int]:
    counts: dict[str, int] = {}
    meta = await _identity(page)
    lock = FileLock(path)
    lock.acquire()
    try:
        with made_file(path) as connection:
            create(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM meta")
            tables = SqliteTables(connection)
            finish(tables.write([Add(MetaRow(key, value)) for key, value in meta.items()]))
            async for rows in _rows(page, counts):
                finish(tables.write([Add(row) for row in rows]))
            connection.execute("COMMIT")
    finally:
        lock.release()
    return counts


async def _into_postgres(end: Store, page: _Page) -> dict[str, int]:
    from penstock.server.store import postgres_copy as target
    from penstock.server.store.postgres import PostgresStore
    from penstock.server.store.postgres_sql import SINCE

    assert isinstance(end, PostgresStore)
    counts: dict[str, int] = {}
    meta = {**await _identity(page), "since": str(SINCE)}
    highest = 0
    async with target.writing(end.place) as write:
        if not await write.begin([MetaRow(key, value) for key, value in meta.items()]):
            raise _occupied(end)
        async for rows in _rows(page, counts):
            await write.add(rows)
            if isinstance(rows[0], BodyRow):
                highest = max(highest, *(row[0] for row in rows))
            elif isinstance(rows[0], GroupRow):
                highest = max(highest, *(row[2] for row in rows))
        await write.number_from(highest)
    return counts
