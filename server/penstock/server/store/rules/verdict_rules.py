"""Verdicts: made above what readers were given, or refused.

A lane is a pure function of its log and its verdicts, so a verdict is a part of the log. What a
reader was given must not depend on when it was made: it holds from an offset that nobody has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.server.core.verdict import Verdict, budget_spent
from penstock.server.store.records import Seen
from penstock.server.store.rows import (
    Add,
    Change,
    CursorRow,
    GenerationRow,
    GroupRow,
    Put,
    VerdictRow,
)
from penstock.server.store.rules.arguments import clean
from penstock.wire.errors import LogDiverged
from penstock.wire.item_numbers import number_text
from penstock.wire.order import MAX_POSITION, Order


class Run(NamedTuple):
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
        step, number = divmod(position, self.batches_per_step)
        return self.start_step <= step < self.rows.get(number % self.world_size, 0)

    @property
    def end(self) -> int:
        """Return the position below which something was given; 0 = nothing was committed."""
        last = max(self.rows.values(), default=0)
        return last * self.batches_per_step if last > self.start_step else 0

    def reached(self, order: Order, lane: int) -> int:
        """Return the offset of a lane above the last one that was given; 0 = none was.

        A rank that is ahead of others says nothing about their batches.
        """
        # The ranks of a lane's batches repeat after at most so many of them.
        size, ranks = self.batches_per_step, self.world_size
        window = size if size % ranks else ranks
        found = 0
        for row in set(self.rows.values()):
            offset = _below(order, row * self.batches_per_step, lane)
            for at in range(offset - 1, max(-1, offset - 1 - window), -1):
                if self.gave(order.position(lane, at)):
                    found = max(found, at + 1)
                    break
        return found


class Given(NamedTuple):
    """What readers were given of a log, as far as the store knows.

    Attributes:
        runs: Of every generation that is remembered of every group that reads the log.
        named: The positions of the checkpoints of groups that have committed: all below was given.
            In other groups a checkpoint may name a step that no reader has read.
        stored: The highest offset of a snapshot of any lane; 0 = there is none.
        stored_in_lane: The highest offset of a snapshot of the verdict's lane; 0 = there is none.
        reserved: No node plans an offset of any lane at or above this, before it has learned what
            is written now.
        planned_in_lane: Offsets of the verdict's lane below this were planned by some node.
    """

    runs: Sequence[Run]
    named: Sequence[int]
    stored: int
    stored_in_lane: int = 0
    reserved: int = 0
    planned_in_lane: int = 0

    def above(self, seen: Seen) -> int:
        """Return the offset at and above which nothing was given, stored or planned anywhere."""
        ends = [*(run.end for run in self.runs), *self.named]
        here = (self.stored, self.reserved, seen.planned, seen.asked)
        return max([*here, *(_rows(seen.order, end) for end in ends)])


def runs(
    group: GroupRow, generations: Iterable[GenerationRow], rows: Iterable[CursorRow]
) -> list[Run]:
    """Return what every generation that has rows still has committed of a group's log."""
    by_generation: dict[int, dict[int, int]] = {}
    for row in rows:
        by_generation.setdefault(row.generation, {})[row.rank] = row.step
    return [
        # A run that resumes from a state was given everything below it, committed or not.
        Run(
            group.batches_per_step,
            begun.world_size,
            0 if begun.made_by == "state" else begun.start_step,
            by_generation[begun.generation],
        )
        for begun in generations
        if begun.generation in by_generation
    ]


# --- making and releasing ------------------------------------------------------------------------


def standing(verdict: Verdict, about: Iterable[VerdictRow]) -> Verdict | None:
    """Return the verdict that holds already for the item at its stage.

    Args:
        verdict: What is to be added.
        about: The verdicts about its item, by number.
    """
    for row in about:
        known = verdict_of(row)
        if known.stage == verdict.stage and known.holds(verdict.item, verdict.lane, verdict.offset):
            return known
    return None


def add(
    log_id: bytes,
    verdict: Verdict,
    seen: Seen,
    given: Given,
    *,
    out: Iterable[VerdictRow],
    limit: int | None,
    last_number: int,
    last_change: int,
) -> tuple[Verdict, list[Change]]:
    """Insert a verdict above what was given, as `Store.add_verdict` says.

    Args:
        log_id: The log.
        verdict: None holds for its item at its stage, see `standing`.
        seen: What was planned and given in the caller's process.
        given: What readers were given.
        out: The verdicts that are not released; used if there is a limit.
        limit: How many items may be left out at once; None = any number.
        last_number: The number of the log's last verdict.
        last_change: The number of the log's last change.

    Raises:
        LogDiverged, BadItem: As `Store.add_verdict` says.
    """
    if verdict.stage == "draw":
        _refuse_moving(verdict, seen, given)
    else:
        _refuse_changing(verdict, seen, given)
    if limit is not None:
        _refuse_too_many(verdict, out, limit)
    made = verdict._replace(
        reason=clean(verdict.reason),
        above=max(given.above(seen), verdict.offset),
        released=None,
        number=last_number + 1,
    )
    return made, [Add(_row(log_id, made, last_change + 1))]


def release(
    log_id: bytes, about: Sequence[VerdictRow], seen: Seen, given: Given, last_change: int
) -> tuple[list[Verdict], list[Change]]:
    """Let an item be drawn again, as `Store.release_verdicts` says.

    Args:
        log_id: The log.
        about: The verdicts about the item, by number.
        seen: What was planned and given in the caller's process.
        given: What readers were given.
        last_change: The number of the log's last change.

    Raises:
        LogDiverged: The log holds no batch above, or is finite and was counted without the item.
    """
    found: list[Verdict] = []
    changes: list[Change] = []
    above, ends = given.above(seen), seen.order.ends
    # Where a lane's end is not known yet there may be a batch above.
    last = max((MAX_POSITION if end is None else end for end in ends or ()), default=0)
    for verdict in map(verdict_of, about):
        if verdict.released is None:
            if ends is not None and (above >= last or verdict.stage == "draw"):
                raise _too_late(verdict, above, last)
            # Where it was to hold from a later offset on in other lanes, it never will.
            verdict = verdict._replace(released=max(above, verdict.offset + 1))
            changes.append(Put(_row(log_id, verdict, last_change + len(changes) + 1)))
        found.append(verdict)
    return found, changes


def verdict_of(row: VerdictRow) -> Verdict:
    """Return what a row holds."""
    return Verdict.decode(row[1:-1])


def _row(log_id: bytes, verdict: Verdict, change: int) -> VerdictRow:
    return VerdictRow(log_id, *verdict.encode(), change)


# --- what was given ------------------------------------------------------------------------------


def _refuse_moving(verdict: Verdict, seen: Seen, given: Given) -> None:
    """Refuse a verdict that moves what comes after it, where that was given or stored.

    It is made while `offset` is planned: what was planned at or above it, with the item, was given
    or may be any moment. A snapshot at `offset` holds nothing of that batch, a later one does.
    """
    lane, offset, order = verdict.lane, verdict.offset, seen.order
    committed = max(
        [
            *(run.reached(order, lane) for run in given.runs),
            *(_below(order, end, lane) for end in given.named),
        ],
        default=0,
    )
    reached, what = max(
        (committed, "a group has committed"),
        (given.stored_in_lane, "a snapshot holds"),
        (given.planned_in_lane, "a node has made"),
        (seen.planned, "this node has made"),
    )
    if reached > offset:
        raise _diverged(
            verdict, f"{what} the batches of that lane up to offset {reached - 1}", reached
        )


def _refuse_changing(verdict: Verdict, seen: Seen, given: Given) -> None:
    """Refuse a verdict that changes a batch which a rank has committed, or that was made here."""
    position = seen.order.position(verdict.lane, verdict.offset)
    if any(run.gave(position) for run in given.runs):
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


def _too_late(verdict: Verdict, above: int, end: int) -> LogDiverged:
    item = f"item {verdict.item.source}[{number_text(verdict.item.index)}]"
    why = (
        "every batch of this log was given or planned already, without it"
        if above >= end
        else "the batches of this finite log were counted without it"
    )
    return LogDiverged(
        f"{item} cannot come back: {why}; read a new log, with another seed and another group name",
        what=item,
        ours="released",
        theirs=f"left out below offset {above}",
    )


def _refuse_too_many(verdict: Verdict, out: Iterable[VerdictRow], limit: int) -> None:
    """Enforce the budget of all lanes and stages; the store counts, since it outlives nodes.

    An item counts once, however many lanes and epochs have met it.
    """
    counted = {
        (row.stage, row.source, row.item, -1 if row.every_epoch else row.epoch) for row in out
    }
    source, index, epoch = verdict.item
    key = verdict.stage, source, index, -1 if verdict.every_epoch else epoch
    if len(counted) >= limit and key not in counted:
        raise budget_spent(limit, verdict)


def _rows(order: Order, end: int) -> int:
    """Return the offset that no lane reaches below a position."""
    total = order.batches
    end = min(end, MAX_POSITION if total is None else total)
    return order.lane_offset(end - 1).offset + 1 if end > 0 else 0


def _below(order: Order, end: int, lane: int) -> int:
    """Return how many batches a lane has below a position."""
    rows = _rows(order, end)
    if rows == 0:
        return 0
    last = order.lane_offset(min(end, MAX_POSITION if order.batches is None else order.batches) - 1)
    held = rows if lane <= last.lane else rows - 1
    lane_end = None if order.ends is None else order.ends[lane]
    return held if lane_end is None else min(held, lane_end)
