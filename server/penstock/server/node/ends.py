"""Where lanes end: recorded before any position depends on it.

So every batch that a reader was given was numbered by ends that the store has, and a node that
restarts numbers it in the same way, although it does not know how far other lanes reach.
"""

from __future__ import annotations

import asyncio

import structlog

from penstock.server.node.books import Log
from penstock.server.node.dispatch import Dispatch
from penstock.server.node.life import Life
from penstock.server.node.shelf import STORE_RETRY_S
from penstock.server.store.base import Store
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

    def found(self, log: Log, lane: int, batches: int) -> None:
        """Have an end recorded, and readers told; saying it again changes nothing.

        Args:
            log: The books of a job, which is finite.
            lane: The lane.
            batches: How many batches it holds.
        """
        if batches == log.lanes[lane].end:
            return
        try:
            log.ends_at(lane, batches)
        except LogDiverged as error:
            self._dispatch.diverged(log.job.log_id, lane, error)
            return
        self._life.spawn(self._record(log, lane, batches))

    async def _record(self, log: Log, lane: int, batches: int) -> None:
        while True:
            try:
                await self._store.add_lane_end(log.job.log_id, lane, batches)
                break
            except LogDiverged as error:
                self._dispatch.diverged(log.job.log_id, lane, error)
                return
            except StoreUnavailable as error:  # the store's own watch reports it, once
                logger.debug("the store does not answer; waiting", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
        log.ended(lane, batches)
        if log.numbering.is_complete:
            logger.info("counted", job=log.job.name, batches=log.numbering.batches)
        self._dispatch.schedule()


__all__ = ["Ends"]
