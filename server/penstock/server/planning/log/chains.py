"""Which batches of a packed window share samples: those are to follow each other in one lane.

Making a batch processes all of a document, however small the piece of it is. So rows that hold the
pieces of a document are put beside each other, and its batches form a chain, which `together` lays
into one lane: a worker then processes the document once for all of them.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from penstock.server.planning.log.index_windows import Integers

MAX_CHAIN = 64
"""Batches: a lane is made of one document, or of several that share rows, for so long at most. Of a
longer one each stretch is processed anew, 1/64 of the work that each batch would take."""


class Chains(NamedTuple):
    """The batches of a window that are to follow each other: at least two of each chain.

    Attributes:
        batches: int64 (n,): batches by their numbers, chain by chain, in the order in which they
            follow each other; none is there twice.
        bounds: int64 (chains + 1,): where each chain begins among them, and n.
    """

    batches: Integers
    bounds: Integers


class SharedSamples(NamedTuple):
    """Which batches hold pieces of the samples that are in several.

    Attributes:
        slots: int64 (n,): samples by their numbers in the window, rising; each as often as there
            are batches with a piece of it.
        batches: int64 (n,): these batches, rising for each sample.
    """

    slots: Integers
    batches: Integers

    def of(self, slot: int) -> Integers:
        """Return the batches with a piece of a sample, which is in several; else none."""
        first, last = np.searchsorted(self.slots, (slot, slot + 1))
        return self.batches[first:last]


def shared_by(slots: Integers, rows: Integers, batches: Integers) -> SharedSamples | None:
    """Return which batches share samples; None = none do.

    Args:
        slots: int64 (n,): the sample of each piece, batch by batch.
        rows: int64 (rows + 1,): where each row begins among the pieces.
        batches: int64 (batches + 1,): where each batch begins among the rows.
    """
    several = np.flatnonzero(np.bincount(slots)[slots] > 1)
    if not len(several):
        return None
    number = len(batches) - 1
    of_piece = np.repeat(np.arange(number), np.diff(rows[batches]))
    pairs = np.unique(slots[several] * number + of_piece[several])
    found, holders = np.divmod(pairs, number)
    spread = np.bincount(found)[found] > 1
    return SharedSamples(found[spread], holders[spread]) if spread.any() else None


def chains_of(shared: SharedSamples, sizes: Integers) -> Chains:
    """Return the chains of a window: batches that share samples, at most `MAX_CHAIN` of each.

    The longest samples decide first, since they take most to process again.

    Args:
        shared: Which batches share samples.
        sizes: int64 (n,): the size of each sample of the window.
    """
    firsts = np.flatnonzero(np.append(True, np.diff(shared.slots) != 0))
    ends = np.append(firsts[1:], len(shared.slots))
    by_size = np.argsort(-sizes[shared.slots[firsts]], kind="stable")
    batches = shared.batches.tolist()
    head: dict[int, int] = {batch: batch for batch in batches}
    length = dict.fromkeys(head, 1)
    for first, end in zip(firsts[by_size].tolist(), ends[by_size].tolist(), strict=True):
        for one, other in zip(batches[first : end - 1], batches[first + 1 : end], strict=True):
            low, high = sorted((_head(head, one), _head(head, other)))
            if low != high and length[low] + length[high] <= MAX_CHAIN:
                head[high] = low
                length[low] += length[high]
    members = np.array(sorted(head), np.int64)
    heads = np.array([_head(head, batch) for batch in members.tolist()], np.int64)
    order = np.argsort(heads, kind="stable")
    members, heads = members[order], heads[order]
    _, lengths = np.unique(heads, return_counts=True)
    kept = lengths > 1
    members = members[np.repeat(kept, lengths)]
    return Chains(members, np.concatenate(([0], np.cumsum(lengths[kept]))))


def _head(head: dict[int, int], batch: int) -> int:
    while head[batch] != batch:
        head[batch] = batch = head[head[batch]]
    return batch


# --- rows -----------------------------------------------------------------------------------------


def order_of_rows(
    slots: Integers, starts: Integers, bounds: Integers, order: Integers, per_batch: int
) -> tuple[Integers, Chains]:
    """Return rows in an order that has the pieces of each sample beside each other.

    The row that holds the end of a sample, with whatever else, has the rows before it that hold
    nothing but that sample; of several samples that end in it, one after another. Where batches
    have several rows, such rows fill batches of their own, and what is left of them is put together
    with that of others, so that few samples are in two batches more than they must.

    Args:
        slots: int64 (n,): the sample of each piece, row by row.
        starts: int64 (n,): where in it the piece begins; -1 = all of it.
        bounds: int64 (rows + 1,): where each row begins among the pieces.
        order: int64 (rows,): the order that rows have where nothing is split.
        per_batch: How many rows a batch has: those of every batch follow each other.

    Returns:
        int64 (rows,): row numbers; and the chains of their batches.
    """
    several = np.flatnonzero(np.bincount(slots)[slots] > 1)
    if not len(several):
        return order, _stretches(np.empty(0, np.int64), 0)
    lengths, rows = np.diff(bounds), len(bounds) - 1
    row_of = np.repeat(np.arange(rows), lengths)
    by_slot = several[np.lexsort((starts[several], slots[several]))]
    is_end = np.append(slots[by_slot[1:]] != slots[by_slot[:-1]], True)
    ends = np.empty(int(slots.max()) + 1, np.int64)
    ends[slots[by_slot[is_end]]] = row_of[by_slot[is_end]]
    inner = by_slot[~is_end]
    inner = inner[lengths[row_of[inner]] == 1]
    home = np.arange(rows)
    home[row_of[inner]] = ends[slots[inner]]
    rank = np.empty(rows, np.int64)
    rank[order] = np.arange(rows)
    first = rank.copy()
    np.minimum.at(first, home, rank)
    heads = bounds[:-1]
    together = np.lexsort((starts[heads], slots[heads], home == np.arange(rows), first[home]))
    groups = np.flatnonzero(np.append(True, np.diff(home[together]) != 0))
    if per_batch > 1:
        places, groups = _by_batches(groups, rows, per_batch)
        together = together[places]
    return together, _stretches(groups // per_batch, -(-rows // per_batch))


def _stretches(firsts: Integers, batches: int) -> Chains:
    """Return the chains of batches that follow each other, from where each begins."""
    lengths = np.diff(np.append(firsts, batches))
    number = -(-lengths // MAX_CHAIN)
    inner = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    begins = np.repeat(firsts, number) + inner * MAX_CHAIN
    of_each = np.diff(np.append(begins, batches))
    begins, of_each = begins[of_each > 1], of_each[of_each > 1]
    bounds = np.concatenate(([0], np.cumsum(of_each)))
    members = np.arange(bounds[-1]) - np.repeat(bounds[:-1], of_each) + np.repeat(begins, of_each)
    return Chains(members, bounds)


def _by_batches(firsts: Integers, rows: int, per_batch: int) -> tuple[Integers, Integers]:
    """Return rows so that each group is in as few batches as may be.

    Args:
        firsts: int64 (groups,): the first row of each group; the last one is its home.
        rows: How many rows there are.
        per_batch: How many rows a batch has.

    Returns:
        int64 (rows,): the rows; and where batches begin that have the homes of other groups than
        those before.
    """
    ends = np.append(firsts[1:], rows)
    # Of each group the rows that fill no batch, from 1 to `per_batch`.
    left = (ends - firsts - 1) % per_batch + 1
    waiting: list[deque[tuple[int, int, int]]] = [deque() for _ in range(per_batch + 1)]
    for first, end, size in zip(firsts.tolist(), ends.tolist(), left.tolist(), strict=True):
        waiting[size].append((first, end - size, end))
    found: list[tuple[int, int]] = []
    begins: list[int] = []
    placed = 0
    while any(waiting):
        room, before, batch = per_batch, [], []
        while room:
            fits = next((size for size in range(room, 0, -1) if waiting[size]), 0)
            if fits:
                first, begin, end = waiting[fits].popleft()
                before.append((first, begin))
                batch.append((begin, end))
                room -= fits
                continue
            # All that wait are larger: the first rows of one are in another batch than its last.
            larger = next((size for size in range(room + 1, per_batch + 1) if waiting[size]), 0)
            if not larger:
                break
            first, begin, end = waiting[larger].popleft()
            before.append((first, begin))
            batch.append((begin, begin + room))
            waiting[larger - room].append((begin + room, begin + room, end))
            room = 0
        found += before + batch
        begins.append(placed)
        placed += sum(end - first for first, end in before) + per_batch - room
    starts, stops = np.array(found, np.int64).T
    lengths = stops - starts
    inner = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + inner, np.array(begins, np.int64)
