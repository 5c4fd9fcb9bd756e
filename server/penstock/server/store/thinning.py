"""Snapshots are put and thinned out in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from penstock.server.store.loads import reader_offsets
from penstock.server.store.records import SnapshotRecord
from penstock.server.store.rows import BodyRow, Change, SnapshotRow
from penstock.server.store.rules import lane_records as lanes
from penstock.server.store.rules.retention import ARCHIVE
from penstock.server.store.tables import Tables

CROWDED = 512
"""A lane with more snapshots is thinned: rarely enough that it costs a few microseconds per put."""


class Crowded:
    """Puts snapshots and thins them; holds only how crowded each lane was, and may forget it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[bytes, int], int] = {}

    async def put(self, tables: Tables, snapshots: Sequence[SnapshotRecord]) -> None:
        """Insert if absent, then thin out.

        Raises:
            LogDiverged: There is another content at the same lane and offset.
        """
        keys = [snapshot[:3] for snapshot in snapshots]
        stored = await tables.some(SnapshotRow, keys)
        standing = {key: row for key, row in zip(keys, stored, strict=True) if row is not None}
        numbers: Iterable[int] = ()
        if absent := len({*keys}) - len(standing):
            numbers = await tables.numbers(BodyRow, "id", absent)
        bodies = iter(numbers)
        changes: list[Change] = []
        for key, snapshot in zip(keys, snapshots, strict=True):
            checksum = hashlib.sha256(snapshot.data).digest()
            stands = standing.get(key)
            body = next(bodies) if stands is None else stands.body
            changes += lanes.put(snapshot, checksum, stands, body)
            standing.setdefault(key, SnapshotRow(*key, checksum, body))
        await tables.write(changes)
        touched = sorted({(snapshot.log_id, snapshot.lane) for snapshot in snapshots})
        counts = await tables.count_each(SnapshotRow, touched)
        crowded: dict[bytes, list[int]] = {}
        for (log_id, lane), count in zip(touched, counts, strict=True):
            if count > self._counts.get((log_id, lane), CROWDED):
                crowded.setdefault(log_id, []).append(lane)
        for log_id, found in crowded.items():
            await self._thin(tables, log_id, found)

    async def collect(self, tables: Tables, log_id: bytes) -> None:
        """Remove at once what is not worth keeping, after a reader that it was kept for is gone."""
        counts = await tables.counts(SnapshotRow, log_id)
        await self._thin(tables, log_id, [lane for lane, n in counts.items() if n > ARCHIVE])

    async def _thin(self, tables: Tables, log_id: bytes, crowded: Sequence[int]) -> None:
        cursors, checkpoints = await reader_offsets(tables, log_id) if crowded else ([], [])
        for lane in crowded:
            rows = await tables.all(SnapshotRow, log_id, lane)
            kept, changes = lanes.thin(rows, cursors, checkpoints)
            await tables.write(changes)
            # With very many checkpoints much stays: wait until it has doubled.
            self._counts[log_id, lane] = max(CROWDED, 2 * kept)
