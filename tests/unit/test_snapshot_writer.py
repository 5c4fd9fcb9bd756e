"""Snapshots on their way to the store: when they are written."""

from __future__ import annotations

import asyncio

from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.store.in_memory import MemoryStore
from penstock.server.store.records import SnapshotRecord

LOG = bytes(32)


class CountingWriter(SnapshotWriter):
    """Counts how often it looks for something to write."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        super().__init__(self.store, Life())
        self.looks, self.saved = 0, asyncio.Event()

    async def save(self) -> None:
        """Write what waits."""
        self.looks += 1
        await super().save()
        self.saved.set()


async def test_an_idle_node_looks_for_no_snapshots() -> None:
    """With `snapshot_seconds: 0` each is written at once, and nothing runs in between."""
    snapshots = CountingWriter()
    await snapshots.store.open()
    saving = asyncio.create_task(snapshots.keep_saving(0))
    for _ in range(100):
        await asyncio.sleep(0)
    looks_while_idle = snapshots.looks

    snapshots.put(SnapshotRecord(LOG, 0, 16, b"snapshot"))
    await asyncio.wait_for(snapshots.saved.wait(), 60)
    for _ in range(100):
        await asyncio.sleep(0)
    saving.cancel()

    assert (looks_while_idle, snapshots.looks) == (0, 1)
    assert await snapshots.store.nearest_snapshot(LOG, 0, 16) is not None
