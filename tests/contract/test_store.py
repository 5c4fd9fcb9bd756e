"""Each store of penstock keeps what every store promises: `penstock.server.testing.store`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

import postgres
from penstock.server.store import Memory, MemoryStore, SqliteStore, Store, open_store
from penstock.server.testing.store import StoreContract


class TestMemoryStore(StoreContract):
    """The store in memory: over one memory per folder, as nodes of one process share it."""

    @pytest.fixture(autouse=True)
    def _memories(self) -> None:
        self.memories: dict[Path, Memory] = {}

    def make(self, folder: Path) -> Store:
        """Return a store over the memory of the folder."""
        return MemoryStore(self.memories.setdefault(folder, Memory()))


class TestSqliteStore(StoreContract):
    """The embedded store; what it decides by is what the memory store decides by."""

    history_calls: ClassVar[int] = 3

    def make(self, folder: Path) -> Store:
        """Return the store of a file in the folder."""
        return SqliteStore(folder / "penstock.db")


class TestPostgresStore(StoreContract):
    """The store of several nodes, in PostgreSQL 18: a schema for each test."""

    history_calls: ClassVar[int] = 2

    @pytest.fixture(autouse=True)
    def _schemas(self) -> None:
        self.urls: dict[Path, str] = {}

    def server(self) -> str:
        """Return the address of the server."""
        return postgres.postgres_18()

    def make(self, folder: Path) -> Store:
        """Return the store of a schema."""
        if folder not in self.urls:
            self.urls[folder] = postgres.in_schema(self.server(), postgres.new_schema())
        return open_store(self.urls[folder], folder)

    @pytest.mark.thorough
    async def test_a_long_run_keeps_what_readers_come_back_to(self, store: Store) -> None:
        """It takes 12 s."""
        await super().test_a_long_run_keeps_what_readers_come_back_to(store)


@pytest.mark.thorough
class TestPostgresStore15(TestPostgresStore):
    """The same in Debian's PostgreSQL 15, which clusters have."""

    def server(self) -> str:
        """Return the address of the server."""
        return postgres.postgres_15()
