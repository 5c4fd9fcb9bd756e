"""The store in a SQLite file: the embedded default for one node, written in group commits."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from typing_extensions import override

from penstock.server.store.contract import Store
from penstock.server.store.database import SqliteFile
from penstock.server.store.sqlite_schema import touch
from penstock.server.store.sqlite_tables import SqliteTables
from penstock.server.store.tables import finish
from penstock.server.store.transacting import Transaction
from penstock.wire.errors import PenstockError, StoreUnavailable

T = TypeVar("T")


class _Task(NamedTuple):
    operation: Callable[[sqlite3.Connection], Any]
    future: Future[Any]


class SqliteStore(Store):
    """One file, one writer: WAL, synchronous=FULL, and a lock file that other processes see.

    Whatever was acknowledged is on disk. One thread has the file: operations that wait together
    share one transaction, each in a savepoint, and are answered after its commit: 64 ranks that
    commit at once cost one fsync.

    Args:
        path: The file; it is created if missing, and its folder is not.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._file = SqliteFile(Path(path))
        self._on_error: Callable[[PenstockError], None] = lambda error: None
        self._tasks: deque[_Task] = deque()
        self._thread: ThreadPoolExecutor | None = None

    @property
    def path(self) -> Path:
        """Return the file, resolved."""
        return self._file.path

    @property
    @override
    def where(self) -> str:
        return str(self.path)

    @property
    @override
    def created(self) -> str:
        return str(self.path) if self._file.created else ""

    @property
    def uuid(self) -> str:
        """Return the identity of this store; empty before `open`."""
        return self._file.uuid

    @override
    def watch(self, on_error: Callable[[PenstockError], None]) -> None:
        self._on_error = on_error

    @override
    async def probe(self) -> None:
        await self.run(touch, reports=False)

    @override
    async def open(self) -> None:
        if self._thread is not None:
            return
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-store")
        try:
            await asyncio.wrap_future(self._thread.submit(self._file.open))
        except BaseException:
            # Also when cancelled: `open` may still run, and close comes after it in the thread.
            await self.close()
            raise

    @override
    async def close(self) -> None:
        await self._close(discards=False)

    @override
    async def discard(self) -> None:
        await self._close(discards=True)

    async def _close(self, *, discards: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        done = asyncio.wrap_future(thread.submit(self._file.close, discards))
        thread.shutdown(wait=False)
        await asyncio.shield(done)

    @override
    async def transact(self, transaction: Transaction[T]) -> T:
        return await self.run(lambda connection: finish(transaction(SqliteTables(connection))))

    async def run(self, operation: Callable[[sqlite3.Connection], T], *, reports: bool = True) -> T:
        """Return what `operation` gives for the connection, once its transaction is durable.

        A caller that is cancelled stops waiting; the operation happens whole or not at all.

        Args:
            operation: Called in the thread, once.
            reports: Its errors are reported as `watch` says.

        Raises:
            PenstockError: What the operation raised; it had no effect.
            StoreUnavailable: The disk is full, the file is read-only, busy for too long, or closed.
            StoreCorrupt: SQLite met damage.
        """
        if self._thread is None:
            raise StoreUnavailable(
                f"the store {self.path} is not open: the server is starting or stopping",
                path=str(self.path),
            )
        task = _Task(operation, Future())
        self._tasks.append(task)
        self._thread.submit(self._drain)
        try:
            return cast(T, await asyncio.wrap_future(task.future))
        except PenstockError as error:
            if reports:
                self._on_error(error)
            raise

    # --- in the thread ---

    def _drain(self) -> None:
        """Run everything that waits, in one transaction."""
        tasks: list[_Task] = []
        while self._tasks:
            task = self._tasks.popleft()
            if task.future.set_running_or_notify_cancel():
                tasks.append(task)
        if not tasks:
            return  # an earlier drain took this one along, or it was cancelled
        connection = self._file.connection
        outcomes: list[tuple[Any, BaseException | None]] = []
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")  # the last transaction failed
            self._file.check_place()
            connection.execute("BEGIN IMMEDIATE")
            outcomes += [self._attempt(connection, task) for task in tasks]
            connection.execute("COMMIT")
            self._file.check_place()  # the answer must be in the file that is the store
        except Exception as error:
            outcomes = [(None, self._file.named(error))] * len(tasks)
            if connection.in_transaction:
                # A second failure adds nothing to the first, and no caller may wait forever.
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
        for task, (result, failure) in zip(tasks, outcomes, strict=True):
            if failure is None:
                task.future.set_result(result)
            else:
                task.future.set_exception(failure)

    def _attempt(
        self, connection: sqlite3.Connection, task: _Task
    ) -> tuple[Any, BaseException | None]:
        connection.execute("SAVEPOINT task")
        try:
            result = task.operation(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite gave up the whole transaction: no part of it may be acknowledged
            connection.execute("ROLLBACK TO task")
            connection.execute("RELEASE task")
            return None, self._file.named(error)
        connection.execute("RELEASE task")
        return result, None
