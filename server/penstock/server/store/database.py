"""The file of a SQLite store: opened with care, and its errors by name."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.server.store import migrations
from penstock.server.store import sqlite_schema as schema
from penstock.server.store.lock import FileLock
from penstock.server.store.rows import DELETED
from penstock.wire.errors import PenstockError, StoreCorrupt, StoreUnavailable

_FOREIGN = "is a SQLite file, but not a penstock store"
_MAGIC = b"SQLite format 3\0"

# Errors of the machine, not of the file's content: they may be temporary.
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for a lock that another program holds, say an operator's
`sqlite3`."""


class SqliteFile:
    """The file of a store: opened with care, never written under another name, errors by name.

    Used from the thread of its store alone.

    Args:
        path: The database file. `<path>.lock` is held from `open` to `close`.

    Attributes:
        uuid: The store's identity; empty before `open`.
        created: There was no file, and `open` made one.
    """

    def __init__(self, path: Path) -> None:
        # Two names of a file must lead to the same lock.
        self.path = Path(os.path.realpath(path))
        self.uuid = ""
        self.created = False
        self._lock = FileLock(self.path)
        self._connection: sqlite3.Connection | None = None
        self._opened: dict[Path, tuple[int, int]] = {}  # device and inode of what is open

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the connection, while it is open."""
        assert self._connection is not None
        return self._connection

    def named(self, error: Exception) -> Exception:
        """Return the named error for what SQLite raised; anything else is its own name."""
        if isinstance(error, UnicodeDecodeError):
            # SQLite quotes damaged bytes in a message, and Python cannot read that.
            named: Exception = self._corrupt("is damaged (unreadable text)")
            named.__cause__ = error
            return named
        if not isinstance(error, sqlite3.Error):
            return error
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary in _PASSING:
            named = self._unavailable(str(error))
        elif primary in _DAMAGE or (
            primary is None and isinstance(error, sqlite3.OperationalError)
        ):
            # Without a code: the module itself found a text that is not UTF-8.
            named = self._corrupt(f"is damaged ({error})")
        else:
            return error
        named.__cause__ = error
        return named

    def open(self) -> None:
        """Open the file, or create it.

        Raises:
            StoreLocked, StoreCorrupt, StoreUnavailable: As `Transacting.open` says.
        """
        if not self.path.parent.is_dir():
            # A mistyped folder, or one that is not mounted, would be a fresh start of all runs.
            raise self._unavailable(
                f"there is no folder {self.path.parent}",
                remedy="make it if a new store is to lie there, or name the store that runs have",
            )
        self._lock.acquire()
        try:
            self._check_header()
            self._connection = self._connect(self.path)
            self._check_content(self._connection)
            self._opened = {path: _inode(path) for path in (self.path, self._journal)}
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _PASSING:
                raise self._unavailable(str(error)) from error
            raise self._corrupt(f"is damaged ({error})") from error
        except UnicodeDecodeError as error:
            raise self.named(error) from error
        except OSError as error:
            raise self._unavailable(str(error)) from error

    def close(self, discards: bool = False) -> None:
        """Close the file and release the lock; idempotent.

        Args:
            discards: Remove the file, if `open` created it.
        """
        is_gone = False
        try:
            if self._connection is not None and self._is_in_place():
                self._connection.close()
                if discards and self.created:  # while the lock is held
                    self.path.unlink()
                    is_gone = True
            elif self._connection is not None:
                # Closing would remove the journal that has this name now, maybe another server's.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        finally:
            self._connection = None
            self._opened = {}
            self._lock.release(removes=is_gone)

    @property
    def _journal(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    def _is_in_place(self) -> bool:
        """Tell whether the files that are open still have their names."""
        try:
            return all(_inode(path) == inode for path, inode in self._opened.items())
        except OSError:
            return False

    def check_place(self) -> None:
        """Refuse to go on in files that no longer have the store's name.

        SQLite itself would write on into a file that was moved or removed.

        Raises:
            StoreUnavailable: The file or its journal was moved, removed or replaced.
        """
        if not self._is_in_place():
            raise self._unavailable(
                f"it or its journal {self._journal.name} was moved, removed or replaced while it "
                "was open",
                remedy="put it back where it was, or restart the server to use what is there now",
            )

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            schema.prepare(connection)
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute(
                "PRAGMA synchronous = FULL"
            )  # an acknowledged commit survives power loss
            connection.execute("PRAGMA journal_size_limit = 16777216")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_header(self) -> None:
        """Create a store where there is none; refuse what cannot be one, untouched."""
        if self.path.is_dir():
            raise self._corrupt("is a folder, not a file", remedy="name a file in it")
        journal = self._journal
        if not self.path.exists():
            if journal.exists():
                # SQLite would replay the journal of the lost file into the new one.
                raise self._corrupt(
                    f"is gone, but its journal {journal.name} is still there",
                    remedy="put the file back, or remove the journal to start with an empty store",
                )
            self._create()
            return
        if (names := self.path.stat().st_nlink) > 1:
            # Another name has another lock and another journal: what was committed under one is
            # missing under the other. https://www.sqlite.org/howtocorrupt.html, section 2.5
            raise self._unavailable(
                f"the file has {names} names (hard links), each with a lock and a journal of its "
                "own",
                remedy="remove all of them but one, the one that it was used by last",
            )
        with self.path.open("rb") as file:
            header = file.read(100)
        if header[:16] != _MAGIC or len(header) < 100:
            what = "is empty" if not header else "is not a SQLite file"
            raise self._corrupt(what)
        if header[68:72] != schema.APPLICATION_ID.to_bytes(4, "big"):
            # Checked here: opening another program's file would change its journal mode.
            raise self._corrupt(_FOREIGN)
        if header[18:20] not in (b"\1\1", b"\2\2"):
            raise self._corrupt(f"has journal versions {header[18]} and {header[19]} in its header")

    def _create(self) -> None:
        with made_file(self.path) as connection:
            schema.create(connection)
        self.created = True

    def _check_content(self, connection: sqlite3.Connection) -> None:
        """Refuse another program's file, another format and damage; learn the UUID."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != schema.APPLICATION_ID:
            raise self._corrupt(_FOREIGN)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not migrations.OLDEST <= version <= schema.FORMAT:
            raise self._corrupt(
                f"has format {version}, and this penstock knows format {schema.FORMAT}",
                remedy="run the penstock version that wrote it, or a newer one",
            )
        # A transaction also tells whether the file can be written: it must fail here, and not at a
        # run's first commit. Whatever is refused below is rolled back as the connection closes.
        connection.execute("BEGIN IMMEDIATE")
        if version < schema.FORMAT:
            self._check_rows(connection)  # a step would seal damaged rows anew
            migrations.upgrade(connection, version)
        found = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        if {sql for (sql,) in found} != schema.SCHEMA:
            raise self._corrupt("is damaged (its tables are not those of a store)")
        self._check_rows(connection)
        meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        if set(meta) != {"uuid", "format", DELETED} or meta["format"] != str(schema.FORMAT):
            raise self._corrupt("is damaged (it has no identity)")
        connection.execute("COMMIT")
        self.uuid = meta["uuid"]

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        trouble = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
        if trouble != ["ok"]:
            raise self._corrupt(f"is damaged ({'; '.join(trouble)})")

    def _corrupt(self, what: str, *, remedy: str = "") -> StoreCorrupt:
        remedy = remedy or (
            "put back a copy of it, or move it away to start with an empty store, and start the "
            "runs at the steps of their own checkpoints"
        )
        return StoreCorrupt(f"the store {self.path} {what}: {remedy}", path=str(self.path))

    def _unavailable(self, why: str, *, remedy: str = "") -> PenstockError:
        remedy = remedy or "check its disk, its folder and programs that hold it, then try again"
        return StoreUnavailable(
            f"the store {self.path} cannot be used: {why}; {remedy}", path=str(self.path)
        )


@contextmanager
def made_file(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a new database beside a path, then rename it: no kill leaves half of a store.

    Args:
        path: Where it is to be.
    """
    fresh = path.with_name(path.name + ".new")
    for leftover in (fresh, fresh.with_name(fresh.name + "-journal")):
        leftover.unlink(missing_ok=True)
    connection = sqlite3.connect(fresh, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        yield connection
    finally:
        connection.close()
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _inode(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
