"""Lanes that nobody reads here give their memory back: others read them, or nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.wanted import Reads
from penstock.server.node.supply.lane_lines import LaneLines
from penstock.server.node.supply.life import Life

LOOK_S, REST_S = 5.0, 40.0
"""Seconds between two looks, and for which nobody reads a lane before it is put to rest: a reader
whose connection broke is back sooner, and goes on with its line."""


class Rest:
    """Puts lanes to rest.

    Args:
        logs: The ledger of each log.
        lines: Closes their lines.
        life: The node's.
    """

    def __init__(self, logs: Mapping[bytes, Log], lines: LaneLines, life: Life) -> None:
        self._logs, self._lines, self._life = logs, lines, life
        self._unread: dict[LaneState, float] = {}  # since when, by the loop's clock

    async def keep_looking(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(self._life.loop.time())

    def look(self, now: float) -> None:
        """Put to rest what nobody has read for a while.

        Args:
            now: The loop's time.
        """
        for log in self._logs.values():
            read = [reader.reads() for reader in log.readers]
            for lane in log.lanes:
                holds = lane.lines or lane.plans or lane.starts
                is_read = lane.is_planned or any(_has(reads, lane.lane) for reads in read)
                if not holds or is_read or lane.wanted:
                    self._unread.pop(lane, None)
                elif now - self._unread.setdefault(lane, now) >= REST_S:
                    del self._unread[lane]
                    self._lines.close_all(lane)
                    log.cached.shed_lane(lane.lane)
                    lane.withhold()


def _has(reads: Reads, lane: int) -> bool:
    """Tell whether a reader may want batches of a lane: one of these lanes, or of a residue."""
    lanes, modulus, residue = reads
    return (lanes is None or lane in lanes) and lane % modulus == residue
