"""Everything that the server process and a worker say to each other, and who says it when.

A message is a value. `penstock.server.node.protocol.channel` makes bytes of it and back, and
refuses what is not of the types and within the bounds that stand here;
`penstock.server.node.protocol.message_port` carries it, and both sides tell messages apart by
`match`. What a worker says is compared with what it was asked by
`penstock.server.node.protocol.message_check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from penstock.server.core.verdict import Verdict
from penstock.server.processes.shared_memory import Descriptor
from penstock.wire.frame import MAX_HEADER_BYTES
from penstock.wire.order import MAX_POSITION

Whole = Annotated[int, Meta(ge=0, le=MAX_POSITION)]
Positive = Annotated[int, Meta(ge=1, le=MAX_POSITION)]
ArenaBytes = Annotated[int, Meta(ge=1, lt=1 << 46)]
Counts = Mapping[str, Annotated[int, Meta(ge=-MAX_POSITION - 1, le=MAX_POSITION)]]
Seconds = Mapping[str, Annotated[float, Meta(ge=0, lt=1e12)]]
Versions = Annotated[Mapping[str, str], Meta(max_length=64)]
Header = Annotated[bytes, Meta(max_length=MAX_HEADER_BYTES)]
Plans = Annotated[tuple[bytes, ...], Meta(min_length=1)]


class _Message(Struct, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """A message: in bytes an array of its class's name and its fields, in their order.

    No message holds itself, so the garbage collector need not look at any.
    """


class Snapshot(NamedTuple):
    """The snapshot of a line at an offset."""

    offset: Whole
    data: bytes


class LineSnapshot(NamedTuple):
    """Where a line of a worker stands, and the snapshot from which it goes on elsewhere."""

    line: Whole
    offset: Whole
    data: bytes


class Body(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Where the body of a batch lies, as it travels, and how long it is when it is completed."""

    arena: Whole
    start: Whole
    nbytes: Positive
    completed_bytes: Positive


# --- what the server process says ----------------------------------------------------------------


class KnowJob(_Message):
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
    lane_ends: tuple[tuple[Whole, Whole], ...]
    workers: Whole
    verdicts: tuple[Verdict, ...]
    set_up: bool


class Learn(_Message):
    """Sent with every change of the verdicts of a job that the worker knows."""

    log_id: bytes
    verdicts: tuple[Verdict, ...]


class OpenLine(_Message):
    """Sent before the first ticket for a line, which begins at a snapshot or at offset 0."""

    line: Whole
    log_id: bytes
    lane: Whole
    snapshot: bytes | None


class CloseLine(_Message):
    """Sent when a line is not needed any more, or its state cannot be trusted."""

    line: Whole


class Produce(_Message):
    """A ticket: plan the batch at an offset of a line and make it. Answered by `Done`.

    Attributes:
        ticket: Its number; the answer, or a `TicketFailed`, names it.
        careful: Work item by item: the last worker that was asked for this has ended.
        blank: Make the padding batch of these shapes.
    """

    ticket: Whole
    log_id: bytes
    lane: Whole
    offset: Whole
    careful: bool
    line: Whole
    blank: bool


class PlanAhead(_Message):
    """A ticket: plan up to `count` batches from an offset of a line on. Answered by `Planned`."""

    ticket: Whole
    log_id: bytes
    lane: Whole
    offset: Whole
    careful: bool
    line: Whole
    count: Whole


class Make(_Message):
    """A ticket: make the batch of a plan, which any worker can. Answered by `Done`."""

    ticket: Whole
    log_id: bytes
    lane: Whole
    offset: Whole
    careful: bool
    blank: bool
    plan: bytes


class Verify(_Message):
    """Sent for one batch in many: make it once more. Answered by `Verified` or `VerifyFailed`.

    Attributes:
        check: The number of the comparison.
        plan: Its plan; None = arithmetic leads to it.
    """

    check: Whole
    log_id: bytes
    lane: Whole
    offset: Whole
    blank: bool
    plan: bytes | None


class TakeSnapshots(_Message):
    """Sent as the node drains. Answered by `Snapshots` or `SnapshotsFailed`."""


class Free(_Message):
    """Sent before other messages, or soon: nobody reads these batches any more.

    Attributes:
        spans: Of each the arena and the start.
    """

    spans: tuple[tuple[Whole, Whole], ...]


class MakeSooner(_Message):
    """Sent where another job waits for a worker that tries a read of this one again and again."""

    log_id: bytes


class ItemQuarantined(_Message):
    """The answer to `QuarantineItem`: the verdict that holds, in the store and for every worker."""

    verdict: Verdict


class Refused(_Message):
    """The answer to `QuarantineItem` where the store refuses the verdict: an error by its code."""

    code: str
    message: str
    fields: Mapping[str, Any]


FromServer = (
    KnowJob
    | Learn
    | OpenLine
    | CloseLine
    | Produce
    | PlanAhead
    | Make
    | Verify
    | TakeSnapshots
    | Free
    | MakeSooner
    | ItemQuarantined
    | Refused
)
"""What a worker hears."""

Ticketed = Produce | PlanAhead | Make
"""What asks for an answer that names its ticket."""


# --- what a worker says --------------------------------------------------------------------------


class Ready(_Message):
    """Said once, when the worker has started."""


class SetUp(_Message):
    """Said when the roles of a job are set up that nobody reads yet."""


class NewArena(_Message):
    """Said before the first batch that lies in an arena.

    Attributes:
        number: The lowest that no arena of the worker has.
        memory: The arena's memory.
    """

    number: Whole
    size_bytes: ArenaBytes
    memory: Descriptor


class GoneArena(_Message):
    """Said of an arena in which nothing lies: the worker writes there no more, and has unmapped it.

    Attributes:
        number: Its number.
    """

    number: Whole


class Done(_Message):
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

    ticket: Whole
    body: Body | None
    header: Header
    plan: bytes | None
    counts: Counts
    emptied: bool
    snapshots: tuple[Snapshot, ...]
    exits: Counts


class Planned(_Message):
    """Said when batches are planned.

    Attributes:
        plans: One or more, from the offset that was asked for on.
        broken: The plan after these fails: it says why when it is asked for itself.
        snapshots: Of the way to the first of them, and past the others.
    """

    ticket: Whole
    plans: Plans
    broken: bool
    snapshots: tuple[Snapshot, ...]


class TicketFailed(_Message):
    """Said where a ticket cannot be answered: an error by its code."""

    ticket: Whole
    code: str
    message: str
    fields: Mapping[str, Any]


class LineFailed(_Message):
    """Said where a line does not open."""

    line: Whole
    log_id: bytes
    code: str
    message: str
    fields: Mapping[str, Any]


class JobFailed(_Message):
    """Said where a job cannot be built or set up."""

    log_id: bytes
    code: str
    message: str
    fields: Mapping[str, Any]


class VerifyFailed(_Message):
    """Said where a batch cannot be made once more."""

    log_id: bytes
    code: str
    message: str
    fields: Mapping[str, Any]


class SnapshotsFailed(_Message):
    """Said where the lines of a worker give no snapshots."""

    code: str
    message: str
    fields: Mapping[str, Any]


Failed = TicketFailed | LineFailed | JobFailed | VerifyFailed | SnapshotsFailed
"""What carries an error."""


class Verified(_Message):
    """Said when a batch was made once more: its header holds the checksum of its body."""

    check: Whole
    header: Header


class Snapshots(_Message):
    """Said when all lines have told where they are."""

    lines: tuple[LineSnapshot, ...]


class QuarantineItem(_Message):
    """Said where an item failed twice: the worker waits until its verdict is durable.

    Attributes:
        line: The line that was planning or making; None = a batch was made from its plan.
    """

    log_id: bytes
    line: Whole | None
    verdict: Verdict


class Warned(_Message):
    """Said where something is wrong that makes nothing fail: the server process logs it."""

    text: str


class Cost(_Message):
    """Said before an answer: what the batches of a job took since the last time.

    Attributes:
        batches: How many.
        stages_s: Seconds by stage.
        read_bytes: What the sources have read since the last time.
        media_bytes: What was read of media that items name.
        drawn: How many items were drawn.
        retries: How often something was tried again, by why.
        video_frames: What was decoded of videos, by name; as `FrameCounts`.
        media_cpu_s: Processor seconds by stage; empty where no video was decoded.
    """

    log_id: bytes
    batches: Whole
    stages_s: Seconds
    read_bytes: Whole
    media_bytes: Whole
    drawn: Whole
    retries: Counts
    video_frames: Counts
    media_cpu_s: Seconds


class CountsSaid(_Message):
    """Said before an answer: what a line's planner has counted, where that has changed.

    Attributes:
        counters: Since the lane's beginning, by name.
        before: What was counted up to where the line began.
    """

    log_id: bytes
    lane: Whole
    counters: Counts
    before: Counts


class LaneEnds(_Message):
    """Said once for each line of a finite job, before an answer: its planner has met the end.

    Attributes:
        batches: How many batches the lane holds.
        in_vain: What was counted of the lane, by name, where that is none.
    """

    log_id: bytes
    lane: Whole
    batches: Whole
    in_vain: Counts


class Libraries(_Message):
    """Said before a job's first batch, which has imported what it needs: versions by library."""

    log_id: bytes
    versions: Versions


FromWorker = (
    Done
    | Planned
    | Cost
    | CountsSaid
    | LaneEnds
    | TicketFailed
    | LineFailed
    | JobFailed
    | VerifyFailed
    | SnapshotsFailed
    | NewArena
    | GoneArena
    | Libraries
    | QuarantineItem
    | Warned
    | Verified
    | Snapshots
    | Ready
    | SetUp
)
"""What the server process hears."""

Message = FromServer | FromWorker
