"""What is done with a log: its snapshots, verdicts, ends, leads, witnesses and libraries.

Each operation is one transaction, as in `group_operations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from penstock.server.core.verdict import Verdict
from penstock.server.store.loads import intact, last_change, log_of
from penstock.server.store.records import (
    Halt,
    Lead,
    LogChanges,
    Reserved,
    Seen,
    SnapshotRecord,
    Witness,
)
from penstock.server.store.rows import (
    Add,
    Change,
    CheckpointRow,
    CursorRow,
    Drop,
    EnvironmentRow,
    GenerationRow,
    GroupRow,
    HaltRow,
    LaneEndRow,
    LeadRow,
    LibraryRow,
    SnapshotRow,
    VerdictRow,
    WitnessRow,
)
from penstock.server.store.rules import follow_keys as followed
from penstock.server.store.rules import lane_records as lanes
from penstock.server.store.rules import verdict_rules as verdicts
from penstock.server.store.tables import Tables
from penstock.server.store.thinning import CROWDED
from penstock.server.store.transacting import Transacting, transaction


class LogOperations(Transacting):
    """The operations of a store on logs."""

    # --- snapshots ---

    @transaction
    async def put_snapshots(self, tables: Tables, snapshots: Sequence[SnapshotRecord]) -> None:
        """Insert if absent, all in one transaction, then thin out what is no longer worth keeping.

        Kept per lane: the last 4 at or below each cursor and the last at or below each checkpoint
        of a group that reads this log, the newest 4, and an archive of at most 256 whose spacing
        doubles when it is full. Thinning may lag: a lane holds at most 512, or twice what is kept.

        Raises:
            LogDiverged: There is another content at the same lane and offset.
        """
        await self._crowded.put(tables, snapshots)

    @transaction
    async def nearest_snapshot(
        self, tables: Tables, log_id: bytes, lane: int, offset: int
    ) -> SnapshotRecord | None:
        """Return the intact snapshot with the highest offset that is at most `offset`, or None.

        One whose bytes are not those that were put is dropped, and a warning is logged.
        """
        while True:
            row = await tables.last(SnapshotRow, log_id, lane, at_most=offset)
            if row is None:
                return None
            data = await intact(tables, row)
            if data is not None:
                return SnapshotRecord(log_id, lane, row.offset, data)
            # A snapshot only saves time: an older one gives the same batches, later.
            _warn_of_damage(log_id, lane, row.offset)
            await tables.write(lanes.drop(row))

    @transaction
    async def drop_snapshot(self, tables: Tables, log_id: bytes, lane: int, offset: int) -> None:
        """Remove an unusable snapshot, so that a good one can replace it."""
        row = await tables.get(SnapshotRow, log_id, lane, offset)
        if row is not None:
            await tables.write(lanes.drop(row))

    # --- verdicts and ends ---

    @transaction
    async def add_verdict(
        self,
        tables: Tables,
        log_id: bytes,
        verdict: Verdict,
        seen: Seen,
        limit: int | None = None,
    ) -> Verdict:
        """Insert a verdict if none holds for its item at its stage; return the one that does.

        In one transaction with reading what groups were given: rows above the start of their
        generation, checkpoints of groups that have committed, snapshots of the verdict's lane.

        Args:
            log_id: The log.
            verdict: What to insert; its number and `above` are decided here.
            seen: What was planned and given in the caller's process.
            limit: `max_quarantined`: how many (stage, item) may be left out at once.

        Raises:
            LogDiverged: It would move what readers were given, or what a snapshot holds; at stages
                `exit` and `size`, it would change the very batch that a rank has committed.
            BadItem: As many items as may be are left out already.
        """
        about = await _about(tables, log_id, verdict.item.source, verdict.item.index)
        known = verdicts.standing(verdict, about)
        if known is not None:
            return known
        out: list[VerdictRow] = []
        if limit is not None:
            out = await tables.all(VerdictRow, log_id, where={"released": -1})
        made, changes = verdicts.add(
            log_id,
            verdict,
            seen,
            await _given(tables, log_id, verdict.lane),
            out=out,
            limit=limit,
            last_number=await tables.highest(VerdictRow, "number", log_id),
            last_change=await last_change(tables, log_id),
        )
        await _changed(tables, log_id, changes)
        return made

    @transaction
    async def release_verdicts(
        self, tables: Tables, log_id: bytes, source: str, index: int, seen: Seen
    ) -> list[Verdict]:
        """Release the verdicts about an item, above all that was given, planned or asked for.

        Returns:
            Every verdict about it, those that were released before too; empty = there is none.

        Raises:
            LogDiverged: The log holds no batch above, or is finite and was counted without it.
        """
        about = await _about(tables, log_id, source, index)
        given = await _given(tables, log_id)
        last = await last_change(tables, log_id)
        found, changes = verdicts.release(log_id, about, seen, given, last)
        await _changed(tables, log_id, changes)
        return found

    @transaction
    async def verdicts(
        self, tables: Tables, log_id: bytes, after: int = 0, limit: int | None = None
    ) -> list[Verdict]:
        """Return the verdicts of a log, released ones too, by number.

        Args:
            log_id: The log.
            after: Only those with a higher number.
            limit: At most so many; None = all.
        """
        rows = await tables.all(VerdictRow, log_id, after=after, limit=limit)
        return [verdicts.verdict_of(row) for row in rows]

    @transaction
    async def add_lane_ends(self, tables: Tables, log_id: bytes, ends: Mapping[int, int]) -> None:
        """Record how many batches some lanes hold, of each lane if absent: all of them, or none.

        Raises:
            LogDiverged: Another end was recorded of one; its `lane` says which.
        """
        changes: list[Change] = []
        for lane, batches in ends.items():
            stands = await tables.get(LaneEndRow, log_id, lane)
            changes += lanes.add_end(LaneEndRow(log_id, lane, batches), stands)
        await tables.write(changes)

    @transaction
    async def lane_ends(self, tables: Tables, log_id: bytes) -> dict[int, int]:
        """Return the recorded ends by lane."""
        return {row.lane: row.batches for row in await tables.all(LaneEndRow, log_id)}

    # --- what others have done ---

    @transaction
    async def add_halt(self, tables: Tables, log_id: bytes, halt: Halt) -> Halt:
        """Record that a lane has stopped at a node; return it with its number.

        It stops no lane elsewhere by itself: nodes that read the same log learn it by `changes`.
        """
        last = await last_change(tables, log_id)
        made, changes = lanes.add_halt(log_id, halt, last, tables.now())
        await _changed(tables, log_id, changes)
        return made

    @transaction
    async def lift_halts(self, tables: Tables, log_id: bytes, node: str) -> None:
        """Let the lanes be stopped no more that stopped at a node: it has begun again."""
        halts = await tables.all(HaltRow, log_id, where={"node": node})
        if halts:
            last = await last_change(tables, log_id)
            await tables.write([Drop(HaltRow, (log_id, row.change)) for row in halts])
            await tables.write(followed.now_at(followed.log_key(log_id), last + 1))

    @transaction
    async def changes(self, tables: Tables, log_id: bytes, after: int | None) -> LogChanges:
        """Return what has changed in a log: cheap where nothing has.

        Args:
            log_id: The log.
            after: The number of the last change that the caller knows; 0 = all, None = return no
                changes, only the number of the last one.
        """
        return await _changes(tables, log_id, after)

    # --- how far nodes plan ---

    @transaction
    async def reserve(
        self, tables: Tables, log_id: bytes, leads: Mapping[int, Lead], after: int
    ) -> Reserved:
        """Record how far the caller plans lanes, and say how far it may: a max-write.

        A verdict that is made later holds, in other lanes, above all that was reserved by then; one
        that was made before is in the answer. So who learns the answer first, and plans only below
        what was reserved, plans as the verdicts have it, however late it hears of any other.

        Args:
            log_id: The log.
            leads: By lane, which the caller plans; nothing is below what was reserved before.
            after: The number of the log's last change that the caller knows.
        """
        found, changes = lanes.reserve(log_id, leads, await tables.all(LeadRow, log_id))
        await tables.write(changes)
        return Reserved(found, await _changes(tables, log_id, after))

    # --- environments and witnesses ---

    @transaction
    async def put_witnesses(
        self, tables: Tables, log_id: bytes, witnesses: Sequence[Witness]
    ) -> list[Witness]:
        """Record what batches were, each if absent; return what is recorded of those that differ.

        Of a lane about 256 stay, spread over all of it; it holds twice as many at most.
        """
        differ: list[Witness] = []
        keys = [(log_id, each.lane, each.offset) for each in witnesses]
        for witness, stands in zip(witnesses, await tables.some(WitnessRow, keys), strict=True):
            other, changes = lanes.add_witness(WitnessRow(log_id, *witness), stands)
            differ += [] if other is None else [other]
            await tables.write(changes)
        counts = await tables.counts(WitnessRow, log_id)
        for lane in sorted({witness.lane for witness in witnesses}):
            if counts[lane] > CROWDED:
                of_lane = await tables.all(WitnessRow, log_id, lane)
                await tables.write(lanes.thin_witnesses(of_lane))
        return differ

    @transaction
    async def some_witnesses(self, tables: Tables, log_id: bytes, limit: int) -> list[Witness]:
        """Return at most so many witnesses of a log, of several lanes: the latest and the first."""
        return lanes.some_witnesses(await tables.all(WitnessRow, log_id), limit)

    @transaction
    async def environments(self, tables: Tables, log_id: bytes) -> dict[bytes, dict[str, str]]:
        """Return what a log was computed with: by environment, versions by name."""
        rows = await tables.all(EnvironmentRow, log_id)
        return {row.environment: json.loads(row.packages) for row in rows}

    @transaction
    async def add_environment(
        self, tables: Tables, log_id: bytes, environment: bytes, packages: Mapping[str, str]
    ) -> None:
        """Record that a log may be computed with an environment, if that is not recorded."""
        if await tables.get(EnvironmentRow, log_id, environment) is None:
            text = json.dumps(dict(packages), sort_keys=True)
            row = EnvironmentRow(log_id, environment, text, tables.now())
            await tables.write([Add(row)])

    # --- libraries ---

    @transaction
    async def note_libraries(
        self, tables: Tables, log_id: bytes, versions: Mapping[str, str]
    ) -> dict[str, str]:
        """Record what computes a log, each name if it is absent, and return all that is recorded.

        Args:
            log_id: 32 bytes.
            versions: Versions by name, as `penstock.server.usercode.libraries` gives them.

        Raises:
            InvalidRequest: A name or a version cannot be.
        """
        recorded = await tables.all(LibraryRow, log_id)
        found, changes = lanes.note_libraries(log_id, versions, recorded, tables.now())
        await tables.write(changes)
        return found


def _warn_of_damage(log_id: bytes, lane: int, offset: int) -> None:
    # Imported in a node, never with this module: `local:` has the store in the trainer's process,
    # and structlog imports rich where that is installed, which draws from `random` as it is
    # imported.
    import structlog

    structlog.get_logger("penstock.store").warning(
        "a damaged snapshot was dropped", log=log_id.hex(), lane=lane, offset=offset
    )


async def _changed(tables: Tables, log_id: bytes, changes: Sequence[Change]) -> None:
    """Write changes of verdicts and halts, and let those who follow the log find them."""
    if changes:
        rows = [change.row for change in changes if not isinstance(change, Drop)]
        last = max(row.change for row in rows if isinstance(row, VerdictRow | HaltRow))
        moved = followed.now_at(followed.log_key(log_id), last)
        await tables.write([*changes, *moved])


async def _changes(tables: Tables, log_id: bytes, after: int | None) -> LogChanges:
    last = await last_change(tables, log_id)
    if after is None or last <= after:
        return LogChanges(last, [], [])
    changed = [row for row in await tables.all(VerdictRow, log_id) if row.change > after]
    halts = await tables.all(HaltRow, log_id)
    return LogChanges(
        last, [verdicts.verdict_of(row) for row in changed], list(map(lanes.halt_of, halts))
    )


async def _about(tables: Tables, log_id: bytes, source: str, index: int) -> list[VerdictRow]:
    return await tables.all(VerdictRow, log_id, where={"source": source, "item": index})


async def _given(tables: Tables, log_id: bytes, lane: int | None = None) -> verdicts.Given:
    """Return what readers were given of a log."""
    runs: list[verdicts.Run] = []
    named: list[int] = []
    for group in await tables.all(GroupRow):
        if group.committed_at:
            checkpoints = await tables.all(CheckpointRow, group.id, where={"log_id": log_id})
            named += [row.step * group.batches_per_step for row in checkpoints]
        if await log_of(tables, group) == log_id:
            rows = await tables.all(CursorRow, group.id)
            # Only those that have rows: of many more the tokens are remembered.
            first = rows[0].generation if rows else 0
            generations = await tables.all(GenerationRow, group.id, after=first - 1)
            runs += verdicts.runs(group, generations, rows)
    stored = await tables.highest(SnapshotRow, "offset", log_id)
    of_lane = 0 if lane is None else await tables.highest(SnapshotRow, "offset", log_id, lane)
    leads = await tables.all(LeadRow, log_id)
    reserved = max((row.reserved for row in leads), default=0)
    planned = max((row.planned for row in leads if row.lane == lane), default=0)
    return verdicts.Given(runs, named, stored, of_lane, reserved, planned)
