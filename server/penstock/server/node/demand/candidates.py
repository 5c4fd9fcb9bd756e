"""Which wanted batch a worker is given next: the one that a reader needs soonest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.peers import Peer
from penstock.server.node.demand.wanted import BatchState, WantedBatch


class Candidate(NamedTuple):
    """A wanted batch that a worker may be given now, if it can go on with it.

    Attributes:
        urgency: Its position minus the next of the reader that needs it soonest; 0 = it is needed
            next.
        position: Its position.
        peer: Who needs it soonest.
    """

    urgency: int
    position: int
    log: Log
    entry: WantedBatch
    lane: LaneState
    peer: Peer

    @property
    def suspect(self) -> bool:
        """Tell whether a worker has ended over this batch: it may end the next one, too."""
        return self.entry.key.offset in self.lane.deaths

    @property
    def gives_way(self) -> bool:
        """Tell whether it lets others by: it has ended a worker a moment ago."""
        return self.lane.gives_way and self.suspect

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Return what the most urgent one of a log, and of a host, has least of.

        Where only positions differ, hosts take turns.
        """
        return self.gives_way, self.urgency, self.position


def first_wanted(log: Log, lane: LaneState) -> WantedBatch | None:
    """Return the wanted entry with the lowest offset of a lane."""
    while (entry := lane.wanted.first()) is not None:
        if entry.state is BatchState.WANTED and log.entries.get(entry.key) is entry:
            return None if lane.has_ended(entry.key.offset) else entry
        lane.wanted.discard(entry)
    log.active.discard(lane.lane)
    return None


def candidates(log: Log, *, has_room: bool = False) -> Iterator[Candidate]:
    """Yield every lane's, and every reader's, next wanted batch.

    Args:
        log: The ledger.
        has_room: There is room for what nobody needs yet.
    """
    seen: set[WantedBatch] = set()
    for number in list(log.active):
        found = candidate_of(log, log.lanes[number])
        if found is not None:
            seen.add(found.entry)
            yield found
    for reader in log.readers:
        # What a reader is owed next never waits behind what another wants of the same lane.
        entry = reader.next_pending
        if entry is None or entry.state is not BatchState.WANTED or entry in seen:
            continue
        lane = log.lanes[entry.key.lane]
        if not lane.has_ended(entry.key.offset):
            seen.add(entry)
            yield Candidate(0, entry.key.position, log, entry, lane, reader.peer)
    for entry in log.pending_plans.wanted(log.readers):
        lane, peer = log.lanes[entry.key.lane], next(iter(entry.readers)).peer
        held = first_wanted(log, lane) if has_room else None
        if held is not None and held.key.offset <= entry.key.offset:
            # It is known when it is made; if it was planned alone it would be processed twice.
            yield Candidate(0, held.key.position, log, held, lane, peer)
            continue
        # As urgent as what is owed: it takes no room, and must not wait for what finds none.
        yield Candidate(0, entry.key.position, log, entry, lane, peer)


def most_urgent(log: Log) -> Candidate | None:
    """Return the wanted batch that a reader needs soonest."""
    return min(candidates(log), key=lambda found: found.rank, default=None)


def candidate_of(log: Log, lane: LaneState) -> Candidate | None:
    """Return a lane's next wanted batch."""
    entry = first_wanted(log, lane)
    if entry is None:
        return None
    reader = entry.nearest
    return Candidate(reader.urgency(entry), entry.key.position, log, entry, lane, reader.peer)
