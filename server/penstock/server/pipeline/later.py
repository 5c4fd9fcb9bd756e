"""Where samples that were larger than told come later: arithmetic over sizes, and no store.

A batch takes them into the room that is free in its rows: first its own, then those of the batch
before it, and so on. So where a sample comes depends on its batch and on those after it, within
`later_within` of them, and on none before: see decision 0042.

Glossary:
    put off: Said of a sample that does not fit into its batch, since sizes were told too small, and
        waits for room in a later one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import gt, le
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from penstock.server.core.refs import BatchPlan, Row, Rows, SampleRef
from penstock.server.pipeline.retry import Calls
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.packer import holds_item
from penstock.server.roles.filling import BatchSizes, misfit
from penstock.server.roles.role import Role
from penstock.server.usercode.contained import contained
from penstock.wire.errors import PenstockError

T = TypeVar("T")

KEPT = 64
"""Places of which it is kept who waits there: readers that stand apart go on without processing
what is before them each time."""


class Fit(NamedTuple):
    """What a batch leaves to others: a function of its plan alone, without what joins it.

    Attributes:
        rows: What lies in its rows, each sample with its real size. One that a verdict leaves out
            lies there as it was planned: elsewhere it may not be known yet that it fails.
        put_off: The samples that did not fit, with their real sizes.
    """

    rows: Rows
    put_off: tuple[SampleRef, ...] = ()


class WaitingSamples(NamedTuple):
    """Samples of one batch that have joined none yet.

    Attributes:
        offset: The batch that they were planned in.
        refs: They, the largest first.
    """

    offset: int
    refs: tuple[SampleRef, ...]


class Settled(NamedTuple):
    """What comes of a batch, and of those that wait for it.

    Attributes:
        stay: Samples of the batch itself that join another row of it, or their own, by its number.
        come: Samples of batches before it, by the number of the row that each joins.
        left_out: Samples whose last chance it was.
        waiting: Those that wait for the next batch, those of the latest batch last.
    """

    stay: tuple[tuple[int, SampleRef], ...]
    come: tuple[tuple[int, SampleRef], ...]
    left_out: tuple[SampleRef, ...]
    waiting: tuple[WaitingSamples, ...]


class Room(Protocol):
    """Says where there is room."""

    def find(self, rows: Rows, ref: SampleRef) -> int | None:
        """Return the number of the row that a sample joins; None = no row has room for it."""
        ...


def settle(
    waiting: Sequence[WaitingSamples], plan: BatchPlan, fit: Fit, within: int, room: Room
) -> Settled:
    """Let those that wait join a batch.

    Args:
        waiting: Who waits.
        plan: The batch, with its offset.
        fit: What it leaves.
        within: How many batches later a sample may come.
        room: Where there is some.
    """
    own = WaitingSamples(plan.offset, tuple(sorted(fit.put_off, key=lambda ref: -ref.size)))
    every = [*waiting, own] if own.refs else list(waiting)
    if not every:
        return Settled((), (), (), ())
    rows = [list(row) for row in fit.rows]
    joined: dict[int, list[tuple[int, SampleRef]]] = {}
    still: list[WaitingSamples] = []
    left_out: list[SampleRef] = []
    for offset, refs in reversed(every):  # so none is in the way of who came after it
        rest: list[SampleRef] = []
        for ref in refs:
            number = room.find(rows, ref)
            if number is None:
                rest.append(ref)
            else:
                rows[number].append(ref)
                joined.setdefault(offset, []).append((number, ref))
        if plan.is_last or plan.offset - offset >= within:
            left_out[:0] = rest
        elif rest:
            still.append(WaitingSamples(offset, tuple(rest)))
    stay = tuple(joined.pop(plan.offset, ()))
    come = tuple(one for offset in sorted(joined) for one in joined[offset])
    return Settled(stay, come, tuple(left_out), tuple(reversed(still)))


def takes(facts: BatcherFacts, ref: SampleRef) -> list[int]:
    """Return what a sample takes of a row: its size, and its counts that are limited."""
    return [ref.size, *(ref.counts[place] for place, _ in facts.row_counts)]


def spare(facts: BatcherFacts, row: Row) -> list[int]:
    """Return by how much the samples of a row may together exceed what they take of it."""
    counted = [most - sum(ref.counts[place] for ref in row) for place, most in facts.row_counts]
    if facts.row_limit is None:
        return [0, *counted]
    return [facts.row_limit - sum(ref.size for ref in row), *counted]


def joins(facts: BatcherFacts, row: Row, ref: SampleRef) -> bool:
    """Tell whether a row has room for a sample, and holds no other of its item."""
    return all(map(le, takes(facts, ref), spare(facts, row))) and not holds_item(row, ref)


def is_larger(told: SampleRef, real: SampleRef) -> bool:
    """Tell whether a sample is larger than it was told, or counts more."""
    return real.size > told.size or any(map(gt, real.counts, told.counts))


class RowsOf:
    """The room in the rows of one batch, as its roles see it.

    Args:
        calls: Says what an error of a role means.
        plan: The batch.
    """

    def __init__(self, calls: Calls, plan: BatchPlan) -> None:
        roles = calls.job.role_sets[plan.role_set]
        self._calls, self._plan = calls, plan
        self._facts, self._collator = roles.batcher_facts, roles.collator

    def find(self, rows: Rows, ref: SampleRef) -> int | None:
        """Return the fullest row that a sample may join, such that the batch can be made."""
        for number in sorted(range(len(rows)), key=lambda number: spare(self._facts, rows[number])):
            if not self.joins(rows[number], ref):
                continue
            if self._can_be_made([*rows[:number], [*rows[number], ref], *rows[number + 1 :]]):
                return number
        return None

    def joins(self, row: Row, ref: SampleRef) -> bool:
        """Tell whether a sample has room in a row, by the batcher alone."""
        return joins(self._facts, row, ref)

    def _can_be_made(self, rows: Rows) -> bool:
        """Tell whether the collator can make these rows, as far as it can be known from sizes."""
        ends = np.array([0, *accumulate(map(len, rows))], np.int64)
        found = np.array([ref.size for row in rows for ref in row], np.int64)
        sizes = BatchSizes(found, ends, np.array([0, len(rows)], np.int64))
        filling = self._asked(self._collator, "filling", lambda: self._collator.filling(sizes))
        return filling is None or misfit(filling) is None

    def _asked(self, role: Role, method: str, call: Callable[[], T]) -> T:
        try:
            return contained(call)
        except PenstockError:
            raise
        except Exception as error:
            lane, offset = self._plan.lane, self._plan.offset
            what = f"{role.code_of(method)} fails on {method}(), at lane {lane}, offset {offset},"
            raise self._calls.failure(error, what, lane, offset) from error


class Decided(NamedTuple):
    """A plan with all that joins it.

    Attributes:
        plan: The plan, which any worker makes alone.
        counts: What is counted of it.
        left_out: Samples of batches before it, or its own, whose last chance it was.
    """

    plan: BatchPlan
    counts: dict[str, int]
    left_out: tuple[SampleRef, ...]


class Later:
    """Decides the plans of one job in one process.

    Who makes the batches of a lane one after another keeps who waits; where it begins, the batches
    before are looked at.

    Args:
        calls: What roles are called with.
        look: Processes a batch for what it leaves to others.
    """

    def __init__(self, calls: Calls, look: Callable[[BatchPlan], Fit]) -> None:
        self._calls, self._look, self._within = calls, look, calls.job.later_within
        # By lane and offset, who waits for the batch there; the latest last.
        self._stands: OrderedDict[tuple[int, int], tuple[WaitingSamples, ...]] = OrderedDict()

    def decide(self, plan: BatchPlan, fit: Fit) -> Decided:
        """Return a plan with what joins it; as it is, if that was decided before.

        Args:
            plan: The plan.
            fit: What it leaves to others.

        Raises:
            SourceUnavailable: A batch before it cannot be looked at.
            PenstockError: A role fails.
        """
        if plan.before is None:
            return Decided(plan, {}, ())
        waiting = self._stands.get((plan.lane, plan.offset))
        if waiting is None:
            waiting = ()
            for before in plan.before:
                waiting = self._settled(waiting, before, self._look(before)).waiting
        settled = self._settled(waiting, plan, fit)
        self._stands[plan.lane, plan.offset + 1] = settled.waiting
        self._stands.move_to_end((plan.lane, plan.offset + 1))
        if len(self._stands) > KEPT:
            self._stands.popitem(last=False)
        planned = (ref for row in plan.rows for ref in row if settled.stay and ref.span is None)
        told = {ref[:2]: ref for ref in planned}
        larger = [ref for _, ref in settled.stay if is_larger(told[ref[:2]], ref)]
        more = [max(0, ref.size - told[ref[:2]].size) for ref in larger]
        counts = {
            "size:larger": len(more),
            "size:larger_tokens": sum(more),
            "size:later": len(settled.come),
            "size:later_tokens": sum(ref.size for _, ref in settled.come),
            "size:put_off": len(fit.put_off) - len(settled.stay),
            "quarantined:size": len(settled.left_out),
        }
        decided = plan._replace(later=settled.stay + settled.come, before=None)
        return Decided(decided, {name: n for name, n in counts.items() if n}, settled.left_out)

    def _settled(self, waiting: Sequence[WaitingSamples], plan: BatchPlan, fit: Fit) -> Settled:
        return settle(waiting, plan, fit, self._within, RowsOf(self._calls, plan))
