"""Lanes that stopped: every rank of the job is told before it enters the step that it cannot end.

A lane stops at one node, for good. The others hear of it through the store. If only the rank that
reads the lane were told, the others would wait for it in a collective.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.ledger import Log
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import STORE_RETRY_S
from penstock.server.processes.child import told
from penstock.server.store.contract import Store
from penstock.server.store.records import Halt
from penstock.wire.errors import ERRORS, Internal, PenstockError, StoreUnavailable

logger = structlog.get_logger("penstock.node")


class Halts:
    """Tells the readers of this node, and those of others, of lanes that stopped.

    Args:
        store: Where others find them.
        life: The node's.
        logs: The ledger of each log.
        node: Gives the node's id.
    """

    def __init__(
        self, store: Store, life: Life, logs: Mapping[bytes, Log], node: Callable[[], str]
    ) -> None:
        self._store, self._life, self._logs, self._node = store, life, logs, node

    def stopped(self, log: Log, lane: LaneState, offset: int, error: PenstockError) -> None:
        """Tell of a lane that has stopped here, before a batch."""
        log.withheld.halt(lane.lane, offset, error)
        if self._store.shared:
            self._life.spawn(self._record(log, lane.lane, offset, error))

    async def _record(self, log: Log, lane: int, offset: int, error: PenstockError) -> None:
        said = told(error)
        halt = Halt(lane, offset, said["code"], said["message"], said["fields"], self._node())
        while True:
            try:
                await self._store.add_halt(log.job.log_id, halt)
                return
            except StoreUnavailable as away:
                logger.debug("other nodes are not told of a stopped lane", error=str(away))
            except PenstockError as refusal:
                logger.warning("other nodes are not told of a stopped lane", error=str(refusal))
                return
            await asyncio.sleep(STORE_RETRY_S)

    def heard(self, log: Log, halts: Iterable[Halt]) -> None:
        """Take in the lanes that are stopped at other nodes: all of them, so others go on."""
        found: dict[int, tuple[int, PenstockError]] = {}
        for halt in halts:
            if halt.node == self._node() or halt.change <= log.begun_change:
                continue  # it is known, or of before this node began: it tries the lane again
            error = ERRORS.get(halt.code, Internal).with_fields(
                f"{halt.message} (lane {halt.lane} stopped at node {halt.node})", halt.fields
            )
            known = found.get(halt.lane)
            if known is None or halt.offset < known[0]:
                found[halt.lane] = halt.offset, error
                if halt.lane not in log.withheld.elsewhere:
                    logger.error(
                        "a lane stopped at another node",
                        job=log.job.name,
                        lane=halt.lane,
                        node=halt.node,
                        code=halt.code,
                        error=halt.message,
                    )
        log.withheld.halt_elsewhere(found)
