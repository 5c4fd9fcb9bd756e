"""The store in a SQLite file: the embedded default for one node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.server.store.database import Database
from penstock.server.store.ruled import RuledStore, Transaction
from penstock.server.store.schema import touch
from penstock.server.store.sqlite_tables import SqliteTables
from penstock.server.store.tables import finish
from penstock.wire.errors import PenstockError

T = TypeVar("T")


class SqliteStore(RuledStore):
    """One file, one writer: WAL, synchronous=FULL, and a lock file that other processes see.

    Whatever was acknowledged is on disk. `sqlite_tables` reads and writes the rows; the thread, the
    commits and the errors are in `database`.

    Args:
        path: The file; it is created if missing, and its folder is not.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._database = Database(Path(path))

    @property
    def path(self) -> Path:
        """Return the file, resolved."""
        return self._database.path

    @property
    def where(self) -> str:  # noqa: D102 - the contract says it
        return str(self.path)

    @property
    def created(self) -> str:  # noqa: D102 - the contract says it
        return str(self.path) if self._database.created else ""

    @property
    def uuid(self) -> str:
        """Return the identity of this store; empty before `open`."""
        return self._database.uuid

    def watch(self, on_error: Callable[[PenstockError], None]) -> None:  # noqa: D102
        self._database.on_error = on_error

    async def probe(self) -> None:  # noqa: D102
        await self._database.run(touch, told=False)

    async def open(self) -> None:  # noqa: D102
        await self._database.open()

    async def close(self) -> None:  # noqa: D102
        await self._database.close()

    async def discard(self) -> None:  # noqa: D102
        await self._database.close(discards=True)

    async def transact(self, transaction: Transaction[T]) -> T:  # noqa: D102
        return await self._database.run(
            lambda connection: finish(transaction(SqliteTables(connection)))
        )


__all__ = ["SqliteStore"]
