"""What is stored about a log's lanes: snapshots, ends, halts, leads, witnesses, libraries."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from penstock.server.store.records import Halt, Lead, SnapshotRecord, Witness
from penstock.server.store.rows import (
    Add,
    BodyRow,
    Change,
    Drop,
    HaltRow,
    LaneEndRow,
    LeadRow,
    LibraryRow,
    Put,
    SnapshotRow,
    WitnessRow,
)
from penstock.server.store.rules.arguments import check_name, clean
from penstock.server.store.rules.retention import keep
from penstock.wire.errors import LogDiverged

KEPT_HALTS = 256
"""A halt is forgotten after this many later changes of its log: nodes that watch have seen it by
then, and a node that starts later tries the lane again."""

# --- snapshots -----------------------------------------------------------------------------------


def put(
    snapshot: SnapshotRecord, checksum: bytes, stands: SnapshotRow | None, body: int
) -> list[Change]:
    """Add a snapshot if there is none at its lane and offset.

    Args:
        snapshot: What is to be added.
        checksum: SHA-256 of its bytes.
        stands: The snapshot that is there; None = none.
        body: A number that no body has.

    Raises:
        LogDiverged: There is another content.
    """
    log_id, lane, offset, data = snapshot
    if stands is None:
        return [Add(BodyRow(body, data)), Add(SnapshotRow(log_id, lane, offset, checksum, body))]
    if stands.checksum != checksum:
        raise LogDiverged(
            f"the snapshot of lane {lane} at offset {offset} of log {log_id.hex()[:12]}... has the "
            f"content {checksum.hex()[:12]}..., and another ({stands.checksum.hex()[:12]}...) was "
            "stored before: a role is impure, or nodes differ; run `penstockd check` on both nodes",
            what=f"snapshot of lane {lane} at offset {offset}",
            ours=checksum.hex(),
            theirs=stands.checksum.hex(),
        )
    return []


def drop(row: SnapshotRow) -> list[Change]:
    """Remove a snapshot and its bytes."""
    return [Drop(BodyRow, (row.body,)), Drop(SnapshotRow, (row.log_id, row.lane, row.offset))]


def thin(
    snapshots: Sequence[SnapshotRow],
    cursor_offsets: Collection[int],
    checkpoint_offsets: Collection[int],
) -> tuple[int, list[Change]]:
    """Remove what is not worth keeping of one lane; return how many stay, too.

    Args:
        snapshots: All of the lane.
        cursor_offsets: The lane's offsets at the groups' cursors.
        checkpoint_offsets: The lane's offsets at their checkpoints.
    """
    kept = keep((row.offset for row in snapshots), cursor_offsets, checkpoint_offsets)
    return len(kept), [
        change for row in snapshots if row.offset not in kept for change in drop(row)
    ]


# --- ends ----------------------------------------------------------------------------------------


def add_end(end: LaneEndRow, stands: LaneEndRow | None) -> list[Change]:
    """Record where a lane ends.

    Args:
        end: What is to be recorded.
        stands: What was recorded before; None = nothing.

    Raises:
        LogDiverged: Another end was recorded.
    """
    if stands is None:
        return [Add(end)]
    if stands.batches != end.batches:
        raise LogDiverged(
            f"lane {end.lane} of log {end.log_id.hex()[:12]}... ends after {end.batches} batches "
            f"here, and ended after {stands.batches} before: its roles or its data are not the "
            "same everywhere; run `penstockd check` on both nodes",
            what=f"end of lane {end.lane}",
            lane=end.lane,
            ours=end.batches,
            theirs=stands.batches,
        )
    return []


# --- halts ---------------------------------------------------------------------------------------


def add_halt(log_id: bytes, halt: Halt, last: int, now: str) -> tuple[Halt, list[Change]]:
    """Record that a lane has stopped at a node.

    Args:
        log_id: The log.
        halt: Its number and time are decided here.
        last: The number of the log's last change.
        now: The store's time.
    """
    made = halt._replace(change=last + 1, message=clean(halt.message), made_at=now)
    fields = json.dumps(halt.fields, default=str)
    row = HaltRow(
        log_id, made.change, made.lane, made.offset, made.code, made.message, fields, made.node, now
    )
    return halt_of(row), [Add(row), Drop(HaltRow, (log_id,), made.change - KEPT_HALTS)]


def halt_of(row: HaltRow) -> Halt:
    """Return what a row holds."""
    _, change, lane, offset, code, message, fields, node, made_at = row
    return Halt(lane, offset, code, message, json.loads(fields), node, change, made_at)


# --- leads ---------------------------------------------------------------------------------------


def reserve(
    log_id: bytes, leads: Mapping[int, Lead], recorded: Sequence[LeadRow]
) -> tuple[dict[int, int], list[Change]]:
    """Record how far lanes are planned, and may be; return by lane how far that is now.

    Args:
        log_id: The log.
        leads: By lane what a node says.
        recorded: What nodes have said before, of all lanes.
    """
    known = {row.lane: row for row in recorded}
    found: dict[int, int] = {}
    changes: list[Change] = []
    for lane, (planned, reserved) in sorted(leads.items()):
        stands = known.get(lane, LeadRow(log_id, lane, 0, 0))
        row = LeadRow(log_id, lane, max(planned, stands.planned), max(reserved, stands.reserved))
        found[lane] = row.reserved
        if row != stands:
            changes.append(Put(row))
    return found, changes


# --- witnesses -----------------------------------------------------------------------------------


def add_witness(row: WitnessRow, stands: WitnessRow | None) -> tuple[Witness | None, list[Change]]:
    """Record what a batch was, if nothing is recorded; return what is, where that is another."""
    if stands is None:
        return None, [Add(row)]
    return (None if stands.digest == row.digest else witness_of(stands)), []


def thin_witnesses(rows: Sequence[WitnessRow]) -> list[Change]:
    """Remove what is too many of a lane's witnesses: those that stay are spread over all of it."""
    kept = keep((row.offset for row in rows), (), ())
    return [
        Drop(WitnessRow, (row.log_id, row.lane, row.offset))
        for row in rows
        if row.offset not in kept
    ]


def witness_of(row: WitnessRow) -> Witness:
    """Return what a row holds."""
    return Witness(*row[1:])


def some_witnesses(rows: Sequence[WitnessRow], limit: int) -> list[Witness]:
    """Return witnesses of as many lanes as there may be, half of them the latest of their lanes.

    Then come the first of theirs, which are made without a replay, and then any, spread over all.

    Args:
        rows: All of the log, by lane and offset.
        limit: At most so many.
    """
    lanes: dict[int, list[WitnessRow]] = {}
    for row in rows:
        lanes.setdefault(row.lane, []).append(row)
    found: dict[tuple[int, int], WitnessRow] = {}
    for at in (-1, 0):
        for number, of_lane in enumerate(lanes.values()):
            if len(found) < limit and (at == 0 or number % 2 == 0 or len(lanes) == 1):
                found.setdefault((of_lane[at].lane, of_lane[at].offset), of_lane[at])
            if at == -1 and len(found) >= -(-limit // 2):
                break
    others = [row for row in rows if (row.lane, row.offset) not in found]
    if missing := min(limit - len(found), len(others)):
        chosen = [others[at * len(others) // missing] for at in range(missing)]
        found |= {(row.lane, row.offset): row for row in chosen}
    return [witness_of(row) for row in found.values()]


# --- libraries -----------------------------------------------------------------------------------


def note_libraries(
    log_id: bytes, versions: Mapping[str, str], recorded: Sequence[LibraryRow], now: str
) -> tuple[dict[str, str], list[Change]]:
    """Record versions of libraries without a recorded version; return all.

    Raises:
        InvalidRequest: A name or a version is invalid.
    """
    found = {row.name: row.version for row in recorded}
    changes: list[Change] = []
    for name, version in versions.items():
        if name not in found:
            check_name("library", name)
            check_name("version", version)
            changes.append(Add(LibraryRow(log_id, name, version, now)))
            found[name] = version
    return found, changes
