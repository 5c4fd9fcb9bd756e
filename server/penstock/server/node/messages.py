"""Everything that the server process and a worker say to each other, and who says it when.

A message is a value. `penstock.server.node.channel` makes bytes of it and back by the types of its
fields, `penstock.server.node.port` carries it, and both sides tell messages apart by `match`. What
a worker says is held against what it was asked by `penstock.server.node.check`.

They are not frozen, although nobody changes them: to make a frozen one takes four times as long,
and to make its class, in every process that starts, twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.server.core.verdict import Verdict
from penstock.server.node.memory import Descriptor


class Snapshot(NamedTuple):
    """The snapshot of a line at an offset."""

    offset: int
    data: bytes


class LineSnapshot(NamedTuple):
    """Where a line of a worker stands, and the snapshot from which it goes on elsewhere."""

    line: int
    offset: int
    data: bytes


class Body(NamedTuple):
    """Where the body of a batch lies, as it travels, and how long it is when it is completed."""

    arena: int
    start: int
    nbytes: int
    completed_bytes: int


# --- what the server process says ----------------------------------------------------------------


@dataclass(slots=True)
class KnowJob:
    """Sent before anything else about a job.

    Attributes:
        log_id: Its log: what the worker builds must be the same.
        definition: What it is built from, as `penstock.server.jobs.definition` writes it.
        lane_ends: Lanes with how many batches they hold, of those where that was found out.
        workers: How many workers the node has: they share the memory for what is kept.
        verdicts: All that hold.
        set_up: Set up the roles at once, for the readers to come; answered by `SetUp`.
    """

    log_id: bytes
    definition: bytes
    lane_ends: tuple[tuple[int, int], ...]
    workers: int
    verdicts: tuple[Verdict, ...]
    set_up: bool


@dataclass(slots=True)
class Learn:
    """Sent with every news about the verdicts of a job that the worker knows."""

    log_id: bytes
    verdicts: tuple[Verdict, ...]


@dataclass(slots=True)
class OpenLine:
    """Sent before the first ticket for a line, which begins at a snapshot or at offset 0."""

    line: int
    log_id: bytes
    lane: int
    snapshot: bytes | None


@dataclass(slots=True)
class CloseLine:
    """Sent when a line is not needed any more, or its state cannot be trusted."""

    line: int


@dataclass(slots=True)
class Produce:
    """A ticket: plan the batch at an offset of a line and make it. Answered by `Done`.

    Attributes:
        ticket: Its number; the answer, or a `TicketFailed`, names it.
        careful: Work item by item: the last worker that was asked for this has ended.
        blank: Make the padding batch of these shapes.
    """

    ticket: int
    log_id: bytes
    lane: int
    offset: int
    careful: bool
    line: int
    blank: bool


@dataclass(slots=True)
class Plan:
    """A ticket: plan up to `count` batches from an offset of a line on. Answered by `Planned`."""

    ticket: int
    log_id: bytes
    lane: int
    offset: int
    careful: bool
    line: int
    count: int


@dataclass(slots=True)
class Make:
    """A ticket: make the batch of a plan, which any worker can. Answered by `Done`."""

    ticket: int
    log_id: bytes
    lane: int
    offset: int
    careful: bool
    blank: bool
    plan: bytes


@dataclass(slots=True)
class Verify:
    """Sent for one batch in many: make it once more. Answered by `Verified` or `VerifyFailed`.

    Attributes:
        check: The number of the comparison.
        plan: Its plan; None = arithmetic leads to it.
    """

    check: int
    log_id: bytes
    lane: int
    offset: int
    blank: bool
    plan: bytes | None


@dataclass(slots=True)
class TakeSnapshots:
    """Sent as the node drains. Answered by `Snapshots` or `SnapshotsFailed`."""


@dataclass(slots=True)
class Free:
    """Sent before other messages, or soon: nobody reads these batches any more.

    Attributes:
        spans: Of each the arena and the start.
    """

    spans: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Hurry:
    """Sent where another job waits for a worker that tries a read of this one again and again."""

    log_id: bytes


@dataclass(slots=True)
class Judged:
    """The answer to `Judge`: the verdict that holds, in the store and for every worker."""

    verdict: Verdict


@dataclass(slots=True)
class Refused:
    """The answer to `Judge` where the store refuses the verdict: an error by its code."""

    code: str
    message: str
    fields: Mapping[str, Any]


FromServer = (
    KnowJob
    | Learn
    | OpenLine
    | CloseLine
    | Produce
    | Plan
    | Make
    | Verify
    | TakeSnapshots
    | Free
    | Hurry
    | Judged
    | Refused
)
"""What a worker hears."""

Ticketed = Produce | Plan | Make
"""What asks for an answer that names its ticket."""


# --- what a worker says --------------------------------------------------------------------------


@dataclass(slots=True)
class Ready:
    """Said once, when the worker has started."""


@dataclass(slots=True)
class SetUp:
    """Said when the roles of a job are set up that nobody reads yet."""


@dataclass(slots=True)
class NewArena:
    """Said before the first batch that lies in an arena.

    Attributes:
        number: The lowest that no arena of the worker has.
        memory: The arena's memory.
    """

    number: int
    size_bytes: int
    memory: Descriptor


@dataclass(slots=True)
class GoneArena:
    """Said of an arena in which nothing lies: the worker writes there no more, and has unmapped it.

    Attributes:
        number: Its number.
    """

    number: int


@dataclass(slots=True)
class Done:
    """Said when a batch is made.

    Attributes:
        body: Where its body lies; None = it has no byte.
        header: The serialized `BatchHeader`, without a position.
        plan: Its plan; None where the server process has it, or does not need it.
        counts: What the collator has counted.
        emptied: Every item of it was left out.
        snapshots: Of the way to it.
        exits: Samples that making it left out, or found larger or smaller than told, by reason.
    """

    ticket: int
    body: Body | None
    header: bytes
    plan: bytes | None
    counts: Mapping[str, int]
    emptied: bool
    snapshots: tuple[Snapshot, ...]
    exits: Mapping[str, int]


@dataclass(slots=True)
class Planned:
    """Said when batches are planned.

    Attributes:
        plans: One or more, from the offset that was asked for on.
        broken: The plan after these fails: it says why when it is asked for itself.
        snapshots: Of the way to the first of them, and past the others.
    """

    ticket: int
    plans: tuple[bytes, ...]
    broken: bool
    snapshots: tuple[Snapshot, ...]


@dataclass(slots=True)
class TicketFailed:
    """Said where a ticket cannot be answered: an error by its code."""

    ticket: int
    code: str
    message: str
    fields: Mapping[str, Any]


@dataclass(slots=True)
class LineFailed:
    """Said where a line does not open."""

    line: int
    log_id: bytes
    code: str
    message: str
    fields: Mapping[str, Any]


@dataclass(slots=True)
class JobFailed:
    """Said where a job cannot be built or set up."""

    log_id: bytes
    code: str
    message: str
    fields: Mapping[str, Any]


@dataclass(slots=True)
class VerifyFailed:
    """Said where a batch cannot be made once more."""

    log_id: bytes
    code: str
    message: str
    fields: Mapping[str, Any]


@dataclass(slots=True)
class SnapshotsFailed:
    """Said where the lines of a worker give no snapshots."""

    code: str
    message: str
    fields: Mapping[str, Any]


Failed = TicketFailed | LineFailed | JobFailed | VerifyFailed | SnapshotsFailed
"""What carries an error."""


@dataclass(slots=True)
class Verified:
    """Said when a batch was made once more: its header holds the checksum of its body."""

    check: int
    header: bytes


@dataclass(slots=True)
class Snapshots:
    """Said when all lines have told where they are."""

    lines: tuple[LineSnapshot, ...]


@dataclass(slots=True)
class Judge:
    """Said where an item failed twice: the worker waits until its verdict is durable.

    Attributes:
        line: The line that was planning or making; None = a batch was made from its plan.
    """

    log_id: bytes
    line: int | None
    verdict: Verdict


@dataclass(slots=True)
class Warned:
    """Said where something is wrong that makes nothing fail: the server process logs it."""

    text: str


@dataclass(slots=True)
class Cost:
    """Said before an answer: what the batches of a job took since the last time.

    Attributes:
        batches: How many.
        stages_s: Seconds by stage.
        read_bytes: What the sources have read since the last time.
        drawn: How many items were drawn.
        retries: How often something was tried again, by why.
    """

    log_id: bytes
    batches: int
    stages_s: Mapping[str, float]
    read_bytes: int
    drawn: int
    retries: Mapping[str, int]


@dataclass(slots=True)
class Counted:
    """Said before an answer: what a line's planner has counted, where that is news.

    Attributes:
        counters: Since the lane's beginning, by name.
        before: What was counted up to where the line began.
    """

    log_id: bytes
    lane: int
    counters: Mapping[str, int]
    before: Mapping[str, int]


@dataclass(slots=True)
class LaneEnds:
    """Said once for each line of a finite job, before an answer: its planner has met the end.

    Attributes:
        batches: How many batches the lane holds.
        in_vain: What was counted of the lane, by name, where that is none.
    """

    log_id: bytes
    lane: int
    batches: int
    in_vain: Mapping[str, int]


@dataclass(slots=True)
class Libraries:
    """Said before a job's first batch, which has imported what it needs: versions by library."""

    log_id: bytes
    versions: Mapping[str, str]


FromWorker = (
    Done
    | Planned
    | Cost
    | Counted
    | LaneEnds
    | TicketFailed
    | LineFailed
    | JobFailed
    | VerifyFailed
    | SnapshotsFailed
    | NewArena
    | GoneArena
    | Libraries
    | Judge
    | Warned
    | Verified
    | Snapshots
    | Ready
    | SetUp
)
"""What the server process hears."""

Message = FromServer | FromWorker


__all__ = [
    "Body",
    "CloseLine",
    "Cost",
    "Counted",
    "Done",
    "Failed",
    "Free",
    "FromServer",
    "FromWorker",
    "GoneArena",
    "Hurry",
    "JobFailed",
    "Judge",
    "Judged",
    "KnowJob",
    "LaneEnds",
    "Learn",
    "Libraries",
    "LineFailed",
    "LineSnapshot",
    "Make",
    "Message",
    "NewArena",
    "OpenLine",
    "Plan",
    "Planned",
    "Produce",
    "Ready",
    "Refused",
    "SetUp",
    "Snapshot",
    "Snapshots",
    "SnapshotsFailed",
    "TakeSnapshots",
    "TicketFailed",
    "Ticketed",
    "Verified",
    "Verify",
    "VerifyFailed",
    "Warned",
]
