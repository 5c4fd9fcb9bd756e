"""What is planned although no reader wants it: positions of others depend on whether it exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.server.node.entry import Entry, Key, State

if TYPE_CHECKING:
    from penstock.server.node.books import Log


class Asks:
    """Asks for lanes of a log to be planned, as far as the batches that are owed depend on them.

    A rank waits for no other rank: what that one would have had made is planned for this one.

    Args:
        log: The books of the log.

    Attributes:
        lanes: By lane the batch that is to be planned.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.lanes: dict[int, Entry] = {}

    def wanted(self) -> Iterator[Entry]:
        """Yield what is to be planned for readers who wait to know their positions.

        Not of a lane of which a line is at work: its answer may say it.
        """
        log = self._log
        if log.numbering.is_complete:
            return
        before, self.lanes = self.lanes, {}
        for reader in log.readers:
            position = reader.lacks
            for number, offset in () if position is None else log.numbering.missing(position):
                lane = log.lanes[number]
                if log.is_planned(lane) or log.has_ended(lane, offset):
                    continue
                entry = self.lanes.get(number)
                if entry is None or entry.key.offset != offset:
                    entry = self.lanes[number] = self._entry(before.get(number), number, offset)
                entry.readers.add(reader)
                if lane.error is not None:
                    log.failed(entry, lane.error)
        yield from [entry for entry in self.lanes.values() if entry.state is State.WANTED]

    def _entry(self, before: Entry | None, lane: int, offset: int) -> Entry:
        """Return what stands for a batch: the same as before, as long as it is looked for."""
        if before is not None and before.key.offset == offset and before.state is State.WANTED:
            before.readers.clear()
            return before
        at = self._log.numbering.order.position(lane, offset)
        return Entry(Key(at, lane, offset, False), is_asked=True)


__all__ = ["Asks"]
