"""Asks the store what other nodes have done: every second, while somebody reads here.

One look finds the numbers of all logs, of all groups that have streams here, and of this node's id;
only what has another number than before is asked for itself. Nodes never talk to each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog

from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.node import Node
from penstock.server.rpc.streams import Streams
from penstock.server.store.contract import Store
from penstock.server.store.records import Followed
from penstock.wire.errors import PenstockError, StoreUnavailable

logger = structlog.get_logger("penstock.rpc")

EVERY_S, IDLE_EVERY_S = 1.0, 10.0
"""Seconds between two looks: while there are streams, and while there are none."""

LOOK_DEADLINE_S = 5.0
"""So long a look may take: a store that is cut off need not answer at all."""

UNCHECKED_S = 60.0
"""After so long without the store a node serves no attempt: a later one may have begun since."""


class Following:
    """Follows what other nodes write to the store.

    Args:
        node: Told of verdicts, and of lanes that stopped.
        store: Asked; one that no other node writes to is not.
        streams: The open streams, of attempts that may be over.
        metrics: Where looks are counted.
    """

    def __init__(self, node: Node, store: Store, streams: Streams, metrics: Metrics) -> None:
        self._node, self._store, self._streams, self._metrics = node, store, streams, metrics
        self.incarnation = 0
        self._outlived = 0
        self._is_warned = False
        self._heard_at = time.monotonic()
        self._is_away = False
        self._soon = asyncio.Event()

    async def begin(self) -> None:
        """Count this node under its id, and lift the halts of its last incarnation."""
        for log_id in self._node.logs:
            await self._store.lift_halts(log_id, self._node.node_id)
        begun = await self._store.begin_node(self._node.node_id)
        self.incarnation, self._outlived = begun.incarnation, begun.outlived
        self._heard_at = time.monotonic()

    def look_soon(self) -> None:
        """Look now: somebody has begun to read."""
        self._soon.set()

    def away_s(self) -> float:
        """Return for how long nothing was heard of the store; 0 while it answers."""
        return time.monotonic() - self._heard_at if self._is_away else 0.0

    @property
    def is_unchecked(self) -> bool:
        """Whether attempts could not be checked for too long: none is served."""
        return self._store.shared and self.away_s() >= UNCHECKED_S

    def check_away(self) -> None:
        """Refuse to serve an attempt that could not be checked for too long.

        Raises:
            StoreUnavailable: It was not heard of for `UNCHECKED_S`.
        """
        if self.is_unchecked:
            raise self._unchecked()

    def _unchecked(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"node {self._node.node_id} has not reached the store for {self.away_s():.0f} s, so it "
            "does not know whether this attempt was fenced: read from a node that reaches it, or "
            "wait until it is back; readers without a group go on"
        )

    async def follow(self) -> None:
        """Look again and again, until this is cancelled."""
        if not self._store.shared:
            return
        while True:
            self._soon.clear()
            await self.look()
            if len(self._streams) or self._is_away:
                await asyncio.sleep(EVERY_S)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), IDLE_EVERY_S)

    async def look(self) -> None:
        """Look once, and act upon what has changed."""
        logs, groups = list(self._node.logs), self._streams.attempts()
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                found = await self._store.followed(logs, sorted(groups), self._node.node_id)
                self._metrics.polled.inc()
                await self._changed(found)
                await self._fence(found, groups)
        except (PenstockError, TimeoutError) as error:
            self._is_away = True
            logger.debug("the store was not heard of", error=str(error))
            if self.is_unchecked:
                self._streams.end_attempts(self._unchecked())
            return
        self._heard_at, self._is_away = time.monotonic(), False
        await self._look_at_others(found)

    async def _changed(self, found: Followed) -> None:
        for log_id, number in found.changes.items():
            log = self._node.logs[log_id]
            if number > log.known_change:
                changes = await self._store.changes(log_id, log.known_change)
                self._node.heard(log_id, changes)

    async def _fence(self, found: Followed, groups: dict[tuple[str, str], int]) -> None:
        """End the streams of attempts that are over, as other nodes have it."""
        over = [
            place
            for place, oldest in groups.items()
            if (latest := found.generations[place]) is None or latest > oldest
        ]
        if over:
            for place, holder in zip(over, await self._store.latest(over), strict=True):
                self._metrics.fenced_elsewhere.inc()
                self._streams.heard(*place, holder)

    async def _look_at_others(self, found: Followed) -> None:
        """Warn where two nodes run under one id, at both of them."""
        node_id = self._node.node_id
        text = "two nodes run under one id: give each its own node_id, and restart them"
        if found.incarnation > self.incarnation and not self._is_warned:
            self._is_warned = True
            logger.warning(
                text, node_id=node_id, ours=self.incarnation, other=found.incarnation, wins="other"
            )
            with contextlib.suppress(PenstockError):
                await self._store.outlive(node_id, self.incarnation)
        elif self._outlived < found.outlived < self.incarnation:
            self._outlived = found.outlived
            logger.warning(
                text, node_id=node_id, ours=self.incarnation, other=found.outlived, wins="ours"
            )
