"""What a store of `write.py` shows, through the contract alone."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.server.store import SqliteStore

JOBS = ("packed", "counted")


async def shown(path: Path) -> dict[str, Any]:
    """Return all that the contract lets one see of the jobs of `write.py`, JSON-able."""
    store = SqliteStore(path)
    await store.open()
    try:
        found: dict[str, Any] = {"uuid": store.uuid}
        for job in JOBS:
            groups = await store.groups(job)
            (log_id,) = {group.log_id for group in groups}
            found[job] = {
                "groups": [plain(asdict(group)) for group in groups],
                "verdicts": [
                    [one.stage, list(one.item), *one[2:]] for one in await store.verdicts(log_id)
                ],
                "lane ends": sorted((await store.lane_ends(log_id)).items()),
                "libraries": await store.note_libraries(log_id, {}),
                "snapshots": [await snapshots(store, log_id, lane) for lane in range(2)],
            }
        return plain(found)
    finally:
        await store.close()


async def snapshots(store: SqliteStore, log_id: bytes, lane: int) -> list[tuple[int, str]]:
    """Return every snapshot of a lane: its offset, and what its bytes hash to."""
    found, offset = [], 1 << 40
    while (snapshot := await store.nearest_snapshot(log_id, lane, offset)) is not None:
        found.append((snapshot.offset, hashlib.sha256(snapshot.data).hexdigest()))
        offset = snapshot.offset - 1
    return found


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
