"""What a node knows of each log: who needs which batch, and what is ready. Books alone.

Demand is the union of what open readers may still take, their own positions below their horizon,
and a few positions beyond it: these are made but not sent, so that a worker stays busy while
another one makes the batch that holds up the horizon. A batch that is wanted becomes an `Entry`;
the node gives the most urgent of the `candidates`, by (position minus the reader's next), to a
worker that has room. What is ready and not yet taken is bounded in bytes, and the batch that some
reader is owed next is always admitted: else another lane's batches could fill the bound while
everybody waits for this one.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.server.job import Job
from penstock.server.node.entry import Entry, Key, State
from penstock.server.node.homes import Homes
from penstock.server.node.made import MadeOffsets
from penstock.server.node.reader import Reader
from penstock.server.node.spans import Span
from penstock.wire.errors import PenstockError
from penstock.wire.numbering import two_ends
from penstock.wire.order import Cut, Share

KEPT_PLANS = 64
"""Plans of past batches kept per lane: an evicted batch costs itself again, not a replay."""

KEPT_BATCHES, KEPT_SHARE = 64, 4
"""Sent batches kept for late readers: at most so many, and at most a quarter of the byte bound."""

MAX_LINES_PER_LANE = 4
"""A lane has several lines when readers stand far apart; the least recently used one is closed."""

KEPT_EMPTIED = 1024
"""Offsets kept per lane of batches that quarantine has emptied: enough to see many in a row."""

MAX_STARTS = 16
"""Starts kept per lane for lines that are not open yet."""

ELSEWHERE_SHARE = 0.01
"""How much more may be read from storage so that batches are compared with another worker's."""

FAR_AHEAD = 2
"""So many times as many positions are made ahead of readers where batches are small."""

PLANS_AHEAD = 8
"""Plans asked for at once where planning needs no processing."""


@dataclass(eq=False)
class LineState:
    """One line as the server process knows it.

    Attributes:
        number: Its number, unique in this process.
        worker: The worker that holds it.
        start: The offset that it was opened at.
        next: The offset that its planner reaches after every ticket given out so far.
        used: When it was last given a ticket, in tickets.
        busy: Tickets that it has not answered.
    """

    number: int
    worker: int
    lane: int
    start: int
    next: int
    used: int = 0
    busy: int = 0


class Candidate(NamedTuple):
    """A wanted batch that a worker may be given now, if it can go on with it.

    Attributes:
        urgency: Its position minus the next of the reader that needs it soonest; 0 = it is owed.
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


class Start(NamedTuple):
    """Where a new line may begin, decided and waiting for a worker with room."""

    offset: int
    snapshot: bytes | None


@dataclass(eq=False)
class LaneState:
    """What one lane of one log does here."""

    lane: int
    wanted: list[tuple[int, int, Key]] = field(
        default_factory=list
    )  # heap of (offset, position, key)
    lines: list[LineState] = field(default_factory=list)
    starts: dict[int, Start] = field(default_factory=dict)  # by the offset they were looked for
    looking: set[int] = field(default_factory=set)  # offsets for which the store is being asked
    planning: bool = False
    plans: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    error: PenstockError | None = None  # stopped for good
    planned_by: int | None = None  # the worker that has read the items of the latest plans
    planned: int = 0  # offsets below were planned, by whatever line, or given by another node
    asked: int = 0  # offsets below were planned, or a worker was told to
    emptied: set[int] = field(default_factory=set)  # latest offsets whose every item was left out
    # What was being done when a worker died, by the offset that it was working for.
    deaths: dict[int, list[str]] = field(default_factory=dict)
    end: int | None = None  # how many batches it holds; recorded, or about to be
    gives_way: bool = False  # for a while after a death other lanes' batches go first

    def note_planned(self, offset: int) -> None:
        """Note that a batch was planned: nobody looks for where to start for it any more."""
        self.starts.pop(offset, None)
        self.planned = max(self.planned, offset + 1)

    def note_emptied(self, offset: int, at_most: int) -> bool:
        """Note a batch without an item; tell whether there are `at_most` of them in a row."""
        self.emptied.add(offset)
        first, last = offset, offset
        while first - 1 in self.emptied:
            first -= 1
        while last + 1 in self.emptied:
            last += 1
        if len(self.emptied) > KEPT_EMPTIED:
            self.emptied.remove(min(self.emptied))
        return last - first + 1 >= at_most


class Log:
    """Everything that this node does for one job's log.

    Where a finite job ends may become known only as its lanes are planned. Until then batches are
    wanted, and made, at the positions that they have if no further lane ends before them; none is
    given to a reader before its position is known, and as a lane ends those after it move up. What
    nobody wants, but a position depends on, is asked for: it is planned, and not made.

    Args:
        job: The job.
        bound_bytes: The node's bound on bytes that are ready or being made; shared by its logs.
        ahead: How many positions beyond its horizon a reader's batches are made.
        ahead_bytes: As long as these take no more than this, up to `FAR_AHEAD` times as many are.

    Attributes:
        numbering: What is known of the log's order.
    """

    def __init__(self, job: Job, bound_bytes: int, ahead: int = 0, ahead_bytes: int = 0) -> None:
        self.job, self.bound_bytes = job, bound_bytes
        self._ahead, self._ahead_bytes = ahead, ahead_bytes
        self.numbering = job.numbering()
        self.lanes = [LaneState(n, end=self.numbering.end_of(n)) for n in range(job.lanes)]
        self.asks: dict[int, Entry] = {}  # by lane
        self.active: set[int] = set()  # lanes with something wanted
        self.entries: dict[Key, Entry] = {}
        self.kept: OrderedDict[Key, Entry] = OrderedDict()
        self.kept_bytes = 0
        self.readers: set[Reader] = set()
        self.ready_bytes = 0  # ready, for somebody
        self.lent_bytes = 0  # not kept any more, but still being written, or lent
        self.making = 0
        self.largest_bytes = self.largest_body_bytes = 0
        self.produced = self.recomputed = self.cache_hits = 0
        self.ticket_s = 0.0  # how long a ticket of this job usually takes
        self._highest: dict[int, int] = {}
        self.made = MadeOffsets()
        self.reading = job.distributor.reading()
        groups = None if self.reading is None else self.reading.groups
        self.homes = None if groups is None else Homes(groups)
        self._read_bytes = 0  # since a batch was last made by a worker that is not its group's
        self.deciding = 0  # verdicts under way: nothing new is planned before workers know them

    # --- demand ---

    @property
    def ahead(self) -> int:
        """Return how many positions beyond its horizon a reader's batches are made."""
        return made_ahead(self._ahead, self._ahead_bytes, self.largest_bytes)

    def open(
        self,
        share: Share,
        cut: Cut | None,
        start: int,
        lanes: frozenset[int] | None,
        wake: Callable[[], None],
    ) -> Reader:
        """Return a new reader."""
        reader = Reader(self, share, cut, start, lanes, wake)
        self.readers.add(reader)
        return reader

    def key(self, position: int, cut: Cut | None) -> Key:
        """Return what stands at a position, for a reader, if no further lane ends before it."""
        return Key(position, *self.numbering.assume(position, cut))

    def want(self, key: Key, reader: Reader) -> Entry:
        """Return the entry of a batch, wanted by this reader from now on."""
        entry = self.entries.get(key)
        if entry is None:
            entry = self.kept.pop(key, None)
            if entry is not None:
                self.kept_bytes -= entry.nbytes
                self.ready_bytes += entry.nbytes
                self.cache_hits += 1
            else:
                entry = Entry(key)
                lane = self.lanes[key.lane]
                if lane.error is not None:
                    entry.state, entry.error = State.FAILED, lane.error
                else:
                    self._queue(entry)
            self.entries[key] = entry
        entry.readers.add(reader)
        return entry

    def leave(self, entry: Entry, reader: Reader) -> None:
        """A reader has taken an entry, or wants it no more."""
        entry.readers.discard(reader)
        if entry.readers or self.entries.get(entry.key) is not entry:
            return
        if entry.state is State.MAKING:
            return  # it will be kept, or found unwanted, when it is done
        del self.entries[entry.key]
        if entry.state is State.READY:
            self.ready_bytes -= entry.nbytes
            self._keep(entry)

    def _queue(self, entry: Entry) -> None:
        entry.state = State.WANTED
        key = entry.key
        heapq.heappush(self.lanes[key.lane].wanted, (key.offset, key.position, key))
        self.active.add(key.lane)

    def _keep(self, entry: Entry) -> None:
        self.kept[entry.key] = entry
        self.kept_bytes += entry.nbytes
        limit = self.bound_bytes // KEPT_SHARE
        while self.kept and (len(self.kept) > KEPT_BATCHES or self.kept_bytes > limit):
            _, oldest = self.kept.popitem(last=False)
            self.kept_bytes -= oldest.nbytes
            self._free(oldest)

    def _free(self, entry: Entry) -> None:
        """Let an entry's memory go; until whoever still has it is done, it counts as lent."""
        if entry.evicted:
            return
        entry.free()
        if entry.span is not None:
            self.lent_bytes += entry.nbytes
            entry.gone = self._gone

    def _gone(self, entry: Entry) -> None:
        self.lent_bytes -= entry.nbytes

    # --- supply ---

    def first_wanted(self, lane: LaneState) -> Entry | None:
        """Return the wanted entry with the lowest offset of a lane."""
        while lane.wanted:
            entry = self.entries.get(lane.wanted[0][2])
            if entry is not None and entry.state is State.WANTED:
                return None if self.has_ended(lane, entry.key.offset) else entry
            heapq.heappop(lane.wanted)
        self.active.discard(lane.lane)
        return None

    def candidates(self) -> Iterator[Candidate]:
        """Yield every lane's, and every reader's, next wanted batch."""
        seen: set[Entry] = set()
        for number in list(self.active):
            found = self.candidate(self.lanes[number])
            if found is not None:
                seen.add(found.entry)
                yield found
        for reader in self.readers:
            # What a reader is owed next never waits behind what another wants of the same lane.
            entry = reader.owed
            if entry is None or entry.state is not State.WANTED or entry in seen:
                continue
            lane = self.lanes[entry.key.lane]
            if not self.has_ended(lane, entry.key.offset):
                seen.add(entry)
                yield Candidate(0, entry.key.position, self, entry, lane)
        for entry in self._asked():
            # As urgent as what is owed: it takes no room, and must not wait for what finds none.
            yield Candidate(0, entry.key.position, self, entry, self.lanes[entry.key.lane])

    def most_urgent(self) -> Candidate | None:
        """Return the wanted batch that somebody needs soonest."""
        return min(self.candidates(), key=lambda one: one.rank, default=None)

    def candidate(self, lane: LaneState) -> Candidate | None:
        """Return a lane's next wanted batch."""
        entry = self.first_wanted(lane)
        if entry is None:
            return None
        position = entry.key.position
        urgency = min(reader.urgency(entry) for reader in entry.readers)
        return Candidate(urgency, position, self, entry, lane)

    def admits(self, entry: Entry, busy_bytes: int) -> bool:
        """Tell whether a batch may be made now.

        Args:
            entry: The batch.
            busy_bytes: Bytes that are ready or reserved on the whole node.
        """
        if entry.is_asked or any(reader.owed is entry for reader in entry.readers):
            return True
        return busy_bytes + self.largest_bytes <= self.bound_bytes

    @property
    def busy_bytes(self) -> int:
        """Return the bytes that are ready or lent, plus what is reserved for batches being made."""
        held = self.ready_bytes + self.kept_bytes + self.lent_bytes
        return held + self.making * self.largest_bytes

    def shed(self) -> None:
        """Free what is only kept for late readers: there is pressure."""
        while self.kept:
            _, oldest = self.kept.popitem(last=False)
            self.kept_bytes -= oldest.nbytes
            self._free(oldest)

    def started(self, entry: Entry) -> None:
        """A worker makes this entry now."""
        entry.state = State.MAKING
        self.making += 1

    def ready(
        self,
        entry: Entry,
        header: bytes,
        nbytes: int,
        span: Span | None,
    ) -> None:
        """A batch exists, with a body of `nbytes` bytes: its completion message has arrived."""
        if entry.state is not State.MAKING:  # its lane was stopped meanwhile
            if span is not None:
                span.free()
            return
        self.making -= 1
        entry.state, entry.header, entry.span = State.READY, header, span
        # Strings and JSON lie in the header: it takes memory and a place in a message, too.
        entry.nbytes = nbytes + len(header)
        self.largest_bytes = max(self.largest_bytes, entry.nbytes)
        self.largest_body_bytes = max(self.largest_body_bytes, nbytes)
        lane = self.lanes[entry.key.lane]
        lane.deaths.pop(entry.key.offset, None)
        self.made.add(lane.lane, entry.key.offset)
        self.produced += 1
        if entry.key.offset <= self._highest.get(lane.lane, -1):
            self.recomputed += 1
        else:
            self._highest[lane.lane] = entry.key.offset
        if entry.readers:
            self.ready_bytes += entry.nbytes
            for reader in entry.readers:
                reader.settled(entry)
        else:
            self._forget(entry)
            self._keep(entry)

    def _forget(self, entry: Entry) -> None:
        """Take an entry out of the books; another one may stand there for the same batch."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]

    def remember_plan(self, lane: LaneState, offset: int, plan: bytes) -> None:
        """Keep a plan for a while: whoever wants this batch again has it made without a replay."""
        lane.note_planned(offset)
        lane.plans[offset] = plan
        lane.plans.move_to_end(offset)
        while len(lane.plans) > KEPT_PLANS:
            lane.plans.popitem(last=False)

    def failed(self, entry: Entry, error: PenstockError) -> None:
        """A batch cannot be made: whoever waits for it is told; who asks later tries again."""
        if entry.state is State.MAKING:
            self.making -= 1
        entry.state, entry.error = State.FAILED, error
        self._forget(entry)
        for reader in entry.readers:
            reader.settled(entry)

    # --- where lanes end ---

    def counted_ends(self) -> list[tuple[int, int]]:
        """Return the lanes whose ends were found out, where no arithmetic says them."""
        if not self.job.needs_counting:
            return []
        ends = ((lane, self.numbering.end_of(lane)) for lane in range(self.job.lanes))
        return [(lane, end) for lane, end in ends if end is not None]

    def has_ended(self, lane: LaneState, offset: int) -> bool:
        """Tell whether a lane ends at or before an offset, be that recorded yet or not."""
        return lane.end is not None and offset >= lane.end

    def reached(self, lane: int, batches: int) -> None:
        """Note that a lane holds at least so many batches: that may say where others stand.

        Raises:
            LogDiverged: It was known to hold fewer.
        """
        if self.numbering.is_complete and not self.numbering.is_finite:
            return
        self.numbering.reach(lane, batches)
        for reader in self.readers:
            reader.learned()

    def ends_at(self, lane: int, batches: int) -> None:
        """Note where a lane ends: nothing after that is made. No position depends on it yet.

        Raises:
            LogDiverged: It was found to end elsewhere, or holds more.
        """
        known = self.lanes[lane].end
        if known is None:
            self.numbering.check_end(lane, batches)
            self.lanes[lane].end = batches
        elif known != batches:
            raise two_ends(lane, known, batches)

    def ended(self, lane: int, batches: int) -> None:
        """Note that the end of a lane is recorded: what comes after it moves up."""
        first = self.numbering.known()
        self.numbering.end(lane, batches)
        for books in (self.entries, self.kept):
            for entry in [each for each in books.values() if each.key.position >= first]:
                del books[entry.key]
                self._move(entry, books)
        for reader in list(self.readers):
            reader.renumber(first)

    def _move(self, entry: Entry, books: dict[Key, Entry]) -> None:
        """Put an entry to where it stands now, unless it turned out that it stands nowhere."""
        _, lane, offset, _ = entry.key
        if self.has_ended(self.lanes[lane], offset):
            return
        entry.key = entry.key._replace(position=self.numbering.order.position(lane, offset))
        books[entry.key] = entry
        if entry.state is State.WANTED:
            self._queue(entry)

    def _asked(self) -> Iterator[Entry]:
        """Yield what is to be planned for readers who wait to know their positions.

        Not of a lane of which a line is at work: its answer may say it.
        """
        if self.numbering.is_complete:
            return
        before, self.asks = self.asks, {}
        for reader in self.readers:
            position = reader.lacks
            for number, offset in () if position is None else self.numbering.missing(position):
                lane = self.lanes[number]
                if self.is_planned(lane) or self.has_ended(lane, offset):
                    continue
                entry = self.asks.get(number) or before.get(number)
                if entry is None or entry.key.offset != offset or entry.state is State.FAILED:
                    at = self.numbering.order.position(number, offset)
                    entry = Entry(Key(at, number, offset, False), is_asked=True)
                self.asks[number] = entry
                entry.readers.add(reader)
                if lane.error is not None:
                    self.failed(entry, lane.error)
        yield from [entry for entry in self.asks.values() if entry.state is State.WANTED]

    def is_planned(self, lane: LaneState) -> bool:
        """Tell whether a worker plans batches of a lane now."""
        return lane.planning or any(line.busy for line in lane.lines)

    # --- what comes back ---

    def back(self, entry: Entry) -> None:
        """The worker that made this entry is gone: somebody else shall make it."""
        if entry.state is not State.MAKING:  # its lane was stopped meanwhile
            return
        self.making -= 1
        if entry.readers:
            self._queue(entry)
        else:
            self._forget(entry)

    def wants(self, entry: Entry) -> bool:
        """Tell whether somebody still waits for this entry to be made."""
        known = self.asks.get(entry.key.lane) if entry.is_asked else self.entries.get(entry.key)
        return entry.state is State.WANTED and known is entry

    def stop_lane(self, lane: LaneState, error: PenstockError) -> None:
        """Stop a lane by name: nothing of it is made until the node starts again."""
        lane.error = error
        for entry in [e for e in self.entries.values() if e.key.lane == lane.lane]:
            if entry.state in (State.WANTED, State.MAKING):
                self.failed(entry, error)

    def withhold(self, lane: LaneState, error: PenstockError) -> None:
        """Stop a lane whose content is in doubt: what is ready and not sent goes to nobody."""
        self.stop_lane(lane, error)
        for entry in [e for e in self.kept.values() if e.key.lane == lane.lane]:
            del self.kept[entry.key]
            self.kept_bytes -= entry.nbytes
            self._free(entry)
        for entry in [e for e in self.entries.values() if e.key.lane == lane.lane]:
            self.ready_bytes -= entry.nbytes
            self._free(entry)
            self.failed(entry, error)
        lane.plans.clear()
        lane.starts.clear()

    # --- lines ---

    def find_line(self, lane: LaneState, offset: int, reach: int) -> LineState | None:
        """Return the line that stands at or closest below `offset`, within `reach` batches."""
        below = [line for line in lane.lines if 0 <= offset - line.next <= reach]
        return max(below, key=lambda line: line.next, default=None)

    def home(self, lane: int) -> int | None:
        """Return the worker that the lanes of this lane's reading group belong to.

        None = any worker may have any lane.
        """
        if self.homes is None:
            return None
        assert self.reading is not None
        assert self.reading.groups is not None
        return self.homes.of(lane % self.reading.groups)

    def note_read(self, nbytes: int) -> None:
        """Note what a worker has read from storage."""
        self._read_bytes += nbytes

    def may_read_elsewhere(self) -> bool:
        """Tell whether a worker may make a batch of another one's group: it reads its blocks.

        Where that adds no more than `ELSEWHERE_SHARE` to what is read, as far as that is known;
        then it counts from here.
        """
        if self.homes is None:
            return True
        assert self.reading is not None
        needed = (self.reading.blocks or 0) * self.reading.stored_bytes
        if not needed or self._read_bytes * ELSEWHERE_SHARE < needed:
            return False
        self._read_bytes = 0
        return True

    def lines_of(self, worker: int) -> int:
        """Return how many lines a worker holds for this log."""
        return sum(1 for lane in self.lanes for line in lane.lines if line.worker == worker)

    def drop_lines(self, worker: int) -> None:
        """Forget the lines of a worker that is gone."""
        for lane in self.lanes:
            lane.lines = [line for line in lane.lines if line.worker != worker]


def made_ahead(least: int, nbytes: int, batch_bytes: float) -> int:
    """Return how many positions are made ahead of a reader.

    Args:
        least: So many in any case, and at most `FAR_AHEAD` times as many.
        nbytes: What those beyond `least` may take, together with these.
        batch_bytes: What one batch takes.
    """
    return max(least, min(FAR_AHEAD * least, int(nbytes / max(1.0, batch_bytes))))


__all__ = [
    "FAR_AHEAD",
    "KEPT_PLANS",
    "MAX_LINES_PER_LANE",
    "PLANS_AHEAD",
    "Candidate",
    "LaneState",
    "LineState",
    "Log",
    "Start",
    "made_ahead",
]
