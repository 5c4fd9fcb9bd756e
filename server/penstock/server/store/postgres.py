"""The store in PostgreSQL: for several nodes, written in group commits.

Transactions about one group, and about one log, follow each other on all nodes: by advisory locks
of the session, taken in one order before the transaction begins, so that its snapshot (REPEATABLE
READ) is younger than all that those before it have written. Nothing waits for the whole store.
What is undone for another's sake, or lost with a connection, is run again as it is for at most 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import psycopg
import structlog
from psycopg import AsyncConnection, AsyncPipeline, errors
from typing_extensions import override

from penstock.server.store import postgres_opening as opening
from penstock.server.store import postgres_sql as sql
from penstock.server.store.about import About
from penstock.server.store.contract import Store
from penstock.server.store.postgres_locks import LOCK, UNLOCK, end_unheard
from penstock.server.store.postgres_place import PostgresPlace, lost, of_a_moment
from penstock.server.store.postgres_sql import RowQuery
from penstock.server.store.postgres_tables import (
    WIDE,
    KnownRows,
    PostgresTables,
    RunsAlone,
    WriteMeant,
    touches,
)
from penstock.server.store.rows import TABLES, Change, CursorRow, MetaRow
from penstock.server.store.sqlite_schema import FORMAT
from penstock.server.store.transacting import Transaction
from penstock.wire.errors import PenstockError, StoreUnavailable

T = TypeVar("T")

logger = structlog.get_logger("penstock.store")

AGAIN_S = 5.0
"""For how long a call is tried again before its error is told, as SQLite waits for a lock."""

TRIP_S = 10.0
"""How long a server may take to answer: longer than it waits for a lock."""

ROWS_PER_S = 1000
"""What it is given more time for: so many written rows a second."""

TOGETHER = 1024
"""The most calls that share a transaction."""

FEW = 16

REMEMBERED = 4096
"""Of so many groups and logs it is remembered what their operations ask for."""


class PostgresStore(Store):
    """A schema of a database, which any number of nodes may share.

    Whatever was acknowledged is durable in the database. A node has up to three connections, each
    with its queue: for what only reads, for groups and for logs, so that commits never wait for
    snapshots. Calls that wait together share a transaction: each is undone alone, and reads what
    those before it have written.

    Args:
        url: `postgresql://...`, as libpq reads it; passwords may come from its file or environment.

    Raises:
        InvalidJob: libpq cannot read it.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.place = PostgresPlace(url)
        self.answered: dict[str, int] = {}  # by writer: the last of its numbers that was answered
        self._uuid = ""
        self._created = False
        self._on_error: Callable[[PenstockError], None] = lambda error: None
        self._lines: dict[str, _Queue] = {}

    @property
    @override
    def uuid(self) -> str:
        return self._uuid

    @property
    @override
    def where(self) -> str:
        return self.place.where

    @property
    @override
    def created(self) -> str:
        return self.where if self._created else ""

    @property
    @override
    def shared(self) -> bool:
        return True

    @override
    def watch(self, on_error: Callable[[PenstockError], None]) -> None:
        self._on_error = on_error

    @override
    async def open(self) -> None:
        if self._lines:
            return
        try:
            async with asyncio.timeout(TRIP_S):
                connection = await opening.connect(self.place)
                try:
                    self._uuid, self._created = await opening.open_content(connection, self.place)
                finally:
                    await connection.close()
        except (psycopg.Error, TimeoutError) as error:
            named = self.place.named(error)
            if named is None:
                raise
            raise named from error
        self.answered = {}
        self._lines = {name: _Queue(self, name) for name in ("reads", "groups", "logs")}

    @override
    async def close(self) -> None:
        lines, self._lines = self._lines, {}
        await asyncio.gather(*(line.close() for line in lines.values()))

    @override
    async def probe(self) -> None:
        await self._run("groups", _Call(About("probe"), _nothing, forced=True), reports=False)

    @override
    async def transact(self, transaction: Transaction[T]) -> T:
        return await self.operate(About(""), transaction)

    @override
    async def operate(self, about: About, transaction: Transaction[T]) -> T:
        if about.reads:
            try:
                return cast(T, await self._run("reads", _Call(about, transaction)))
            except WriteMeant:
                about = about._replace(reads=False)
        line = "groups" if any(key[0] == "group" for key in about.keys) else "logs"
        return cast(T, await self._run(line, _Call(about, transaction)))

    async def _run(self, line: str, task: _Call, *, reports: bool = True) -> Any:
        try:
            if line not in self._lines:
                raise self.place.unavailable("it is not open", "the server is starting or stopping")
            return await self._lines[line].run(task)
        except PenstockError as error:
            if reports:
                self._on_error(error)
            raise


async def _nothing(tables: Any) -> None:
    """Do nothing, in a transaction."""


class _Call:
    """A call that waits."""

    def __init__(self, about: About, transaction: Transaction[Any], forced: bool = False) -> None:
        self.about, self.transaction, self.forced = about, transaction, forced
        self.alone = self.steady = False  # a transaction of its own; one that stays open to read in
        self.deadline = time.monotonic() + AGAIN_S
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Queue:
    """A connection, and the calls that wait for it."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        self._store, self._place, self._reads = store, store.place, name == "reads"
        self._writer = f"{uuid.uuid4()}/{name}"
        self._connection: _Pipelined | None = None
        self._tasks: deque[_Call] = deque()
        self._working: asyncio.Task[None] | None = None
        self._name, self._lonely = name, set[str]()
        self._written = 0
        self._asked: dict[tuple[Any, ...], list[RowQuery]] = {}
        self._ranks: dict[tuple[int, int], int] = {}

    async def run(self, task: _Call) -> Any:
        """Return what a call's transaction returns, once it is durable.

        A caller that is cancelled stops waiting; the call happens whole or not at all.
        """
        self._tasks.append(task)
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work())
        return await task.future

    async def close(self) -> None:
        """Finish what waits, and close the connection."""
        if self._working is not None:
            await self._working
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(TRIP_S):
                    if self._written:
                        table = f"{sql.quoted(self._place.schema)}.{sql.WRITERS}"
                        await connection.execute(
                            f"DELETE FROM {table} WHERE id = %s", (self._writer,)
                        )
                        await connection.sync()
            await connection.close()

    # --- calls that wait together ---

    async def _work(self) -> None:
        while self._tasks:
            tasks: list[_Call] = []
            while self._tasks and len(tasks) < TOGETHER:
                task = self._tasks.popleft()
                if not task.future.cancelled():
                    task.alone = task.about.name in self._lonely
                    tasks.append(task)
            if tasks:
                await self._serve(tasks)

    async def _serve(self, tasks: list[_Call]) -> None:
        """Have calls answered, each with what it returns or its error."""
        pause_s = 0.01
        while tasks:
            try:
                tasks = await self._attempt(tasks)
                continue
            except Exception as error:
                unconnected = self._connection is None
                await self._settle(error)
                if isinstance(error, errors.LockNotAvailable):
                    await self._end_unheard(tasks)
                named = error if isinstance(error, PenstockError) else self._place.named(error)
                again = of_a_moment(error) or lost(error) or isinstance(error, StoreUnavailable)
                if named is None and len(tasks) > 1 and not unconnected:
                    for task in tasks:  # only the one that is at fault may fail
                        await self._serve([task])
                    return
                now = time.monotonic()
                for task in tasks:
                    if not again or task.deadline <= now:
                        task.fail(named or error)
                tasks = [task for task in tasks if not task.future.done()]
            await asyncio.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2 * pause_s, 0.5)

    async def _attempt(self, tasks: list[_Call]) -> list[_Call]:
        """Run a transaction, and answer its calls; return those that need one of their own."""
        if len(tasks) > 1 and any(task.alone for task in tasks):
            for task in tasks:
                await self._serve([task])
            return []
        batch = _SharedTransaction(await self._connected(), self._place, few=len(tasks) < FEW)
        alone = tasks[0].alone
        asked = [] if alone else [q for task in tasks for q in self._asked.get(_name(task), ())]
        if self._reads:
            await batch.begin_reading(asked, any(task.steady for task in tasks))
        else:
            await batch.begin(self._locks(tasks), asked)
        done: list[tuple[_Call, Any]] = []
        failed: list[tuple[_Call, BaseException]] = []
        later: list[_Call] = []
        for task in tasks:
            tables = PostgresTables(batch, alone=alone, reads=self._reads, is_wide=self._is_wide)
            try:
                result = await task.transaction(tables)
            except RunsAlone:
                task.alone = True
                if self._name == "logs":  # a begin that makes a group is the only one that does so
                    self._lonely.add(task.about.name)
                later.append(task)
                continue
            except Unsteady:
                task.steady = True
                later.append(task)
            except (psycopg.Error, TimeoutError):
                raise
            except (Exception, WriteMeant) as error:
                failed.append((task, error))
                batch.is_undone = alone
            else:
                done.append((task, result))
                batch.take(tables.pending)
            if not task.alone:
                self._remember(task, tables.used)
        await self._end(batch, forced=any(task.forced for task in tasks))
        self._count_ranks(batch.known, tasks)
        for task, result in done:
            if not task.future.done():
                task.future.set_result(result)
        for task, failure in failed:
            task.fail(failure)
        return later

    def _locks(self, tasks: Iterable[_Call]) -> list[int]:
        """Return the numbers of the locks that calls need, in the order of all nodes."""
        keys = {key for task in tasks for key in task.about.keys}
        return sorted(opening.lock_number(self._store.uuid, key) for key in keys)

    async def _end_unheard(self, tasks: Iterable[_Call]) -> None:
        """End the sessions of nodes that hold what calls wait for, and are not heard of."""
        connection, numbers = self._connection, self._locks(tasks)
        if connection is None or not numbers:
            return
        try:
            async with asyncio.timeout(TRIP_S):
                ended = await connection.execute(*end_unheard(numbers))
                await connection.sync()
                if ended.rowcount:
                    logger.warning(
                        "ended the session of a node that held others up and was not heard of",
                        store=self._place.where,
                        sessions=ended.rowcount,
                    )
        except (psycopg.Error, TimeoutError) as error:  # say, it has another role
            await self._settle(error)

    async def _end(self, batch: _SharedTransaction, *, forced: bool) -> None:
        if self._reads or batch.is_undone or not (batch.writes or batch.pending or forced):
            await batch.end(())
            return
        number = self._written + 1
        table = f"{sql.quoted(self._place.schema)}.{sql.WRITERS}"
        text = (
            f"INSERT INTO {table} (id, answered) VALUES (%s, %s) "
            "ON CONFLICT (id) DO UPDATE SET answered = excluded.answered"
        )
        self._written = number  # never used again, whatever comes of it
        await batch.end([(text, (self._writer, number))])
        self._store.answered[self._writer] = number

    # --- what is remembered ---

    def _remember(self, task: _Call, used: Sequence[RowQuery]) -> None:
        """Note what an operation asks for: the next one of its kind is given it at once."""
        self._asked.pop(_name(task), None)
        self._asked[_name(task)] = [
            q for q in dict.fromkeys(used) if q.how not in (*sql.OF_MANY, "steps")
        ]
        if len(self._asked) > REMEMBERED:
            del self._asked[next(iter(self._asked))]

    def _count_ranks(self, known: KnownRows, tasks: Iterable[_Call]) -> None:
        for group_id, generation, count in known.generations():
            self._ranks.pop((group_id, generation), None)
            self._ranks[group_id, generation] = count
            if len(self._ranks) > REMEMBERED:
                del self._ranks[next(iter(self._ranks))]
            if count > WIDE:
                for task in tasks:
                    asked = self._asked.get(_name(task), [])
                    self._asked[_name(task)] = [
                        q for q in asked if q.kind is not CursorRow or not q.plain
                    ]

    def _is_wide(self, group_id: int, generation: int) -> bool:
        return self._ranks.get((group_id, generation), 0) > WIDE

    # --- the connection ---

    async def _connected(self) -> _Pipelined:
        if self._connection is None or self._connection.closed:
            self._connection = None
            async with asyncio.timeout(TRIP_S):
                connection = await opening.connect(self._place)
                try:
                    await self._check(connection)
                    self._connection = await _Pipelined.begin(connection)
                except BaseException:
                    await connection.close()
                    raise
        return self._connection

    async def _check(self, connection: AsyncConnection[Any]) -> None:
        """Refuse another store, and one that has lost what it has answered.

        Raises:
            StoreUnavailable: It is so: it may be the right one again later.
            StoreCorrupt: It is of a format that this program may not write to.
        """
        schema, writers = sql.quoted(self._place.schema), list(self._store.answered)
        async with connection.pipeline():
            meta = await connection.execute(
                f"SELECT key, value FROM {schema}.{TABLES[MetaRow].name}"
            )
            answered = await connection.execute(
                f"SELECT id, answered FROM {schema}.{sql.WRITERS} WHERE id = ANY(%s)", (writers,)
            )
        found, kept = dict(await meta.fetchall()), dict(await answered.fetchall())
        if found.get("uuid") != self._store.uuid:
            raise self._place.unavailable(
                f"it is store {found.get('uuid') or 'without an identity'} now, and this server "
                f"has begun with store {self._store.uuid}",
                "have the address lead to that one again, or restart the server to use this one",
            )
        if int(found.get("since", FORMAT)) > FORMAT:
            raise self._place.corrupt(
                f"has format {found.get('format')} now, and this penstock knows format {FORMAT}",
                "run the penstock version that wrote it, or a newer one",
            )
        for writer, number in self._store.answered.items():
            if kept.get(writer, 0) < number:
                raise self._place.unavailable(
                    f"it is behind what it has answered: this server's commit {number} was "
                    f"answered, and commit {kept.get(writer, 0)} is its last there (a standby that "
                    "lagged was promoted, or an older copy was put back)",
                    "go back to the server that has it, or restart this one to go on with what is "
                    "there; runs then say where they stood",
                )

    async def _settle(self, error: Exception) -> None:
        """Undo what is left of a transaction, or give the connection up."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if not connection.closed and not lost(error) and not isinstance(error, TimeoutError):
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(TRIP_S):
                    with contextlib.suppress(psycopg.Error):
                        await connection.sync()  # what was sent after the statement that failed
                    await connection.execute("ROLLBACK")
                    await connection.execute(UNLOCK)
                    await connection.sync()
                self._connection = connection
                return
        # Its locks go with it, after the transaction has been undone.
        await connection.close()


def _name(task: _Call) -> tuple[Any, ...]:
    return task.about.name, task.about.keys


class _Pipelined:
    """A connection that stays in pipeline mode, where statements go out together.

    psycopg leaves the mode with a Flush after the last Sync, and a server that has read one does
    not count any more for how long a transaction is idle: a node that was stopped in the middle of
    one would hold its locks for as long as it is stopped.

    Args:
        connection: The connection.
        mode: Has it in pipeline mode, until it is closed.
        pipeline: The mode.
    """

    def __init__(
        self,
        connection: AsyncConnection[Any],
        mode: contextlib.AsyncExitStack,
        pipeline: AsyncPipeline,
    ) -> None:
        self._connection, self._mode = connection, mode
        self.execute, self.sync = connection.execute, pipeline.sync

    @classmethod
    async def begin(cls, connection: AsyncConnection[Any]) -> _Pipelined:
        """Put a connection in pipeline mode."""
        mode = contextlib.AsyncExitStack()
        return cls(connection, mode, await mode.enter_async_context(connection.pipeline()))

    @property
    def closed(self) -> bool:
        """Whether it is closed, or was found lost."""
        return self._connection.closed

    async def close(self) -> None:
        """Close it, whatever is going on."""
        with contextlib.suppress(psycopg.Error):
            await self._connection.close()
        with contextlib.suppress(psycopg.Error):
            await self._mode.aclose()


class Unsteady(BaseException):
    """An operation asks for more than it asked for the last time."""


COMMIT = "COMMIT"
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ"
BEGIN_READING = BEGIN + " READ ONLY"


class _SharedTransaction:
    """A transaction that calls share. It keeps what was read and written to its end.

    Attributes:
        known: The rows.
        pending: What is to be written.
        few: Few calls share it.
        writes: Something was written, or will be.
        is_undone: Its only call has failed.
    """

    def __init__(self, connection: _Pipelined, place: PostgresPlace, few: bool) -> None:
        self._db, self._schema = connection, place.schema
        self.known = KnownRows()
        self.pending: list[Change] = []
        self.few = few
        self.writes = self.is_undone = self._is_steady = False
        self._locked = self._is_open = self._has_ended = False

    def take(self, changes: Sequence[Change]) -> None:
        """Take what a call has written that has ended well."""
        for change in changes:
            self.known.apply(change)
        self.pending += changes

    async def begin(self, numbers: Sequence[int], queries: Sequence[RowQuery]) -> None:
        """Take locks, then begin, and learn what is likely to be asked for: two round trips."""
        self._locked = bool(numbers)
        before = [(LOCK, (sql.array(numbers),))] if numbers else []
        await self._trip(before, [(BEGIN, ())], queries)
        self._is_open = True

    async def begin_reading(self, queries: Sequence[RowQuery], steady: bool) -> None:
        """Read what is likely to be asked for.

        Args:
            queries: What that is.
            steady: The transaction stays open. Else it has ended with its only round trip, be that
                for these or for what is asked for first, and whoever asks for more is `Unsteady`:
                that would be of another moment.
        """
        self._is_steady = steady
        if queries:
            await self._read(queries)

    async def ask(self, query: RowQuery) -> Any:
        """Return the answer of the database, with all that is pending written before."""
        first: list[sql.Statement] = []
        if self._has_ended:
            raise Unsteady
        if not self._is_open:
            (found,) = await self._read([query])
            return found
        if any(touches(query, change) for change in self.pending):
            first += self._flushed()
        (found,) = await self._trip((), first, [query])
        return found

    async def _read(self, queries: Sequence[RowQuery]) -> list[Any]:
        """Begin to read, with these: one statement is a transaction by itself."""
        is_one = len(set(queries)) == 1 and not self._is_steady
        begin, end = [(BEGIN_READING, ())], [(COMMIT, ())]
        found = await self._trip(
            (), [] if is_one else begin, queries, [] if is_one or self._is_steady else end
        )
        self._is_open, self._has_ended = self._is_steady, not self._is_steady
        return found

    async def draw(self, count: int) -> list[int]:
        """Return numbers that nobody else is given."""
        statement = sql.numbering(self._schema, count)
        async with asyncio.timeout(TRIP_S):
            cursor = await self._db.execute(*statement, binary=True)
            await self._db.sync()
            return sorted(number for (number,) in await cursor.fetchall())

    async def end(self, more: Sequence[sql.Statement]) -> None:
        """Make all that is pending durable, and let the locks go: one round trip.

        Args:
            more: What is written with it.
        """
        last = [(UNLOCK, ())] if self._locked else []
        if self.is_undone:
            await self._trip((), [("ROLLBACK", ()), *last], ())
        elif self._is_open:
            count = len(self.pending)
            # A commit that fails leaves the locks, and whoever handles that lets go of them.
            written = [*self._flushed(), *more, (COMMIT, ()), *last]
            await self._trip((), written, (), rows=count)

    def _flushed(self) -> list[sql.Statement]:
        self.writes = self.writes or bool(self.pending)
        changes, self.pending = self.pending, []
        return list(sql.writing(self._schema, changes))

    async def _trip(
        self,
        before: Sequence[sql.Statement],
        then: Sequence[sql.Statement],
        queries: Sequence[RowQuery],
        last: Sequence[sql.Statement] = (),
        rows: int = 0,
    ) -> list[Any]:
        """Send statements together; return the answers of queries.

        Args:
            before: A unit of their own, before the rest: locks.
            then: Statements without an answer.
            queries: What is asked for after them.
            last: Statements after these.
            rows: How many rows they write.
        """
        unique = list(dict.fromkeys(queries))
        async with asyncio.timeout(TRIP_S + rows / ROWS_PER_S):
            for text, values in before:
                await self._db.execute(text, values)
            if before:
                await self._db.sync()
            done = [(text, await self._db.execute(text, values)) for text, values in then]
            cursors = [
                await self._db.execute(*sql.asking(self._schema, query), binary=True)
                for query in unique
            ]
            for text, values in last:
                await self._db.execute(text, values)
            await self._db.sync()
            for text, ended in done:
                if text == COMMIT and ended.statusmessage != COMMIT:
                    raise psycopg.OperationalError(f"a commit ended as {ended.statusmessage}")
            answers = [
                sql.answer(query, await cursor.fetchall())
                for query, cursor in zip(unique, cursors, strict=True)
            ]
        for query, answer in zip(unique, answers, strict=True):
            self.known.learn(query, answer)
        return answers
