"""Rows in SQLite: the statements, without any decisions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from typing_extensions import override

from penstock.server.store.rows import TABLES, Add, BodyRow, Change, CursorRow, Drop, Row, Value
from penstock.server.store.sqlite_schema import columns, seal
from penstock.server.store.tables import R, Tables


class SqliteTables(Tables):
    """The rows behind a connection that is in a transaction. No method ever waits.

    Args:
        connection: Taught by `schema.prepare`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @override
    def now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    @override
    async def get(self, kind: type[R], *key: Value) -> R | None:
        return _row(kind, self._db.execute(_texts(kind).get, key).fetchone())

    @override
    async def some(self, kind: type[R], keys: Sequence[tuple[Value, ...]]) -> list[R | None]:
        return [await self.get(kind, *key) for key in keys]

    @override
    async def numbers(self, kind: type[Row], column: str, count: int) -> Sequence[int]:
        first = await self.highest(kind, column) + 1
        return range(first, first + count)

    @override
    async def last(self, kind: type[R], *prefix: Value, at_most: int | None = None) -> R | None:
        text = _last(kind, len(prefix), at_most is not None)
        values = prefix if at_most is None else (*prefix, at_most)
        return _row(kind, self._db.execute(text, values).fetchone())

    @override
    async def all(
        self,
        kind: type[R],
        *prefix: Value,
        after: Value | None = None,
        limit: int | None = None,
        where: Mapping[str, Value] | None = None,
    ) -> list[R]:
        where = where or {}
        text = _all(kind, len(prefix), after is not None, tuple(where))
        values: list[Value] = [*prefix, *([] if after is None else [after]), *where.values()]
        rows = self._db.execute(text, (*values, -1 if limit is None else limit)).fetchall()
        return [kind(*row) for row in rows]

    @override
    async def highest(self, kind: type[Row], column: str, *prefix: Value) -> int:
        text = f"SELECT max({column}) FROM {_from(kind, len(prefix))}"
        (found,) = self._db.execute(text, prefix).fetchone()
        return max(0, found or 0)

    @override
    async def counts(self, kind: type[Row], *prefix: Value) -> dict[Any, int]:
        by = columns(kind)[len(prefix)]
        text = f"SELECT {by}, count(*) FROM {_from(kind, len(prefix))} GROUP BY {by}"
        return dict(self._db.execute(text, prefix).fetchall())

    @override
    async def count(self, kind: type[Row], *prefix: Value) -> int:
        text = f"SELECT count(*) FROM {_from(kind, len(prefix))}"
        return int(self._db.execute(text, prefix).fetchone()[0])

    @override
    async def count_each(self, kind: type[Row], prefixes: Sequence[tuple[Value, ...]]) -> list[int]:
        return [await self.count(kind, *prefix) for prefix in prefixes]

    @override
    async def steps(
        self, group_id: int, generation: int, rank: int
    ) -> tuple[int | None, int | None]:
        own, *others = self._db.execute(_STEPS, (group_id, generation, rank) * 3).fetchone()
        return own, min((step for step in others if step is not None), default=None)

    @override
    async def write(self, changes: Sequence[Change]) -> None:
        for how, same in groupby(changes, _way):
            if isinstance(how, _Drop):
                for change in same:
                    assert isinstance(change, Drop)
                    bound = () if change.up_to is None else (change.up_to,)
                    self._db.execute(how.text, (*change.prefix, *bound))
                continue
            rows = [change.row for change in same if not isinstance(change, Drop)]
            if how.sealed:
                rows = [(*row, seal(*row)) for row in rows]
            if len(rows) == 1:
                self._db.execute(how.text, rows[0])
            else:
                self._db.executemany(how.text, rows)


class _Drop(NamedTuple):
    """How rows are removed."""

    text: str


class _Write(NamedTuple):
    """How a row is written."""

    text: str
    sealed: bool


class _Texts(NamedTuple):
    """The statements of a class of rows that need no count of columns."""

    get: str
    add: _Write
    put: _Write


def _way(change: Change) -> _Drop | _Write:
    if isinstance(change, Drop):
        return _drop(change.kind, len(change.prefix), change.up_to is not None)
    texts = _texts(type(change.row))
    return texts.add if isinstance(change, Add) else texts.put


def _row(kind: type[R], row: tuple[Any, ...] | None) -> R | None:
    return None if row is None else kind(*row)


@cache
def _from(kind: type[Row], prefix: int, *conditions: str) -> str:
    """Return a table, and the condition that keys begin with so many given values."""
    given = [f"{column} = ?" for column in columns(kind)[:prefix]]
    every = " AND ".join([*given, *conditions])
    return f"{TABLES[kind].name} WHERE {every}" if every else TABLES[kind].name


@cache
def _texts(kind: type[Row]) -> _Texts:
    names = columns(kind)
    table, key = TABLES[kind]
    sealed = kind is not BodyRow
    marks = ", ".join("?" * (len(names) + sealed))
    return _Texts(
        f"SELECT {', '.join(names)} FROM {_from(kind, key)}",
        _Write(f"INSERT INTO {table} VALUES ({marks})", sealed),
        _Write(f"REPLACE INTO {table} VALUES ({marks})", sealed),
    )


@cache
def _last(kind: type[Row], prefix: int, bounded: bool) -> str:
    names = columns(kind)
    bound = [f"{names[prefix]} <= ?"] if bounded else []
    order = ", ".join(f"{name} DESC" for name in names[prefix : TABLES[kind].key])
    source = _from(kind, prefix, *bound)
    return f"SELECT {', '.join(names)} FROM {source} ORDER BY {order} LIMIT 1"


@cache
def _all(kind: type[Row], prefix: int, after: bool, where: tuple[str, ...]) -> str:
    names = columns(kind)
    bound = [f"{names[prefix]} > ?"] if after else []
    source = _from(kind, prefix, *bound, *(f"{column} = ?" for column in where))
    order = ", ".join(names[: TABLES[kind].key])
    return f"SELECT {', '.join(names)} FROM {source} ORDER BY {order} LIMIT ?"


@cache
def _drop(kind: type[Row], prefix: int, bounded: bool) -> _Drop:
    bound = [f"{columns(kind)[prefix]} <= ?"] if bounded else []
    return _Drop(f"DELETE FROM {_from(kind, prefix, *bound)}")


_STEPS = (
    f"SELECT (SELECT step FROM {_from(CursorRow, 3)}), "
    f"(SELECT min(step) FROM {_from(CursorRow, 2, 'rank < ?')}), "
    f"(SELECT min(step) FROM {_from(CursorRow, 2, 'rank > ?')})"
)
"""Two spans of keys: to compare each rank with one's own costs a fifth more."""
