"""Which wanted batch a worker is given next: the one that a reader needs soonest."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from penstock.server.node.books import Log
from penstock.server.node.entry import Entry, State
from penstock.server.node.lanes import LaneState


class Candidate(NamedTuple):
    """A wanted batch that a worker may be given now, if it can go on with it.

    Attributes:
        urgency: Its position minus the next of the reader that needs it soonest; 0 = it is needed
            next.
        position: Its position.
    """

    urgency: int
    position: int
    log: Log
    entry: Entry
    lane: LaneState

    @property
    def suspect(self) -> bool:
        """Tell whether a worker has ended over this batch: it may end the next one, too."""
        return self.entry.key.offset in self.lane.deaths

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Return what the most urgent one has least of: what has ended a worker lets others by."""
        return self.suspect and self.lane.gives_way, self.urgency, self.position


def first_wanted(log: Log, lane: LaneState) -> Entry | None:
    """Return the wanted entry with the lowest offset of a lane."""
    while lane.wanted:
        entry = log.entries.get(lane.wanted[0][2])
        if entry is not None and entry.state is State.WANTED:
            return None if lane.has_ended(entry.key.offset) else entry
        heapq.heappop(lane.wanted)
    log.active.discard(lane.lane)
    return None


def candidates(log: Log) -> Iterator[Candidate]:
    """Yield every lane's, and every reader's, next wanted batch."""
    seen: set[Entry] = set()
    for number in list(log.active):
        found = candidate_of(log, log.lanes[number])
        if found is not None:
            seen.add(found.entry)
            yield found
    for reader in log.readers:
        # What a reader is owed next never waits behind what another wants of the same lane.
        entry = reader.owed
        if entry is None or entry.state is not State.WANTED or entry in seen:
            continue
        lane = log.lanes[entry.key.lane]
        if not lane.has_ended(entry.key.offset):
            seen.add(entry)
            yield Candidate(0, entry.key.position, log, entry, lane)
    for entry in log.asks.wanted(log.readers):
        # As urgent as what is owed: it takes no room, and must not wait for what finds none.
        yield Candidate(0, entry.key.position, log, entry, log.lanes[entry.key.lane])


def most_urgent(log: Log) -> Candidate | None:
    """Return the wanted batch that a reader needs soonest."""
    return min(candidates(log), key=lambda found: found.rank, default=None)


def candidate_of(log: Log, lane: LaneState) -> Candidate | None:
    """Return a lane's next wanted batch."""
    entry = first_wanted(log, lane)
    if entry is None:
        return None
    position = entry.key.position
    urgency = min(reader.urgency(entry) for reader in entry.readers)
    return Candidate(urgency, position, log, entry, lane)


__all__ = ["Candidate", "candidate_of", "candidates", "first_wanted", "most_urgent"]
