"""Snapshots on their way to the store and back: they only save time, so nothing waits for a write.

The newest one of each lane waits here until the next write. An unreachable store never causes a
replay: a lookup waits until the store answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from penstock.server.node.supply.life import Life
from penstock.server.store.contract import Store
from penstock.server.store.records import SnapshotRecord
from penstock.wire.errors import LogDiverged, PenstockError, StoreUnavailable

logger = structlog.get_logger("penstock.node")

STORE_RETRY_S, STORE_DEADLINE_S = 0.5, 60.0
"""How often a store that is away is asked again, and for how long."""


class SnapshotWriter:
    """The snapshots of a node's lanes.

    Args:
        store: Where they go; open.
        life: The node's.

    Attributes:
        unsaved: By log id and lane, the newest snapshot that is not written yet.
        on_diverged: Called with log id, lane and error where the store holds another snapshot than
            ours: one of the two is wrong.
    """

    def __init__(self, store: Store, life: Life) -> None:
        self._store, self._life = store, life
        self.unsaved: dict[tuple[bytes, int], SnapshotRecord] = {}
        self._has_unsaved = asyncio.Event()
        self.on_diverged: Callable[[bytes, int, PenstockError], None] = lambda *_: None

    def put(self, record: SnapshotRecord) -> None:
        """Keep a snapshot for the next write, unless a later one of its lane waits already."""
        known = self.unsaved.get((record.log_id, record.lane))
        if known is None or record.offset > known.offset:
            self.put_last(record)

    def put_last(self, record: SnapshotRecord) -> None:
        """Keep where a lane stands as the node ends, whatever waits of it."""
        self.unsaved[record.log_id, record.lane] = record
        self._has_unsaved.set()

    def forget(self, log_id: bytes, lane: int) -> None:
        """Write nothing of a lane whose content is in doubt."""
        self.unsaved.pop((log_id, lane), None)

    async def keep_saving(self, every_s: float) -> None:
        """Write what waits, again and again.

        Args:
            every_s: The least time between two writes; 0 writes each snapshot at once.
        """
        while True:
            await self._has_unsaved.wait()
            await asyncio.sleep(every_s)
            self._has_unsaved.clear()
            await self.save()

    async def save(self) -> None:
        """Write what waits."""
        records, self.unsaved = list(self.unsaved.values()), {}
        if records:
            await self._write(records)

    async def _write(self, records: list[SnapshotRecord]) -> None:
        try:
            await self._store.put_snapshots(records)
        except StoreUnavailable as error:
            logger.debug("snapshots were not written; they only accelerate", error=str(error))
        except PenstockError as error:
            if len(records) == 1:
                self._refused(records[0], error)
                return
            # One lane's must not cost the others theirs; the store commits them together.
            await asyncio.gather(*(self._write([record]) for record in records))

    def _refused(self, record: SnapshotRecord, error: PenstockError) -> None:
        """A snapshot was refused: if the store has another one there, its lane stops."""
        logger.error(
            "a snapshot was refused",
            lane=record.lane,
            offset=record.offset,
            code=error.code,
            error=error.message,
        )
        if isinstance(error, LogDiverged):
            self.on_diverged(record.log_id, record.lane, error)

    async def nearest(self, log_id: bytes, lane: int, offset: int) -> SnapshotRecord | None:
        """Return the nearest snapshot at or below an offset; wait where the store is away.

        Raises:
            StoreUnavailable: It was away for `STORE_DEADLINE_S`.
            PenstockError: The store refuses to answer.
        """
        deadline = self._life.loop.time() + STORE_DEADLINE_S
        while True:
            try:
                found = await self._store.nearest_snapshot(log_id, lane, offset)
                break
            except StoreUnavailable as error:
                if self._life.loop.time() > deadline:
                    raise
                logger.debug("the store does not answer; waiting", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
        unsaved = self.unsaved.get((log_id, lane))
        if unsaved and unsaved.offset <= offset and (not found or unsaved.offset > found.offset):
            return unsaved
        return found

    async def drop(self, log_id: bytes, lane: int, offset: int) -> None:
        """Remove an unusable snapshot; the next look finds an older one, or the lane's start."""
        unsaved = self.unsaved.get((log_id, lane))
        if unsaved is not None and unsaved.offset == offset:
            del self.unsaved[log_id, lane]
        try:
            await self._store.drop_snapshot(log_id, lane, offset)
            logger.warning("an unusable snapshot was removed", lane=lane, offset=offset)
        except PenstockError as error:
            logger.error("an unusable snapshot stays", lane=lane, offset=offset, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)
