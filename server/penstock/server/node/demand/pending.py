"""Batches that no reader wants, planned because readers must know of them.

Positions of others depend on them; or they fill no step, and it is to be said what that costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.wanted import BatchState, Demand, Key, WantedBatch
from penstock.wire.numbering import Numbering


class PendingPlans:
    """Asks for lanes of a log to be planned, as far as the next batches of readers depend on them.

    A rank waits for no other rank: batches that the other would have had made are planned for this
    one.

    Args:
        numbering: What is known of the log's order.
        lanes: Its lanes.
    """

    def __init__(self, numbering: Numbering, lanes: Sequence[LaneState]) -> None:
        self._numbering, self._lanes = numbering, lanes
        self._entries: dict[int, WantedBatch] = {}  # by lane, the batch that is to be planned

    def holds(self, entry: WantedBatch) -> bool:
        """Tell whether an entry is still asked for."""
        return self._entries.get(entry.key.lane) is entry

    def wanted(self, readers: Iterable[Demand]) -> Iterator[WantedBatch]:
        """Yield what is to be planned for readers who wait to know of it.

        Not of a lane of which a line is at work: its answer may say it.
        """
        if self._numbering.is_complete and not self._numbering.is_finite:
            return
        before, self._entries = self._entries, {}
        for reader in readers:
            for number, offset in reader.unknown_batches():
                lane = self._lanes[number]
                if lane.is_planned or lane.has_ended(offset):
                    continue
                entry = self._entries.get(number)
                if entry is None or offset < entry.key.offset:
                    nearer = self._entry(before.get(number), number, offset)
                    if entry is not None:  # the way to it leads over the nearer one
                        nearer.readers |= entry.readers
                    entry = self._entries[number] = nearer
                entry.readers.add(reader)
                if lane.error is not None:
                    entry.fail(lane.error)
        yield from [entry for entry in self._entries.values() if entry.state is BatchState.WANTED]

    def _entry(self, before: WantedBatch | None, lane: int, offset: int) -> WantedBatch:
        """Return what stands for a batch: the same as before, as long as it is looked for."""
        if before is not None and before.key.offset == offset and before.state is BatchState.WANTED:
            before.readers.clear()
            return before
        at = self._numbering.order.position(lane, offset)
        return WantedBatch(Key(at, lane, offset, False), is_asked=True)
