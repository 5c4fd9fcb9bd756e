"""What a store has recorded about a log, for commands that do not open the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.server.job.job import Job
from penstock.server.store import SqliteStore, open_store
from penstock.server.store.loads import intact
from penstock.server.store.records import SnapshotRecord
from penstock.server.store.rows import LaneEndRow, LibraryRow, SnapshotRow
from penstock.server.store.sqlite_schema import FORMAT
from penstock.server.store.sqlite_tables import SqliteTables
from penstock.server.store.tables import Tables, finish
from penstock.server.store.transacting import Transaction
from penstock.server.usercode import libraries
from penstock.wire.errors import StoreCorrupt, StoreUnavailable

T = TypeVar("T")

MAX_TRIES = 8
"""Snapshots looked at for one that is whole."""


class Recorded:
    """Reads a store, even while a node has it open: nothing is locked, written or created.

    Args:
        url: The store's, as the job file has it.
        base: The folder that a relative path starts from.

    Attributes:
        where: The store, for people; "" = there is none.
        problem: Why the last try to read it failed; "" = it did not fail.

    Raises:
        InvalidJob: The URL names no store.
    """

    def __init__(self, url: str, base: Path) -> None:
        store = open_store(url, base)
        self._look: _LookInto
        if isinstance(store, SqliteStore):
            self.where = str(store.path) if store.path.exists() else ""
            self._look = partial(_look_into, store.path) if self.where else _see_nothing
        else:
            from penstock.server.store.postgres import PostgresStore
            from penstock.server.store.postgres_reading import PostgresLook

            assert isinstance(store, PostgresStore)
            self.where = store.where
            self._look = PostgresLook(store.place).look
        self.problem = ""

    def snapshot(self, log_id: bytes, lane: int, offset: int) -> SnapshotRecord | None:
        """Return the nearest whole snapshot at or below an offset; None = there is none."""

        async def nearest(tables: Tables) -> SnapshotRecord | None:
            below = offset
            for _ in range(MAX_TRIES):
                row = await tables.last(SnapshotRow, log_id, lane, at_most=below)
                # Nobody has checked the rows: a node does so when it opens the store.
                if row is None or type(row.offset) is not int:
                    break
                if (data := await intact(tables, row)) is not None:
                    return SnapshotRecord(log_id, lane, row.offset, data)
                below = row.offset - 1
            return None

        return self._find(nearest)

    def why_none(self) -> str:
        """Return in words why `snapshot` found none, or none near."""
        if not self.where:
            return "there is no store to look for a snapshot in"
        return self.problem or f"the store {self.where} has no snapshot of this log near it"

    def lane_ends(self, log_id: bytes, lanes: int) -> list[int] | None:
        """Return the batches of every lane, if a node has counted them and there are some."""
        rows = self._find(lambda tables: tables.all(LaneEndRow, log_id)) or []
        found = {row.lane: row.batches for row in rows}
        is_whole = set(found) == set(range(lanes)) and any(found.values())
        return [found[lane] for lane in range(lanes)] if is_whole else None

    def libraries(self, log_id: bytes) -> dict[str, str]:
        """Return the versions of libraries that a log began with."""
        rows = self._find(lambda tables: tables.all(LibraryRow, log_id), any_format=True) or []
        return {row.name: row.version for row in rows}

    def _find(self, look: Transaction[T], *, any_format: bool = False) -> T | None:
        """Return what is found in the store; None if there is none, or of another format."""
        self.problem = ""
        try:
            found: T | None = self._look(look, any_format=any_format)
        except (StoreUnavailable, StoreCorrupt) as error:
            self.problem = error.message
            return None
        return found


class _LookInto(Protocol):
    """Returns what a transaction finds, in a store that is left as it is."""

    def __call__(self, transaction: Transaction[Any], *, any_format: bool) -> Any:
        """Return it; None = there is no store, or of another format."""


def _see_nothing(transaction: Transaction[Any], *, any_format: bool) -> None:
    """Find nothing: there is no store."""


def _look_into(path: Path, transaction: Transaction[T], *, any_format: bool) -> T | None:
    """Look into a SQLite file.

    Raises:
        StoreUnavailable: It cannot be read.
    """
    # Without a journal no process has it open, and SQLite would create files to read it.
    journal = path.with_name(path.name + "-wal")
    mode = "mode=ro" if journal.exists() else "mode=ro&immutable=1"
    try:
        uri = f"{path.as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found != FORMAT and not any_format:
                return None
            return finish(transaction(SqliteTables(connection)))
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"the store {path} cannot be read ({error})", path=str(path)
        ) from error


def version_warning(url: str, base: Path, job: Job) -> str:
    """Return the warning for a job that is computed here with other library versions; "" = none.

    Nothing is locked, written or created, so a running server keeps its store to itself.

    Args:
        url: The store's, as the job file has it.
        base: The folder that a relative path starts from.
        job: The job, with what it needs imported: after its first batch.

    Raises:
        InvalidJob: The URL names no store.
    """
    recorded = Recorded(url, base)
    versions = recorded.libraries(job.log_id)
    if recorded.problem:
        return (
            f"the versions of libraries that job {job.name!r} began with are not compared: "
            f"{recorded.problem}"
        )
    found = libraries.differences(libraries.in_use(), versions)
    return libraries.sentence(job.name, found) if found else ""
