"""What no reader wants, and positions depend on: it is planned, to learn where a lane ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.server.node.entry import Entry, Key, State
from penstock.server.node.lanes import LaneState
from penstock.server.node.reader import Reader
from penstock.wire.numbering import Numbering


class Asks:
    """The batches of one log that are asked for, one of a lane at most.

    Args:
        numbering: What is known of the log's order.
        lanes: Its lanes.
    """

    def __init__(self, numbering: Numbering, lanes: Sequence[LaneState]) -> None:
        self._numbering, self._lanes = numbering, lanes
        self._entries: dict[int, Entry] = {}  # by lane

    def holds(self, entry: Entry) -> bool:
        """Tell whether an entry is still asked for."""
        return self._entries.get(entry.key.lane) is entry

    def look(self, readers: Iterable[Reader]) -> Iterator[Entry]:
        """Yield what is to be planned for readers who wait to know their positions.

        Not of a lane of which a line is at work: its answer may say it.
        """
        if self._numbering.is_complete:
            return
        before, self._entries = self._entries, {}
        for reader in readers:
            position = reader.lacks
            for number, offset in () if position is None else self._numbering.missing(position):
                lane = self._lanes[number]
                if lane.is_planned or lane.has_ended(offset):
                    continue
                entry = self._entries.get(number) or before.get(number)
                if entry is None or entry.key.offset != offset or entry.state is State.FAILED:
                    at = self._numbering.order.position(number, offset)
                    entry = Entry(Key(at, number, offset, False), is_asked=True)
                self._entries[number] = entry
                entry.readers.add(reader)
                if lane.error is not None:
                    entry.fail(lane.error)
        yield from [entry for entry in self._entries.values() if entry.state is State.WANTED]


__all__ = ["Asks"]
