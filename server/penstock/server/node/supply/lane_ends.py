"""Where lanes end: recorded before any position depends on it.

So every batch that a reader was given was numbered by ends that the store has, and a node that
restarts numbers it in the same way, although it does not know how far other lanes reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from penstock.server.node.demand.ledger import Log
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import STORE_RETRY_S
from penstock.server.store.contract import Store
from penstock.wire.errors import LogDiverged, StoreUnavailable

logger = structlog.get_logger("penstock.node")


class Ends:
    """Is told where lanes end.

    Args:
        dispatch: Whose logs have the lanes.
        store: Where the ends are recorded.
        life: The node's.
    """

    def __init__(self, dispatch: Dispatch, store: Store, life: Life) -> None:
        self._dispatch, self._store, self._life = dispatch, store, life
        self._found: dict[Log, dict[int, int]] = {}  # being recorded, or to be

    def found(self, log: Log, lane: int, batches: int, in_vain: Mapping[str, int]) -> None:
        """Have an end recorded, and readers told; saying it again changes nothing.

        Args:
            log: The ledger of a job, which is finite.
            lane: The lane.
            batches: How many batches it holds.
            in_vain: What was counted of it, where that is none.
        """
        if batches == log.lanes[lane].end:
            return
        try:
            log.ends_at(lane, batches)
        except LogDiverged as error:
            self._dispatch.diverged(log.job.log_id, lane, error)
            return
        if not batches:
            log.numbering.in_vain[lane] = in_vain
        is_recording = log in self._found
        self._found.setdefault(log, {})[lane] = batches
        if not is_recording:
            self._life.spawn(self._record(log))

    async def _record(self, log: Log) -> None:
        """Record what was found of a log, and what is found meanwhile: many lanes at once."""
        found = self._found[log]
        while found:
            ends = dict(found)
            try:
                await self._store.add_lane_ends(log.job.log_id, ends)
            except LogDiverged as error:
                if error.lane is None:
                    raise
                self._dispatch.diverged(log.job.log_id, error.lane, error)
                del found[error.lane]
                continue
            except StoreUnavailable as error:  # the store's own watch reports it, once
                logger.debug("the store does not answer; waiting", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
                continue
            for lane in ends:
                del found[lane]
            log.ended(ends)
            if log.numbering.is_complete:
                logger.info("counted", job=log.job.name, batches=log.numbering.batches)
            self._dispatch.schedule()
        del self._found[log]
