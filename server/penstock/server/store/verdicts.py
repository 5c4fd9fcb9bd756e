"""Verdicts: made above what readers were given, or refused; each function is one transaction.

A lane is a pure function of its log and its verdicts, so a verdict is a part of the log. What a
reader was given must not depend on when it was made: it holds from a place on that nobody has seen.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from penstock.server.core.refs import ItemRef, Verdict, budget_spent
from penstock.server.store.base import Seen
from penstock.server.store.checks import clean
from penstock.server.store.groups import Group, checkpoints_of, log_id_of
from penstock.server.store.schema import insert, update
from penstock.wire.errors import LogDiverged
from penstock.wire.order import MAX_POSITION, Order

_COLUMNS = (
    "stage, source, item, epoch, content_hash, reason, every_epoch, lane, offset, above, released, "
    "number"
)


class _Run(NamedTuple):
    """What the ranks of one generation have committed, or had been given when they resumed.

    Attributes:
        batches_per_step: G.
        world_size: W.
        start_step: Steps below were not given in this generation.
        rows: By rank the first step that was not finished.
    """

    batches_per_step: int
    world_size: int
    start_step: int
    rows: dict[int, int]

    def gave(self, position: int) -> bool:
        """Tell whether the rank that reads a position has committed its step."""
        step, place = divmod(position, self.batches_per_step)
        return self.start_step <= step < self.rows.get(place % self.world_size, 0)

    @property
    def end(self) -> int:
        """Return the position below which something was given; 0 = nothing was committed."""
        last = max(self.rows.values(), default=0)
        return last * self.batches_per_step if last > self.start_step else 0

    def reached(self, order: Order, lane: int) -> int:
        """Return the offset of a lane above the last one that was given; 0 = none was.

        A rank that is ahead of others says nothing of their batches.
        """
        # The ranks of a lane's batches repeat after at most `world_size` of them.
        found = 0
        for row in set(self.rows.values()):
            offset = _below(order, row * self.batches_per_step, lane)
            for at in range(offset - 1, max(-1, offset - 1 - self.world_size), -1):
                if self.gave(order.position(lane, at)):
                    found = max(found, at + 1)
                    break
        return found


def add_verdict(
    db: sqlite3.Connection, log_id: bytes, verdict: Verdict, seen: Seen, limit: int | None
) -> Verdict:
    """Insert a verdict above what was given, as `Store.add_verdict` says."""
    item = verdict.item
    for one in _select(db, "AND source = ? AND item = ?", log_id, item.source, item.index):
        if one.stage == verdict.stage and one.holds(verdict.item, verdict.lane, verdict.offset):
            return one
    if verdict.stage == "draw":
        _refuse_moving(db, log_id, verdict, seen)
    else:
        _refuse_changing(db, log_id, verdict, seen)
    _refuse_too_many(db, log_id, verdict, limit)
    (last,) = db.execute(
        "SELECT coalesce(max(number), 0) FROM verdicts WHERE log_id = ?", (log_id,)
    ).fetchone()
    verdict = verdict._replace(
        reason=clean(verdict.reason),
        above=max(_above(db, log_id, seen), verdict.offset),
        released=None,
        number=last + 1,
    )
    insert(
        db,
        "verdicts",
        log_id=log_id,
        number=verdict.number,
        stage=verdict.stage,
        source=verdict.item.source,
        item=verdict.item.index,
        epoch=verdict.item.epoch,
        every_epoch=int(verdict.every_epoch),
        lane=verdict.lane,
        offset=verdict.offset,
        above=verdict.above,
        released=-1,
        content_hash=verdict.content_hash,
        reason=verdict.reason,
    )
    return verdict


def release_verdicts(
    db: sqlite3.Connection, log_id: bytes, source: str, index: int, seen: Seen
) -> list[Verdict]:
    """Let an item be drawn again, as `Store.release_verdicts` says."""
    found = []
    above = _above(db, log_id, seen)
    ends = seen.order.ends
    for verdict in _select(db, "AND source = ? AND item = ?", log_id, source, index):
        if verdict.released is None:
            if ends is not None and (above >= max(ends) or verdict.stage == "draw"):
                why = (
                    "every batch of this log was given or planned already, without it"
                    if above >= max(ends)
                    else "the batches of this finite log were counted without it"
                )
                raise LogDiverged(
                    f"item {source}[{index}] cannot come back: {why}; read a new log, with another "
                    "seed and another group name",
                    what=f"item {source}[{index}]",
                    ours="released",
                    theirs=f"left out below offset {above}",
                )
            # Where it was to hold from a later offset on in other lanes, it never will.
            verdict = verdict._replace(released=max(above, verdict.offset + 1))
            update(
                db,
                "verdicts",
                {"released": max(above, verdict.offset + 1)},
                "log_id = :log_id AND number = :number",
                {"log_id": log_id, "number": verdict.number},
            )
        found.append(verdict)
    return found


def verdicts(
    db: sqlite3.Connection, log_id: bytes, after: int = 0, limit: int | None = None
) -> list[Verdict]:
    """Return the verdicts of a log by number, as `Store.verdicts` says."""
    most = -1 if limit is None else limit  # as SQLite says it
    return _select(db, "AND number > ?", log_id, after, limit=most)


def _select(
    db: sqlite3.Connection, where: str, *parameters: bytes | str | int, limit: int = -1
) -> list[Verdict]:
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM verdicts WHERE log_id = ? {where} ORDER BY number LIMIT ?",
        (*parameters, limit),
    ).fetchall()
    return [
        Verdict(
            stage,
            ItemRef(source, index, epoch),
            content_hash,
            reason,
            bool(every_epoch),
            lane,
            offset,
            above,
            released if released >= 0 else None,
            number,
        )
        for (
            stage, source, index, epoch, content_hash, reason, every_epoch, lane, offset, above,
            released, number,
        ) in rows
    ]  # fmt: skip


# --- what was given ------------------------------------------------------------------------------


def _refuse_moving(db: sqlite3.Connection, log_id: bytes, verdict: Verdict, seen: Seen) -> None:
    """Refuse a verdict that moves what lies behind it, where that was given or stored.

    It is made while `offset` is planned: what was planned at or above it, with the item, was given
    or may be any moment. A snapshot at `offset` holds nothing of that batch, a later one does.
    """
    lane, offset = verdict.lane, verdict.offset
    given = max(
        [
            *(run.reached(seen.order, lane) for run in _runs(db, log_id)),
            *(_below(seen.order, end, lane) for end in _named(db, log_id)),
        ],
        default=0,
    )
    (stored,) = db.execute(
        "SELECT coalesce(max(offset), 0) FROM snapshots WHERE log_id = ? AND lane = ?",
        (log_id, lane),
    ).fetchone()
    reached, what = max(
        (given, "a group has committed"),
        (stored, "a snapshot holds"),
        (seen.planned, "this node has made"),
    )
    if reached > offset:
        raise _diverged(
            verdict, f"{what} the batches of that lane up to offset {reached - 1}", reached
        )


def _refuse_changing(db: sqlite3.Connection, log_id: bytes, verdict: Verdict, seen: Seen) -> None:
    """Refuse a verdict that changes a batch which a rank has committed, or that was made here."""
    position = seen.order.position(verdict.lane, verdict.offset)
    if any(run.gave(position) for run in _runs(db, log_id)):
        why = f"a group has committed the batch at position {position}"
    elif seen.planned > verdict.offset:
        why = f"this node has made the batch at position {position}"
    else:
        return
    raise _diverged(verdict, why, verdict.offset + 1)


def _diverged(verdict: Verdict, why: str, reached: int) -> LogDiverged:
    return LogDiverged(
        f"item {verdict.item} fails now ({verdict.reason}) in the batch at lane {verdict.lane}, "
        f"offset {verdict.offset}, and did not fail before: {why}, so leaving it out would change "
        "what readers were given. Make the item readable again (its file, or the library that "
        "decodes it) and restart the server; or read a new log, with another seed and another "
        "group name",
        what=f"item {verdict.item}",
        lane=verdict.lane,
        offset=verdict.offset,
        item=list(verdict.item),
        ours=f"left out: {verdict.reason}",
        theirs=f"delivered below offset {reached}",
    )


def _refuse_too_many(
    db: sqlite3.Connection, log_id: bytes, verdict: Verdict, limit: int | None
) -> None:
    """Hold the budget: one for all lanes and stages, counted here since it outlives every node.

    An item counts once, however many lanes and epochs have met it.
    """
    if limit is None:
        return
    counted = "stage, source, item, CASE every_epoch WHEN 1 THEN -1 ELSE epoch END AS epoch"
    out = f"SELECT DISTINCT {counted} FROM verdicts WHERE log_id = ? AND released = -1"
    (count,) = db.execute(f"SELECT count(*) FROM ({out})", (log_id,)).fetchone()
    if count < limit:
        return
    source, index, epoch = verdict.item
    place = verdict.stage, source, index, -1 if verdict.every_epoch else epoch
    found = db.execute(
        f"SELECT 1 FROM ({out}) WHERE stage = ? AND source = ? AND item = ? AND epoch = ?",
        (log_id, *place),
    ).fetchone()
    if found is None:
        raise budget_spent(limit, verdict)


def _above(db: sqlite3.Connection, log_id: bytes, seen: Seen) -> int:
    """Return the offset at and above which nothing was given, stored or planned in any lane."""
    ends = [*(run.end for run in _runs(db, log_id)), *_named(db, log_id)]
    rows = [_rows(seen.order, end) for end in ends]
    (stored,) = db.execute(
        "SELECT coalesce(max(offset), 0) FROM snapshots WHERE log_id = ?", (log_id,)
    ).fetchone()
    return int(max([stored, seen.planned, seen.asked, *rows]))


def _named(db: sqlite3.Connection, log_id: bytes) -> Iterator[int]:
    """Yield the positions of the checkpoints of groups that have committed: all below was given."""
    for group in _groups(db):
        if group.committed_at:  # else a name for a step that nobody has read
            for checkpoint in checkpoints_of(db, group):
                if checkpoint.log_id == log_id:
                    yield checkpoint.step * group.batches_per_step


def _runs(db: sqlite3.Connection, log_id: bytes) -> Iterator[_Run]:
    """Yield what every generation that is remembered has committed of this log."""
    for group in _groups(db):
        if log_id_of(db, group) != log_id:
            continue
        rows: dict[int, dict[int, int]] = {}
        starts: dict[int, tuple[int, int]] = {}
        for generation, world_size, start, made_by, rank, step in db.execute(
            "SELECT generation, world_size, start_step, made_by, rank, step FROM generations "
            "JOIN cursors USING (group_id, generation) WHERE group_id = ?",
            (group.id,),
        ):
            rows.setdefault(generation, {})[rank] = step
            # Who resumes from a state was given what is below it, committed or not.
            starts[generation] = world_size, 0 if made_by == "state" else start
        for generation, of_ranks in rows.items():
            yield _Run(group.batches_per_step, *starts[generation], of_ranks)


def _groups(db: sqlite3.Connection) -> list[Group]:
    rows = db.execute(f"SELECT {', '.join(Group._fields)} FROM groups").fetchall()
    return [Group(*row) for row in rows]


def _rows(order: Order, end: int) -> int:
    """Return the offset that no lane reaches below a position."""
    total = order.batches
    end = min(end, MAX_POSITION if total is None else total)
    return order.address(end - 1).offset + 1 if end > 0 else 0


def _below(order: Order, end: int, lane: int) -> int:
    """Return how many batches a lane has below a position."""
    rows = _rows(order, end)
    if rows == 0:
        return 0
    last = order.address(min(end, MAX_POSITION if order.batches is None else order.batches) - 1)
    held = rows if lane <= last.lane else rows - 1
    return held if order.ends is None else min(held, order.ends[lane])


__all__ = ["add_verdict", "release_verdicts", "verdicts"]
