"""The rows of a store, one class per table, and the changes that rules make of them.

A row's fields are its table's columns, in their order; the first ones are its key. What the columns
mean is said only here. Stores keep rows; `rules` decide about them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Value = int | str | bytes
"""What a column holds: an integer of 63 bits, a text, or bytes."""

Row = tuple[Any, ...]
"""Any of the classes below."""


class MetaRow(NamedTuple):
    """Something about the store as a whole."""

    key: str
    value: str


class JobRow(NamedTuple):
    """A plan that a job's name has had; the highest number is the latest one.

    Attributes:
        plan: JSON.
    """

    name: str
    log_id: bytes
    number: int
    plan: str
    first_seen: str


class DefinitionRow(NamedTuple):
    """What the job of a log was built from last; its form is known outside of the store alone."""

    log_id: bytes
    definition: bytes


class GroupRow(NamedTuple):
    """A group.

    Attributes:
        id: What its other rows are kept under; a name may be used again.
        committed_at: When a rank committed last; empty = never.
        committed_by: The generation of that commit; 0 = none.
    """

    job: str
    name: str
    id: int
    batches_per_step: int
    committed_at: str
    committed_by: int


class TimelineRow(NamedTuple):
    """Which log a group reads from a step on."""

    group_id: int
    from_step: int
    log_id: bytes


class GenerationRow(NamedTuple):
    """An attempt of a group, or a move where `world_size` is 0.

    Attributes:
        made_by: `begin`; `state`, which is a begin that goes on from a state of this store; `seek`
            or `restore`.
        checkpoint: The one that was restored.
        request_id: Of a move; a repeated request moves nothing.
    """

    group_id: int
    generation: int
    token: str
    world_size: int
    start_step: int
    owner: str
    made_by: str
    checkpoint: str
    request_id: str
    made_at: str


class CursorRow(NamedTuple):
    """The first step that a rank of a generation has not finished."""

    group_id: int
    generation: int
    rank: int
    step: int


class CheckpointRow(NamedTuple):
    """A named step of a group."""

    group_id: int
    name: str
    step: int
    log_id: bytes
    made_at: str


class SnapshotRow(NamedTuple):
    """A snapshot of a lane.

    Attributes:
        checksum: SHA-256 of its bytes.
        body: The number of the `BodyRow` that has them.
    """

    log_id: bytes
    lane: int
    offset: int
    checksum: bytes
    body: int


class BodyRow(NamedTuple):
    """The bytes of a snapshot, in a row of their own, so that rows that are searched stay short."""

    id: int
    data: bytes


class VerdictRow(NamedTuple):
    """A verdict about an item, between its log and its change in the form that `Verdict` has alone.

    Attributes:
        number: The first of what `Verdict.encode` gives; the others follow in its order.
        change: The number of the log's change that made it what it is: its making, or its release.
    """

    log_id: bytes
    number: int
    stage: str
    source: str
    item: int
    epoch: int
    every_epoch: int
    lane: int
    offset: int
    above: int
    released: int
    content_hash: str
    reason: str
    change: int


class HaltRow(NamedTuple):
    """A lane of a log that stopped at a node.

    Attributes:
        change: The number of the log's change; verdicts and halts are counted together.
        fields: JSON: the fields of the error.
    """

    log_id: bytes
    change: int
    lane: int
    offset: int
    code: str
    message: str
    fields: str
    node: str
    made_at: str


class LaneEndRow(NamedTuple):
    """How many batches a lane has."""

    log_id: bytes
    lane: int
    batches: int


class LibraryRow(NamedTuple):
    """With which version of a library a log was computed first."""

    log_id: bytes
    name: str
    version: str
    first_seen: str


class FollowedRow(NamedTuple):
    """A number that has changed whenever something has that nodes follow: one look finds all of it.

    Attributes:
        kind: `log`, whose number is that of its last change; `group`, its latest generation, and
            without a row it is gone; `node`, its latest incarnation; `outlived`, the incarnation of
            a node that still runs although a later one of its id has begun.
        scope: A log's id in hex, a group's job, a node's id.
        name: A group's name; else empty.
    """

    kind: str
    scope: str
    name: str
    number: int


class LeadRow(NamedTuple):
    """How far the nodes have planned a lane, all together; neither number ever falls.

    Attributes:
        planned: Offsets below this were planned by some node.
        reserved: No node has planned an offset at or above this, or begun to.
    """

    log_id: bytes
    lane: int
    planned: int
    reserved: int


class WitnessRow(NamedTuple):
    """What a batch of a log was: whoever makes it again compares.

    Attributes:
        digest: `penstock.wire.digest.batch_digest` of it, 32 bytes.
        environment: Of the node that has made it.
    """

    log_id: bytes
    lane: int
    offset: int
    digest: bytes
    environment: bytes


class EnvironmentRow(NamedTuple):
    """What a node computed a log with, and may.

    Attributes:
        environment: SHA-256 of `packages`.
        packages: JSON: versions by name, sorted.
    """

    log_id: bytes
    environment: bytes
    packages: str
    first_seen: str


class StoreTable(NamedTuple):
    """How the rows of a class are kept.

    Attributes:
        name: In SQL.
        key: How many of the first columns are the key.
    """

    name: str
    key: int


TABLES: dict[type[Row], StoreTable] = {
    MetaRow: StoreTable("meta", 1),
    JobRow: StoreTable("jobs", 2),
    DefinitionRow: StoreTable("definitions", 1),
    GroupRow: StoreTable("groups", 2),
    TimelineRow: StoreTable("timelines", 2),
    GenerationRow: StoreTable("generations", 2),
    CursorRow: StoreTable("cursors", 3),
    CheckpointRow: StoreTable("checkpoints", 2),
    SnapshotRow: StoreTable("snapshots", 3),
    BodyRow: StoreTable("bodies", 1),
    VerdictRow: StoreTable("verdicts", 2),
    LaneEndRow: StoreTable("lane_ends", 2),
    LibraryRow: StoreTable("libraries", 2),
    HaltRow: StoreTable("halts", 2),
    FollowedRow: StoreTable("followed", 3),
    LeadRow: StoreTable("leads", 2),
    WitnessRow: StoreTable("witnesses", 3),
    EnvironmentRow: StoreTable("environments", 2),
}
"""Every class of rows."""

DELETED = "deleted_generation"
"""Key of a `MetaRow`: the highest generation that a group had which was deleted; 0 = none was."""


# --- changes -------------------------------------------------------------------------------------


class Add(NamedTuple):
    """A new row."""

    row: Row


class Put(NamedTuple):
    """A row that replaces the one with its key."""

    row: Row


class Drop(NamedTuple):
    """Remove all rows of a class whose key begins with `prefix`.

    Attributes:
        up_to: Only rows whose next column of the key is at most this; None = all.
    """

    kind: type[Row]
    prefix: tuple[Value, ...]
    up_to: int | None = None


Change = Add | Put | Drop
"""The changes that a rule makes, in the order of the list."""
