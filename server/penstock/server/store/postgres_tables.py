"""Rows in PostgreSQL, as the operations of one transaction see them.

A statement over the network costs a round trip, so rows that were read are kept for the length of a
transaction (`KnownRows`), what is written stays here until the end, and operations that share a
transaction find what those before them have read and written.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override

from penstock.server.store import postgres_sql as sql
from penstock.server.store.postgres_sql import RowQuery, key_of, kind_of
from penstock.server.store.rows import TABLES, Change, CursorRow, Drop, Row, Value
from penstock.server.store.tables import R, Tables

MISSING = object()
"""In place of an answer: it is not known."""

WIDE = 128
"""Where a generation has more ranks, a single commit asks for the least of their rows instead of
all: 64 rows cost 0.1 ms, and the commits that come together need them all."""


class RunsAlone(BaseException):
    """An operation reads what it has just written: it needs a transaction of its own."""


class WriteMeant(BaseException):
    """An operation that reads as a rule has something to write."""


class KnownRows:
    """What is known of the rows of a transaction: read or written."""

    def __init__(self) -> None:
        self._rows: dict[type[Row], dict[tuple[Value, ...], Any]] = {}
        self._found: dict[type[Row], dict[RowQuery, Any]] = {}

    def look(self, query: RowQuery) -> Any:
        """Return the answer to a query, or `MISSING`."""
        if query.how == "get":
            return self._rows.get(query.kind, {}).get(query.key, MISSING)
        found = self._found.get(query.kind, {}).get(query, MISSING)
        return list(found) if query.plain and found is not MISSING else found

    def cursors(self, group_id: int, generation: int) -> Sequence[CursorRow] | None:
        """Return all rows of a generation; None = they are not known."""
        query = RowQuery("all", CursorRow, (group_id, generation))
        rows: Sequence[CursorRow] | None = self._found.get(CursorRow, {}).get(query)
        return rows

    def generations(self) -> list[tuple[int, int, int]]:
        """Return the groups and generations of which all rows are known, and how many those are."""
        found = self._found.get(CursorRow, {})
        return [(*q.key, len(found[q])) for q in found if q.plain and len(q.key) == 2]

    def learn(self, query: RowQuery, answer: Any) -> None:
        """Take the answer to a query."""
        if query.how == "get":
            self._rows.setdefault(query.kind, {})[query.key] = answer
        elif query.how not in sql.OF_MANY:
            self._found.setdefault(query.kind, {})[query] = answer

    def apply(self, change: Change) -> None:
        """Take what is written: queries that it changes are answered anew, or forgotten."""
        kind, key = kind_of(change), key_of(change)
        rows = self._rows.setdefault(kind, {})
        size = TABLES[kind].key
        row = None if isinstance(change, Drop) else change.row
        if row is not None or len(key) == size:
            rows[key] = row
        else:
            assert isinstance(change, Drop)
            for known in [known for known in rows if _drops(change, known)]:
                rows[known] = None
        found = self._found.get(kind, {})
        for query in [query for query in found if touches(query, change)]:
            if not query.plain:
                del found[query]
            elif row is not None or len(key) == size:
                _place(found[query], key, row)
            else:
                assert isinstance(change, Drop)
                found[query] = [row for row in found[query] if not _drops(change, row[:size])]


def touches(query: RowQuery, change: Change) -> bool:
    """Tell whether a change can make a difference to the answer to a query."""
    if query.kind is not kind_of(change):
        return False
    key = key_of(change)
    size = min(len(key), len(query.key))
    return query.how in sql.OF_MANY or key[:size] == query.key[:size]


def _drops(drop: Drop, key: tuple[Value, ...]) -> bool:
    size = len(drop.prefix)
    if key[:size] != drop.prefix:
        return False
    if drop.up_to is None:
        return True
    following = key[size]
    assert isinstance(following, int)
    return following <= drop.up_to


def _place(rows: list[Any], key: tuple[Value, ...], row: Row | None) -> None:
    """Put a row where its key belongs; None = remove what is there."""
    size = len(key)
    at = bisect_left(rows, key, key=lambda known: known[:size])
    last = at + 1 if at < len(rows) and rows[at][:size] == key else at
    rows[at:last] = [] if row is None else [row]


class RowSource(Protocol):
    """A transaction that is open: what operations reach the database by.

    Attributes:
        known: What it has read and written.
        pending: What is to be written, of operations that have ended well.
        few: So few operations share it that rows are better counted by the database.
    """

    known: KnownRows
    pending: list[Change]
    few: bool

    async def ask(self, query: RowQuery) -> Any:
        """Return the answer of the database, with all that is pending written before."""

    async def draw(self, count: int) -> list[int]:
        """Return numbers that nobody else is given."""


class PostgresTables(Tables):
    """The rows, for one operation of a transaction.

    Args:
        asked: The transaction.
        alone: The operation has it for itself, and may read what it has written.
        reads: It may not write.
        is_wide: Tells whether a generation is known to have many ranks.

    Attributes:
        pending: What the operation writes, unless it is alone: then that is pending at once.
        used: What it has asked for.
    """

    def __init__(
        self,
        asked: RowSource,
        *,
        alone: bool = False,
        reads: bool = False,
        is_wide: Callable[[int, int], bool] = lambda group_id, generation: False,
    ) -> None:
        self.pending: list[Change] = []
        self.used: list[RowQuery] = []
        self._asked, self._alone, self._reads, self._is_wide = asked, alone, reads, is_wide

    @override
    def now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    async def _find(self, query: RowQuery) -> Any:
        self.used.append(query)
        if any(touches(query, change) for change in self.pending):
            raise RunsAlone
        found = self._asked.known.look(query)
        return await self._asked.ask(query) if found is MISSING else found

    @override
    async def get(self, kind: type[R], *key: Value) -> R | None:
        row: R | None = await self._find(RowQuery("get", kind, key))
        return row

    @override
    async def some(self, kind: type[R], keys: Sequence[tuple[Value, ...]]) -> list[R | None]:
        rows: list[R | None] = []
        if keys:
            rows = await self._find(RowQuery("some", kind, tuple(keys)))
        return rows

    @override
    async def numbers(self, kind: type[Row], column: str, count: int) -> Sequence[int]:
        return await self._asked.draw(count)

    @override
    async def last(self, kind: type[R], *prefix: Value, at_most: int | None = None) -> R | None:
        row: R | None = await self._find(RowQuery("last", kind, prefix, at_most))
        return row

    @override
    async def all(
        self,
        kind: type[R],
        *prefix: Value,
        after: Value | None = None,
        limit: int | None = None,
        where: Mapping[str, Value] | None = None,
    ) -> list[R]:
        query = RowQuery("all", kind, prefix, after, limit, tuple((where or {}).items()))
        rows: list[R] = await self._find(query)
        return rows

    @override
    async def highest(self, kind: type[Row], column: str, *prefix: Value) -> int:
        found: int = await self._find(RowQuery("highest", kind, prefix, column=column))
        return found

    @override
    async def counts(self, kind: type[Row], *prefix: Value) -> dict[Any, int]:
        found: dict[Any, int] = await self._find(RowQuery("counts", kind, prefix))
        return found

    @override
    async def count(self, kind: type[Row], *prefix: Value) -> int:
        found: int = await self._find(RowQuery("count", kind, prefix))
        return found

    @override
    async def count_each(self, kind: type[Row], prefixes: Sequence[tuple[Value, ...]]) -> list[int]:
        found: list[int] = []
        if prefixes:
            found = await self._find(RowQuery("count_each", kind, tuple(prefixes)))
        return found

    @override
    async def steps(
        self, group_id: int, generation: int, rank: int
    ) -> tuple[int | None, int | None]:
        rows = self._asked.known.cursors(group_id, generation)
        query = RowQuery("all", CursorRow, (group_id, generation))
        if rows is None and self._asked.few and self._is_wide(group_id, generation):
            found: tuple[int | None, int | None] = await self._find(
                RowQuery("steps", CursorRow, (group_id, generation), rank=rank)
            )
            return found
        if rows is None or self.pending:
            rows = await self._find(query)
        else:
            self.used.append(query)
        own, others = None, None
        for row in rows:
            if row.rank == rank:
                own = row.step
            elif others is None or row.step < others:
                others = row.step
        return own, others

    @override
    async def write(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        if self._reads:
            raise WriteMeant
        if not self._alone:
            self.pending += changes
            return
        for change in changes:
            self._asked.known.apply(change)
        self._asked.pending += changes


class ReadTables(PostgresTables):
    """The rows of a transaction that only reads, by a function that answers statements.

    Args:
        answers: Returns the rows of a statement.
        schema: Where the tables are.
    """

    def __init__(
        self, answers: Callable[[sql.Statement], Awaitable[list[tuple[Any, ...]]]], schema: str
    ) -> None:
        super().__init__(_Unshared(answers, schema), reads=True)


class _Unshared:
    """A transaction that keeps nothing: each question is a statement."""

    def __init__(
        self, answers: Callable[[sql.Statement], Awaitable[list[tuple[Any, ...]]]], schema: str
    ) -> None:
        self._answers, self._schema = answers, schema
        self.known = KnownRows()
        self.pending: list[Change] = []
        self.few = True

    async def ask(self, query: RowQuery) -> Any:
        return sql.answer(query, await self._answers(sql.asking(self._schema, query)))

    async def draw(self, count: int) -> list[int]:
        raise WriteMeant
