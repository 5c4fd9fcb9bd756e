"""What goes into a store and comes out of it: values, for the callers of its operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.server.core.verdict import Verdict
from penstock.wire.order import Order


@dataclass(frozen=True)
class JobRecord:
    """A job as the store knows it.

    Attributes:
        name: Its name in the job file.
        log_id: 32 bytes.
        plan: The canonical plan, JSON-able: what the log id is the hash of.
        definition: What it is built from, see `penstock.server.jobs.definition`; empty = not known.
    """

    name: str
    log_id: bytes
    plan: Any
    definition: bytes = b""


@dataclass(frozen=True)
class BeginRequest:
    """A rank that starts or joins an attempt.

    Attributes:
        job: The job as it is now: its log id must be the one under the group's cursor.
        group: The group's name.
        token: The attempt; all its ranks present the same.
        rank: Below `world_size`.
        world_size: W.
        batches_per_step: The caller's; None = the group's.
        default_batches_per_step: The job file's; None = none.
        start_step: None = the cursor.
        owner: Host and process, for people.
        store: The UUID of the store that the caller's state came from; empty = any.
        uneven: The world size need not divide the step: fillers make up for it.
    """

    job: JobRecord
    group: str
    token: str
    rank: int
    world_size: int
    batches_per_step: int | None = None
    default_batches_per_step: int | None = None
    start_step: int | None = None
    owner: str = ""
    store: str = ""
    uneven: bool = False


@dataclass(frozen=True)
class BeginAnswer:
    """The answer to `begin`.

    Attributes:
        generation: The number that this attempt has.
        batches_per_step: G of the group.
        batches_per_step_from: `request`, `job` or `world_size`: what decided it when the group was
            made; `group`: the group existed.
        start_step: This rank's row: the first step that it has not finished in this generation.
        joined: The token was already the latest.
        committed_at: The store's time of the group's last commit, ISO 8601 UTC, for people;
            "" = never.
        committed_by: The generation of that commit; 0 = none.
        token: What the attempt is called now.
        timeline: The logs that the group reads, by the first step of each.
    """

    generation: int
    batches_per_step: int
    batches_per_step_from: str
    start_step: int
    joined: bool
    committed_at: str
    committed_by: int
    token: str
    timeline: tuple[tuple[int, bytes], ...] = ()


class Committed(NamedTuple):
    """The answer to `commit`: the group's cursor after it, and this rank's row.

    Glossary:
        cursor: The first step that a group has not finished: the lowest step that one of its ranks
            has still to finish.
        commit: A rank tells the store that everything before a step is finished.
    """

    cursor: int
    row: int


class Moved(NamedTuple):
    """The answer to `seek` and `restore`: the new generation and where it starts."""

    generation: int
    step: int


@dataclass(frozen=True)
class CheckpointRecord:
    """A named, immutable step of a group.

    Glossary:
        checkpoint: A named step of a group that never changes.
    """

    name: str
    step: int
    log_id: bytes
    made_at: str


@dataclass(frozen=True)
class GroupRecord:
    """Everything about one group.

    Attributes:
        rows: Per rank of the current generation the first step that it has not finished; empty
            after a seek or restore, until the next attempt begins.
        cursor: The lowest of `rows`, or `start_step` if there are none.
        committed_at: The store's time of the last commit, ISO 8601 UTC, for people; "" = never.
        committed_by: The generation of that commit; 0 = none.
        committed_owner: Who began that generation, for people; "" = it is no longer known.

    Glossary:
        group: A training run that reads a job, with all its ranks. Reading without a group is
            **ephemeral**: nothing is stored.
    """

    job: str
    name: str
    log_id: bytes
    batches_per_step: int
    generation: int
    token: str
    owner: str
    world_size: int
    start_step: int
    rows: tuple[int, ...]
    cursor: int
    committed_at: str
    committed_by: int
    committed_owner: str
    checkpoints: tuple[CheckpointRecord, ...]


class SnapshotRecord(NamedTuple):
    """A snapshot of one lane: its line restarts at `offset` from `data`.

    Glossary:
        snapshot: The state of a lane's planner at an offset, from which it can start again. It only
            saves time.
    """

    log_id: bytes
    lane: int
    offset: int
    data: bytes


class Seen(NamedTuple):
    """What the calling process has done of a log, beside what the store knows about it.

    Attributes:
        order: How the log's positions lie on its lanes.
        planned: Offsets of the verdict's lane below this were planned here; at the stages `exit`
            and `size`, which are about one batch, only if that one was made here.
        asked: Offsets of any lane below this were planned here, or are being planned.
    """

    order: Order
    planned: int = 0
    asked: int = 0


class Halt(NamedTuple):
    """A lane of a log that stopped for good at a node, until that is started again.

    Attributes:
        lane: The lane.
        offset: The batch that it stopped at.
        code: The error's, as of `penstock.wire.errors`.
        message: Its sentence.
        fields: Its fields, JSON-able.
        node: The node, for people.
        change: The number of the log's change; 0 = it is not recorded.
        made_at: The store's time, ISO 8601 UTC, for people.
    """

    lane: int
    offset: int
    code: str
    message: str
    fields: dict[str, Any]
    node: str
    change: int = 0
    made_at: str = ""


class LogChanges(NamedTuple):
    """What has changed in a log.

    Attributes:
        change: The number of its last change: the next call asks for what comes after it.
        verdicts: Those that were made or released, as they are now, by number.
        halts: All that stand, by number; the last 256 changes' at most.
    """

    change: int
    verdicts: list[Verdict]
    halts: list[Halt]


class Lead(NamedTuple):
    """How far a node plans a lane.

    Attributes:
        planned: Offsets below this were planned by it.
        reserved: It plans none at or above this.
    """

    planned: int
    reserved: int


class Reserved(NamedTuple):
    """The answer to `reserve`.

    Attributes:
        leads: By lane the offset below which the caller may plan, once it has learned `changes`.
        changes: What has changed in the log.
    """

    leads: dict[int, int]
    changes: LogChanges


class Witness(NamedTuple):
    """What a batch of a log was.

    Attributes:
        lane: Its lane.
        offset: Its offset.
        digest: Of its content, 32 bytes.
        environment: Of the node that has made it: SHA-256 of its packages.
    """

    lane: int
    offset: int
    digest: bytes
    environment: bytes


class Followed(NamedTuple):
    """The numbers of what a node follows: whatever has another one than before has changed.

    Attributes:
        changes: By log the number of its last change; 0 = there was none.
        generations: By job and group its latest generation; None = there is no such group.
        incarnation: The latest of the node's id; 0 = none has begun.
        outlived: The latest of the id that ran on although a later one had begun; 0 = none did.
    """

    changes: dict[bytes, int]
    generations: dict[tuple[str, str], int | None]
    incarnation: int
    outlived: int


class Latest(NamedTuple):
    """The latest generation of a group.

    Attributes:
        generation: Its number.
        owner: Who began it or moved the group, for people.
        made_by: `begin`, `state` (a begin from a state), `seek` or `restore`.
        start_step: Where it began.
        checkpoint: The one that was restored; empty = none was.
    """

    generation: int
    owner: str
    made_by: str
    start_step: int
    checkpoint: str = ""
