"""What one lane of a log does on this node: its lines, its plans, and what went wrong in it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.server.node.demand.ranked import Ranked
from penstock.server.node.demand.wanted import WantedBatch
from penstock.wire.errors import PenstockError

KEPT_PLANS = 64
"""Plans of past batches kept per lane: an evicted batch costs itself again, not a replay."""

PLANS_AHEAD = 8
"""Plans asked for at once where planning needs no processing."""

MAX_LINES_PER_LANE = 4
"""A lane has several lines when readers stand far apart; the least recently used one is closed."""

KEPT_EMPTIED = 1024
"""Offsets kept per lane of batches that quarantine has emptied: enough to see many in a row."""

MAX_STARTS = 16
"""Starts kept per lane for lines that are not open yet."""


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
        heading: The far offset that it was last sent to, several tickets away; -1 = none.
    """

    number: int
    worker: int
    lane: int
    start: int
    next: int
    used: int = 0
    busy: int = 0
    heading: int = -1

    def note_answered(self) -> None:
        """Note that one of its tickets was answered, or will never be."""
        self.busy -= 1


class LineStart(NamedTuple):
    """Where a new line may begin, decided and waiting for a worker with room."""

    offset: int
    snapshot: bytes | None


@dataclass(eq=False)
class LaneState:
    """What one lane of one log does here."""

    lane: int
    wanted: Ranked[WantedBatch] = field(default_factory=Ranked)  # by offset, then position
    lines: list[LineState] = field(default_factory=list)
    starts: dict[int, LineStart] = field(default_factory=dict)  # by the offset they were looked for
    looking: set[int] = field(default_factory=set)  # offsets for which the store is being asked
    planning: bool = False
    plans: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    error: PenstockError | None = None  # stopped for good
    planned_by: int | None = None  # the worker that has read the items of the latest plans
    planned: int = 0  # offsets below were planned, by whatever line, or given by another node
    planned_here: int = 0  # offsets below were planned by a worker of this node
    asked: int = 0  # offsets below were planned, or a worker was told to
    reserved: int = 0  # offsets below may be planned; only where other nodes share the store
    emptied: set[int] = field(default_factory=set)  # latest offsets whose every item was left out
    # What was being done when a worker died, by the offset that it was working for.
    deaths: dict[int, list[str]] = field(default_factory=dict)
    end: int | None = None  # how many batches it holds; recorded, or about to be
    gives_way: bool = False  # for a while after a death other lanes' batches go first

    # --- tickets ---

    def note_given(self, line: LineState, ticket: int, stop: int, *, plans: bool) -> None:
        """Note that a line was given a ticket.

        Args:
            line: The line, one of its own.
            ticket: The ticket's number.
            stop: The offset that the line reaches by it.
            plans: It plans batches for whichever worker will make them.
        """
        line.used, line.busy, line.next = ticket, line.busy + 1, stop
        self.planning = self.planning or plans
        self.asked = max(self.asked, stop)

    def note_not_planning(self) -> None:
        """Note that a ticket which plans was answered, or will never be."""
        self.planning = False

    def note_given_elsewhere(self, offset: int) -> None:
        """Note that readers were given what lies below an offset, maybe by another node."""
        self.planned = max(self.planned, offset)
        self.asked = max(self.asked, offset)

    def note_death(self, offset: int, doing: str) -> int:
        """Note that a worker has died at an offset; return how often it did, doing just this."""
        deaths = self.deaths.setdefault(offset, [])
        deaths.append(doing)
        self.gives_way = True
        return deaths.count(doing)

    # --- plans ---

    def note_planned(self, offset: int) -> None:
        """Note that a batch was planned: nobody looks for where to start for it any more."""
        self.starts.pop(offset, None)
        self.planned = max(self.planned, offset + 1)
        self.planned_here = max(self.planned_here, offset + 1)

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

    def remember_plan(self, offset: int, plan: bytes) -> None:
        """Keep a plan for a while: whoever wants this batch again has it made without a replay."""
        self.note_planned(offset)
        self.plans[offset] = plan
        self.plans.move_to_end(offset)
        while len(self.plans) > KEPT_PLANS:
            self.plans.popitem(last=False)

    def withhold(self) -> None:
        """Forget every plan, and where lines may start: its content is in doubt."""
        self.plans.clear()
        self.starts.clear()

    # --- lines ---

    def add_start(self, offset: int, start: LineStart) -> None:
        """Keep where a line for an offset may begin, in place of the one found longest ago."""
        while len(self.starts) >= MAX_STARTS:
            del self.starts[next(iter(self.starts))]
        self.starts[offset] = start

    def drop_starts(self, offset: int) -> None:
        """Forget what was to begin at an offset: the snapshot there is unusable."""
        for wanted in [wanted for wanted, start in self.starts.items() if start.offset == offset]:
            del self.starts[wanted]

    def idle_lines(self) -> list[LineState]:
        """Return the lines without a ticket, the one that was used least recently last."""
        idle = (line for line in self.lines if line.busy == 0)
        return sorted(idle, key=lambda line: line.used, reverse=True)

    def find_line(self, offset: int, reach: int) -> LineState | None:
        """Return the line that stands at or closest below `offset`, within `reach` batches."""
        below = [line for line in self.lines if 0 <= offset - line.next <= reach]
        return max(below, key=lambda line: line.next, default=None)

    @property
    def is_planned(self) -> bool:
        """Tell whether a worker plans batches of it now."""
        return self.planning or any(line.busy for line in self.lines)

    def has_ended(self, offset: int) -> bool:
        """Tell whether it ends at or before an offset, be that recorded yet or not."""
        return self.end is not None and offset >= self.end
