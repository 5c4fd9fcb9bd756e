"""A line: the roles at work for one lane, in one process."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.maker import Maker
from penstock.server.pipeline.planner import open_planner
from penstock.server.pipeline.writing import MadeBatch
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadSnapshot, LaneStarved, PastEnd, PositionFar
from penstock.wire.frame import with_position
from penstock.wire.numbering import Located

logger = logging.getLogger("penstock")

Samples = Mapping[tuple[ItemRef, int], Sample]
"""By (item, part)."""


class _Planned(NamedTuple):
    """A batch that was planned ahead, and is to be made."""

    plan: BatchPlan
    samples: Samples


TELL_EVERY = 16
"""Batches planned between two messages about how many are left."""


class Line:
    """A planner and a maker for one lane.

    Args:
        job: The job.
        lane: The lane.
        items: Fetches and processes for both; None = new ones.
        snapshot: Where to start; None = at offset 0.

    Attributes:
        reported_mark: The planner's mark of what was last told to whoever adds it up.
        reported_end: It was told where the lane ends.
        emptied: How many of the last batches, in a row, quarantine has emptied.
        kept_plans: Of so many batches the plans are kept: what fills the last step of a log is made
            of these.

    Glossary:
        line: The roles at work for one lane: a planner, in order, and makers, in any order.
    """

    def __init__(
        self, job: Job, lane: int, items: Items | None = None, snapshot: bytes | None = None
    ) -> None:
        self.job, self.lane = job, lane
        self.items = items or Items(job)
        self.planner = open_planner(job, lane, self.items)
        self.maker = Maker(job, self.items, goes_on=True)
        if snapshot is not None:
            self.planner.restore(snapshot)
        self._ahead: deque[_Planned] = deque()
        self._samples: Samples | None = None  # those of the latest plan, if it was planned ahead
        self.kept_plans = 0
        self._plans: OrderedDict[int, BatchPlan] = OrderedDict()
        self.reported_mark = self.planner.count_mark()
        self.emptied, self.reported_end = 0, False

    def counters(self) -> dict[str, int]:
        """Return what the planner and its batcher have counted since the lane's beginning."""
        return self.planner.counts()

    def counters_before(self) -> dict[str, int]:
        """Return what was counted up to where it began, or was last sent by arithmetic."""
        return self.planner.counts_before()

    @property
    def offset(self) -> int:
        """Return the offset of the next plan."""
        return self.planner.offset - len(self._ahead)

    @property
    def end(self) -> int | None:
        """Return how many batches the lane holds; None = that is not known yet."""
        return self.planner.end

    def look(self, offset: int, kept: int) -> None:
        """Plan ahead until it is known whether the lane holds a batch at an offset.

        Args:
            offset: Which.
            kept: So many of the latest plans are kept until they are made, with their samples:
                a line cannot go back to what was planned before these.
        """
        while self.planner.offset <= offset and (plan := self.planner.next()) is not None:
            refs = ((ref.item, ref.part) for row in plan.rows for ref in row)
            held = self.planner.samples
            self._ahead.append(_Planned(plan, {key: held[key] for key in refs if key in held}))
            self.planner.forget()
            if len(self._ahead) > kept:
                self._ahead.popleft()

    def advance(self) -> BatchPlan:
        """Return the next plan; its samples stay at hand until the next call.

        Raises:
            PastEnd: The lane is over.
        """
        if self._ahead:
            plan, self._samples = self._ahead.popleft()
            return plan
        self._samples, following = None, self.planner.next()
        if following is None:
            raise PastEnd(
                f"lane {self.lane} of job {self.job.name!r} holds {self.planner.offset} batches, "
                f"so it has no offset {self.planner.offset}",
                lane=self.lane,
                batches=self.planner.offset,
            )
        return following

    def has_plan(self, offset: int) -> bool:
        """Tell whether the batch at an offset can be made, although the line is beyond it."""
        return offset in self._plans

    def plan_at(self, offset: int) -> BatchPlan:
        """Return the plan at an offset: one that was kept, or the next, after those on the way."""
        if offset in self._plans:
            self._samples = {}
            return self._plans[offset]
        self.skip_to(offset)
        plan = self.advance()
        if self.kept_plans:
            self._plans[offset] = plan
            while len(self._plans) > self.kept_plans:
                self._plans.popitem(last=False)
        return plan

    def skip_to(self, offset: int, tell: Callable[[int], None] | None = None) -> None:
        """Plan batches that nobody wants until `offset` is next, or go there by arithmetic.

        Args:
            offset: Where to.
            tell: Told now and then how many batches are still to be planned.
        """
        if offset == self.offset:
            return
        if self.planner.can_seek():
            self._ahead.clear()
            self.planner.seek(offset)
        while self.offset < offset:
            if tell is not None and self.offset % TELL_EVERY == 0:
                tell(offset - self.offset)
            self.advance()
            self.planner.forget()

    def make(self, plan: BatchPlan, *, blank: bool = False) -> MadeBatch:
        """Return the batch of a plan, from the samples at hand where they are."""
        if self._samples is not None:
            return self.maker.make(plan, self._samples, (), blank=blank)
        coming, samples = self.planner.coming(plan), self.planner.samples
        made = self.maker.make(plan, samples, coming, blank=blank)
        if samples:
            self.planner.forget()
        return made


Nearest = Callable[[int, int], bytes | None]
"""`(lane, offset) -> snapshot`: the nearest one at or below, None where there is none."""


LONG_REPLAY = 1000
"""Batches planned again from which on people are told why it takes long: up to a second or so."""


def replay_cost(lane: int, begins: int, offset: int, why: str) -> str:
    """Return a sentence for people about a long way to an offset; "" where it is short.

    Args:
        lane: The lane, which arithmetic does not lead along.
        begins: The offset that it is planned from.
        offset: Where to.
        why: Why there is no nearer snapshot.
    """
    ahead = offset - begins
    if ahead < LONG_REPLAY:
        return ""
    return f"{ahead:,} batches of lane {lane} are planned again to reach offset {offset:,}: {why}"


def nearest_line(
    job: Job, lane: int, offset: int, items: Items, line: Line | None, nearest: Nearest
) -> Line:
    """Return the line from which an offset is reached with the fewest batches planned again.

    What it gives is the same whichever it is: a snapshot only accelerates.

    Args:
        job: The job.
        lane: The lane.
        offset: Where to; at most `snapshot_every` batches on, nobody is asked.
        items: What a new line works with.
        line: One of this lane that may go on.
        nearest: Where snapshots are found.
    """
    if line is None or line.offset > offset:
        line = Line(job, lane, items)
    if offset - line.offset <= job.snapshot_every or line.planner.can_seek():
        return line
    data = nearest(lane, offset)
    if data is None:
        return line
    try:
        restored = Line(job, lane, items, data)
    except BadSnapshot as error:
        logger.debug("a snapshot is not used: %s", error)
        return line
    # Items that a verdict has removed are there in a replay by a process that does not know it.
    known = max((verdict.number for verdict in items.verdicts), default=0)
    usable = line.offset < restored.offset <= offset and restored.planner.last_verdict <= known
    return restored if usable else line


class Computed(NamedTuple):
    """A batch in this process: what a server would send.

    Attributes:
        header: The serialized `BatchHeader`, with its position.
        body: The body's bytes.
        plan: What it was made of, where it was made just now.
    """

    header: bytes
    body: bytearray
    plan: BatchPlan | None = None


MAX_EMPTIED = 64
"""Batches in a row of one lane that quarantine has emptied: then it stops, for nothing is left to
train on, whatever the budget."""


def compute(
    job: Job,
    position: int,
    located: Located | None = None,
    line: Line | None = None,
    *,
    filler: bool = False,
) -> Computed:
    """Return exactly the batch at a position, without a server.

    Args:
        job: The job.
        position: Its number in the job.
        located: What stands there; None = what the job knows by itself.
        line: A line of the batch's lane at or below its offset, to go on from.
        filler: Blank it, for a rank that has too few batches of the step.

    Raises:
        PastEnd: The log holds no such position.
        PositionFar: Too many batches would have to be planned first.
        LaneStarved: Nothing but padding has come of the line for too long.
    """
    lane, offset, blanked = located or job.locate(position)
    if line is None or line.lane != lane or (line.offset > offset and not line.has_plan(offset)):
        line = Line(job, lane)
    check_reachable(job, line, offset)
    made = line.make(line.plan_at(offset), blank=blanked or filler)
    line.emptied = line.emptied + 1 if made.emptied else 0
    if line.emptied >= MAX_EMPTIED:
        raise only_padding(job, line.lane, offset)
    body = bytearray(made.nbytes)
    header = made.write(memoryview(body))
    return Computed(with_position(header, position), body)


def check_reachable(job: Job, line: Line, offset: int) -> None:
    """Refuse an offset that would need too long a replay.

    Raises:
        PositionFar: It is more than `max_replay` batches ahead and arithmetic does not lead there.
    """
    if offset - line.offset > job.max_replay and not line.planner.can_seek():
        raise far(job, line.lane, offset, line.offset)


def only_padding(job: Job, lane: int, offset: int) -> LaneStarved:
    """Return the error for a lane that yields nothing but padding."""
    return LaneStarved(
        f"lane {lane} of job {job.name!r} stopped at offset {offset}: every item of its last "
        f"{MAX_EMPTIED} batches was left out, so it gives nothing but padding; look at the data "
        "(`penstock quarantine` lists what was left out, and why)",
        lane=lane,
        offset=offset,
        drawn=MAX_EMPTIED,
        reasons={"batches without an item": MAX_EMPTIED},
    )


def far(job: Job, lane: int, offset: int, nearest: int) -> PositionFar:
    """Return the error for an offset that lies too far beyond the nearest known state."""
    return PositionFar(
        f"offset {offset} of lane {lane} of job {job.name!r} is {offset - nearest} batches beyond "
        f"the nearest snapshot, and at most max_replay = {job.max_replay} are planned again; start "
        "nearer, or raise max_replay in the job",
        lane=lane,
        offset=offset,
        nearest=nearest,
        max_replay=job.max_replay,
    )
