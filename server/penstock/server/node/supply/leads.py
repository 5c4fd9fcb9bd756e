"""How far this node may plan each lane, where other nodes write to the same store.

A verdict holds above all that any node has planned. So a node records how far it plans before it
does: some hundred batches ahead, so that this costs few writes, of all lanes in one. The answer has
every verdict that was made before, and it is learned first: what is planned below the lead is
planned as all verdicts have it that hold there, however late the node hears of later ones.

Without the store a node reads on up to its leads: no verdict can be made in conflict with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.ledger import Log
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import STORE_RETRY_S
from penstock.server.store.contract import Store
from penstock.server.store.records import Lead, LogChanges
from penstock.wire.errors import PenstockError

logger = structlog.get_logger("penstock.node")

LEAST_AHEAD, MOST_AHEAD = 128, 2048
"""Batches of a lane that are reserved beyond what is wanted: as many as a lane has had made here,
within these bounds. With more a node reads longer without the store, and writes less; and a verdict
or its release holds later in lanes that have not met the item themselves."""


class Leads:
    """Reserves what is about to be planned.

    Args:
        store: Where leads are recorded; one that no other node writes to needs none.
        life: The node's.
        learn: Takes in what has changed in a log, before anything else is planned.
        schedule: Called when more may be planned.
    """

    def __init__(
        self,
        store: Store,
        life: Life,
        learn: Callable[[Log, LogChanges], None],
        schedule: Callable[[], None],
    ) -> None:
        self._store, self._life, self._learn, self._schedule = store, life, learn, schedule
        self._wanted: dict[Log, dict[LaneState, int]] = {}  # being reserved, or to be

    def cover(self, log: Log, lane: LaneState, stop: int) -> bool:
        """Tell whether a lane may be planned below an offset; if not, reserve that."""
        if not self._store.shared:
            return True
        if lane.reserved - stop < _ahead(log) // 2:
            self._want(log, lane, stop)
        return stop <= lane.reserved

    def awaits(self, log: Log, lane: LaneState) -> bool:
        """Tell whether a lane cannot be planned on before the store has answered."""
        return self._wanted.get(log, {}).get(lane, 0) > lane.reserved

    def _want(self, log: Log, lane: LaneState, stop: int) -> None:
        is_reserving = log in self._wanted
        wanted = self._wanted.setdefault(log, {})
        wanted[lane] = max(stop, wanted.get(lane, 0))
        if not is_reserving:
            self._life.spawn(self._reserve(log))

    async def _reserve(self, log: Log) -> None:
        """Reserve what is wanted of a log, and what is wanted meanwhile: many lanes at once."""
        wanted = self._wanted[log]
        ahead = _ahead(log)
        # Lanes go on side by side: those that are soon at their leads are taken along.
        for lane in log.lanes:
            if lane.reserved and lane.reserved - lane.asked < 3 * ahead // 4:
                wanted.setdefault(lane, lane.asked)
        while wanted:
            asked, known = dict(wanted), log.known_change
            leads = {
                lane.lane: Lead(lane.planned_here, stop + ahead) for lane, stop in asked.items()
            }
            try:
                found = await self._store.reserve(log.job.log_id, leads, known)
            except PenstockError as error:  # the store's own watch reports it, once
                logger.debug("what may be planned is not recorded; waiting", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
                continue
            self._learn(log, found.changes)
            for lane, stop in asked.items():
                lane.reserved = max(lane.reserved, found.leads[lane.lane])
                if wanted[lane] <= stop:
                    del wanted[lane]
            self._schedule()
        del self._wanted[log]


def _ahead(log: Log) -> int:
    """Return how many batches beyond what is wanted are reserved of a lane."""
    return max(LEAST_AHEAD, min(MOST_AHEAD, log.produced // len(log.lanes)))
