"""Each store of penstock keeps what every store promises: `penstock.server.testing.store`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from penstock.server.store import Memory, MemoryStore, SqliteStore, Store
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
