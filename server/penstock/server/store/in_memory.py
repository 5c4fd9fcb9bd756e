"""The store in memory: for runs whose cursors need not outlive the process, and for tests."""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from penstock.server.store.contract import Store
from penstock.server.store.rows import (
    DELETED,
    TABLES,
    Add,
    Change,
    CursorRow,
    Drop,
    MetaRow,
    Row,
    Value,
)
from penstock.server.store.tables import R, Tables, finish
from penstock.server.store.transacting import Transaction
from penstock.wire.errors import PenstockError, StoreUnavailable

T = TypeVar("T")

_Key = tuple[Value, ...]


class Memory:
    """The rows of a store, as long as this object exists.

    Stores over the same memory are one store: nodes of one process share it.

    Attributes:
        uuid: The store's identity.
        lock: Held for the length of a transaction.
    """

    def __init__(self) -> None:
        self.uuid = str(uuid.uuid4())
        self.lock = threading.Lock()
        self.tables: dict[type[Row], _SortedRows] = {kind: _SortedRows() for kind in TABLES}
        self.tables[MetaRow].put((DELETED,), MetaRow(DELETED, "0"))


class _SortedRows:
    """Rows by key, and their keys in order."""

    def __init__(self) -> None:
        self.rows: dict[_Key, Any] = {}
        self.keys: list[_Key] = []

    def put(self, key: _Key, row: Row) -> None:
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = row

    def remove(self, key: _Key) -> None:
        del self.rows[key]
        del self.keys[bisect_left(self.keys, key)]

    def span(
        self, prefix: _Key, *, after: Value | None = None, up_to: Value | None = None
    ) -> list[_Key]:
        """Return the keys that begin with `prefix`, in order."""
        size = len(prefix)
        first = bisect_left(self.keys, prefix)
        if after is not None:
            first = bisect_right(self.keys, (*prefix, after), key=lambda key: key[: size + 1])
        bound = prefix if up_to is None else (*prefix, up_to)
        end = bisect_right(self.keys, bound, key=lambda key: key[: len(bound)])
        return self.keys[first:end]


class MemoryTables(Tables):
    """The rows of a memory, within a transaction that can be undone. No method ever waits.

    Args:
        memory: Its lock is held.
    """

    def __init__(self, memory: Memory) -> None:
        self._tables = memory.tables
        self._undo: list[tuple[type[Row], _Key, Row | None]] = []

    @override
    def now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    @override
    async def get(self, kind: type[R], *key: Value) -> R | None:
        row: R | None = self._tables[kind].rows.get(key)
        return row

    @override
    async def some(self, kind: type[R], keys: Sequence[tuple[Value, ...]]) -> list[R | None]:
        rows = self._tables[kind].rows
        return [rows.get(key) for key in keys]

    @override
    async def numbers(self, kind: type[Row], column: str, count: int) -> Sequence[int]:
        first = await self.highest(kind, column) + 1
        return range(first, first + count)

    @override
    async def last(self, kind: type[R], *prefix: Value, at_most: int | None = None) -> R | None:
        table = self._tables[kind]
        keys = table.span(prefix, up_to=at_most)
        row: R | None = table.rows[keys[-1]] if keys else None
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
        table = self._tables[kind]
        found: list[R] = [table.rows[key] for key in table.span(prefix, after=after)]
        for column, value in (where or {}).items():
            found = [row for row in found if getattr(row, column) == value]
        return found[:limit]

    @override
    async def highest(self, kind: type[Row], column: str, *prefix: Value) -> int:
        table = self._tables[kind]
        values = (getattr(table.rows[key], column) for key in table.span(prefix))
        return max(0, max(values, default=0))

    @override
    async def counts(self, kind: type[Row], *prefix: Value) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for key in self._tables[kind].span(prefix):
            found[key[len(prefix)]] = found.get(key[len(prefix)], 0) + 1
        return found

    @override
    async def count(self, kind: type[Row], *prefix: Value) -> int:
        return len(self._tables[kind].span(prefix))

    @override
    async def count_each(self, kind: type[Row], prefixes: Sequence[tuple[Value, ...]]) -> list[int]:
        return [await self.count(kind, *prefix) for prefix in prefixes]

    @override
    async def steps(
        self, group_id: int, generation: int, rank: int
    ) -> tuple[int | None, int | None]:
        rows = await self.all(CursorRow, group_id, generation)
        own = [row.step for row in rows if row.rank == rank]
        others = [row.step for row in rows if row.rank != rank]
        return min(own, default=None), min(others, default=None)

    @override
    async def write(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Drop):
                keys = self._tables[change.kind].span(change.prefix, up_to=change.up_to)
                for key in keys:
                    self._set(change.kind, key, None)
                continue
            kind = type(change.row)
            key = change.row[: TABLES[kind].key]
            if isinstance(change, Add) and key in self._tables[kind].rows:
                raise KeyError(f"a row of {TABLES[kind].name} is there already: {key}")
            self._set(kind, key, change.row)

    def _set(self, kind: type[Row], key: _Key, row: Row | None) -> None:
        table = self._tables[kind]
        self._undo.append((kind, key, table.rows.get(key)))
        if row is None:
            table.remove(key)
        else:
            table.put(key, row)

    def take_back(self) -> None:
        """Undo all that was written."""
        for kind, key, row in reversed(self._undo):
            table = self._tables[kind]
            if row is None:
                table.remove(key)
            else:
                table.put(key, row)


class MemoryStore(Store):
    """Rows in this process, lost with it: acknowledged changes do not survive a kill.

    Transactions of all stores over one memory follow each other, from any task and any thread.

    Args:
        memory: Where the rows are; None = a new, empty one.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__()
        self.memory = memory or Memory()
        self._on_error: Callable[[PenstockError], None] = lambda error: None
        self._is_open = False

    @property
    @override
    def uuid(self) -> str:
        return self.memory.uuid

    @property
    @override
    def where(self) -> str:
        return "memory"

    @property
    @override
    def shared(self) -> bool:
        return True

    @override
    def watch(self, on_error: Callable[[PenstockError], None]) -> None:
        self._on_error = on_error

    @override
    async def probe(self) -> None:
        self._check_open()

    @override
    async def open(self) -> None:
        self._is_open = True

    @override
    async def close(self) -> None:
        self._is_open = False

    @override
    async def transact(self, transaction: Transaction[T]) -> T:
        try:
            self._check_open()
            with self.memory.lock:
                tables = MemoryTables(self.memory)
                try:
                    return finish(transaction(tables))
                except BaseException:
                    tables.take_back()
                    raise
        except PenstockError as error:
            self._on_error(error)
            raise

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(
                "the store in memory is not open: the server is starting or stopping", path=""
            )
