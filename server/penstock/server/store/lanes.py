"""Snapshots and ends of lanes: each function is the body of one transaction."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence

from penstock.server.store.base import SnapshotRecord
from penstock.server.store.checks import check_name
from penstock.server.store.groups import readers
from penstock.server.store.jobs import lanes_of
from penstock.server.store.retention import ARCHIVE, keep
from penstock.server.store.schema import insert, now
from penstock.wire.errors import LogDiverged

CROWDED = 512
"""A lane with more snapshots is thinned: rarely enough that it costs a few microseconds per put."""


class Snapshots:
    """Puts and finds snapshots; holds only how crowded each lane was, and may forget it."""

    def __init__(self) -> None:
        self._crowded: dict[tuple[bytes, int], int] = {}

    def put(self, db: sqlite3.Connection, snapshots: Sequence[SnapshotRecord]) -> None:
        """Insert if absent, then thin out, as `Store.put_snapshots` says."""
        for snapshot in snapshots:
            _put(db, snapshot)
        touched = {(snapshot.log_id, snapshot.lane) for snapshot in snapshots}
        where: dict[bytes, tuple[list[int], list[int]]] = {}
        for log_id, lane in sorted(touched):
            (count,) = db.execute(
                "SELECT count(*) FROM snapshots WHERE log_id = ? AND lane = ?", (log_id, lane)
            ).fetchone()
            if count <= self._crowded.get((log_id, lane), CROWDED):
                continue
            if log_id not in where:
                where[log_id] = _reader_offsets(db, log_id)
            self._thin(db, log_id, lane, *where[log_id])

    def collect(self, db: sqlite3.Connection, log_id: bytes) -> None:
        """Remove at once what is not worth keeping: somebody it was kept for is gone."""
        lanes = db.execute(
            "SELECT lane FROM snapshots WHERE log_id = ? GROUP BY lane HAVING count(*) > ?",
            (log_id, ARCHIVE),
        ).fetchall()
        where = _reader_offsets(db, log_id)
        for (lane,) in lanes:
            self._thin(db, log_id, lane, *where)

    def _thin(
        self,
        db: sqlite3.Connection,
        log_id: bytes,
        lane: int,
        cursor_offsets: list[int],
        checkpoint_offsets: list[int],
    ) -> None:
        kept = _thin(db, log_id, lane, cursor_offsets, checkpoint_offsets)
        # With very many checkpoints much stays: wait until it has doubled.
        self._crowded[log_id, lane] = max(CROWDED, 2 * kept)

    def nearest(
        self, db: sqlite3.Connection, log_id: bytes, lane: int, offset: int
    ) -> SnapshotRecord | None:
        """Return the nearest intact snapshot, as `Store.nearest_snapshot` says."""
        while True:
            row = db.execute(
                "SELECT offset, checksum, data FROM snapshots "
                "LEFT JOIN bodies ON bodies.id = snapshots.body "
                "WHERE log_id = ? AND lane = ? AND offset <= ? ORDER BY offset DESC LIMIT 1",
                (log_id, lane, offset),
            ).fetchone()
            if row is None:
                return None
            found, checksum, data = row
            if isinstance(data, bytes) and hashlib.sha256(data).digest() == checksum:
                return SnapshotRecord(log_id, lane, found, data)
            # A snapshot only accelerates: an older one gives the same batches, later.
            _warn_of_damage(log_id, lane, found)
            drop(db, log_id, lane, found)


def _warn_of_damage(log_id: bytes, lane: int, offset: int) -> None:
    # Imported in a node, never with this module: `local:` has the store in the trainer's process,
    # and structlog imports rich where that is installed, which draws from `random` as it is
    # imported.
    import structlog

    structlog.get_logger("penstock.store").warning(
        "a damaged snapshot was dropped", log=log_id.hex(), lane=lane, offset=offset
    )


def drop(db: sqlite3.Connection, log_id: bytes, lane: int, offset: int) -> None:
    """Remove a snapshot, as `Store.drop_snapshot` says."""
    address = (log_id, lane, offset)
    db.execute(
        "DELETE FROM bodies WHERE id IN "
        "(SELECT body FROM snapshots WHERE log_id = ? AND lane = ? AND offset = ?)",
        address,
    )
    db.execute("DELETE FROM snapshots WHERE log_id = ? AND lane = ? AND offset = ?", address)


def add_lane_end(db: sqlite3.Connection, log_id: bytes, lane: int, batches: int) -> int:
    """Record where a lane ends, as `Store.add_lane_end` says."""
    row = db.execute(
        "SELECT batches FROM lane_ends WHERE log_id = ? AND lane = ?", (log_id, lane)
    ).fetchone()
    if row is None:
        insert(db, "lane_ends", log_id=log_id, lane=lane, batches=batches)
        return batches
    if row[0] != batches:
        raise LogDiverged(
            f"lane {lane} of log {log_id.hex()[:12]}... ends after {batches} batches here, and "
            f"ended after {row[0]} before: its roles or its data are not the same everywhere; run "
            "`penstockd check` on both nodes",
            what=f"end of lane {lane}",
            ours=batches,
            theirs=row[0],
        )
    return batches


def note_libraries(
    db: sqlite3.Connection, log_id: bytes, versions: Mapping[str, str]
) -> dict[str, str]:
    """Record what computes a log, as `Store.note_libraries` says."""
    recorded = dict(
        db.execute("SELECT name, version FROM libraries WHERE log_id = ?", (log_id,)).fetchall()
    )
    for name, version in versions.items():
        if name not in recorded:
            check_name("library", name)
            check_name("version", version)
            insert(db, "libraries", log_id=log_id, name=name, version=version, first_seen=now(db))
            recorded[name] = version
    return recorded


def lane_ends(db: sqlite3.Connection, log_id: bytes) -> dict[int, int]:
    """Return the recorded ends by lane, as `Store.lane_ends` says."""
    rows = db.execute(
        "SELECT lane, batches FROM lane_ends WHERE log_id = ? ORDER BY lane", (log_id,)
    ).fetchall()
    return dict(rows)


def _put(db: sqlite3.Connection, snapshot: SnapshotRecord) -> None:
    checksum = hashlib.sha256(snapshot.data).digest()
    row = db.execute(
        "SELECT checksum FROM snapshots WHERE log_id = ? AND lane = ? AND offset = ?",
        snapshot[:3],
    ).fetchone()
    if row is None:
        body = db.execute("INSERT INTO bodies (data) VALUES (?)", (snapshot.data,)).lastrowid
        assert body is not None
        insert(
            db,
            "snapshots",
            log_id=snapshot.log_id,
            lane=snapshot.lane,
            offset=snapshot.offset,
            checksum=checksum,
            body=body,
        )
    elif row[0] != checksum:
        raise LogDiverged(
            f"the snapshot of lane {snapshot.lane} at offset {snapshot.offset} of log "
            f"{snapshot.log_id.hex()[:12]}... has the content {checksum.hex()[:12]}..., and "
            f"another ({row[0].hex()[:12]}...) was stored before: a role is impure, or "
            "nodes differ; run `penstockd check` on both nodes",
            what=f"snapshot of lane {snapshot.lane} at offset {snapshot.offset}",
            ours=checksum.hex(),
            theirs=row[0].hex(),
        )


def _reader_offsets(db: sqlite3.Connection, log_id: bytes) -> tuple[list[int], list[int]]:
    """Return the lane offsets of cursors and checkpoints: exact in endless logs, else low."""
    lanes = lanes_of(db, log_id)
    if lanes is None:
        return [], []
    cursors, checkpoints = readers(db, log_id)
    return [position // lanes for position in cursors], [
        position // lanes for position in checkpoints
    ]


def _thin(
    db: sqlite3.Connection,
    log_id: bytes,
    lane: int,
    cursor_offsets: list[int],
    checkpoint_offsets: list[int],
) -> int:
    rows = db.execute(
        "SELECT offset FROM snapshots WHERE log_id = ? AND lane = ?", (log_id, lane)
    ).fetchall()
    offsets = {offset for (offset,) in rows}
    kept = keep(offsets, cursor_offsets, checkpoint_offsets)
    for offset in sorted(offsets - kept):
        drop(db, log_id, lane, offset)
    return len(kept)


__all__ = [
    "CROWDED",
    "Snapshots",
    "add_lane_end",
    "drop",
    "lane_ends",
    "note_libraries",
]
