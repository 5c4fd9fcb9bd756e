"""The store of a node of `local:` whose reader has no group."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.server.pipeline.line import replay_cost
from penstock.server.store import MemoryStore
from penstock.server.store.recorded import Recorded
from penstock.server.store.records import SnapshotRecord

logger = logging.getLogger("penstock")


class LookingStore(MemoryStore):
    """A store in memory that begins with what another one has recorded, and leaves that as it is.

    For readers without a group: no cursor and no verdict of the other store is theirs.

    Args:
        recorded: The other store.
    """

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self._recorded = recorded
        self._unusable: dict[tuple[bytes, int], int] = {}  # by log and lane: the lowest offset
        self._has_reported = False

    async def nearest_snapshot(
        self, log_id: bytes, lane: int, offset: int
    ) -> SnapshotRecord | None:
        """Return the nearest snapshot of either store, and say once where that is far away."""
        made = await super().nearest_snapshot(log_id, lane, offset)
        below = min(offset, self._unusable.get((log_id, lane), offset + 1) - 1)
        found = self._recorded.snapshot(log_id, lane, below)
        if made is not None and (found is None or made.offset >= found.offset):
            found = made
        begins = 0 if found is None else found.offset
        cost = replay_cost(lane, begins, offset, self._recorded.why_none())
        if cost and not self._has_reported:
            self._has_reported = True
            logger.warning("%s", cost)
        return found

    async def drop_snapshot(self, log_id: bytes, lane: int, offset: int) -> None:
        """Look at a snapshot no more that cannot be used."""
        self._unusable[log_id, lane] = offset
        await super().drop_snapshot(log_id, lane, offset)

    async def note_libraries(self, log_id: bytes, versions: Mapping[str, str]) -> dict[str, str]:
        """Return what the log began with, in the other store too."""
        found = await super().note_libraries(log_id, versions)
        return {**found, **self._recorded.libraries(log_id)}
