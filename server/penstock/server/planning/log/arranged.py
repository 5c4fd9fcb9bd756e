"""The batches of a window in one epoch, with those of a chain in one lane, one after another.

Lanes take the batches of a window in turn, so the places of one lane are every so many of them: a
column. Some batches may trade places: all of them where nothing else decides their order, and where
steps are balanced those that cost the same, most of which are full of one document. These are laid
out anew, column by column; all others stay where they are.

A chain lies in one column, in its order, where there is room for it. If one of its batches stands
fast it lies in the column of that one, before it: the last piece of a document shares its row, and
that row's cost says where it stands, but the pieces before it fill rows that cost the same.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.planning.log.chains import Chains
from penstock.server.planning.log.index_windows import Integers


class Arranged(NamedTuple):
    """A window's batches in one epoch.

    Attributes:
        batches: int64 (n,): the batch at each place.
        places: int64 (batches,): the place of each batch; -1 = it has none here.
    """

    batches: Integers
    places: Integers

    @classmethod
    def of(cls, batches: Integers, total: int) -> Arranged:
        """Return it for the batches at all places, of `total` that the window has."""
        places = np.full(total, -1, np.int64)
        places[batches] = np.arange(len(batches))
        return cls(batches, places)


class _ColumnRun(NamedTuple):
    """Batches that are to follow each other in a column.

    Attributes:
        first, last: Where they are among those of the chains.
        at: About where in the window.
        column: The column that they belong to; -1 = any.
    """

    first: int
    last: int
    at: int
    column: int

    @property
    def length(self) -> int:
        return self.last - self.first


def together(
    before: Arranged, chains: Chains, is_free: npt.NDArray[np.bool_], lanes: int
) -> Arranged:
    """Return a window with chains in columns.

    Args:
        before: The window without them: about where a batch stands there it comes to stand.
        chains: Its chains.
        is_free: bool (n,): the batches at these places may trade them with each other.
        lanes: How many lanes take places in turn.
    """
    members, runs = _runs(before, chains, is_free, lanes)
    if not runs:
        return before
    free = np.flatnonzero(is_free)
    room = np.bincount(free % lanes, minlength=lanes).tolist()
    laid = list(_dealt(runs, room, int(before.batches[0])))
    # What is in no run fills what room there is, evenly over each column.
    is_laid = np.zeros(len(before.places), bool)
    for run in laid:
        is_laid[members[run.first : run.last]] = True
    singles = before.batches[free][~is_laid[before.batches[free]]]
    counts = np.array(room)
    columns = np.repeat(np.arange(lanes), counts)
    turns = np.arange(len(columns)) - np.repeat(np.cumsum(counts) - counts, counts)
    even = np.argsort((2 * turns + 1) / (2 * counts[columns]), kind="stable")
    columns = np.concatenate([columns[even], np.array([run.column for run in laid], np.int64)])
    ats = np.concatenate([before.places[singles], np.array([run.at for run in laid], np.int64)])
    firsts = np.array([run.first for run in laid], np.int64) + len(singles)
    firsts = np.concatenate([np.arange(len(singles)), firsts])
    lengths = np.array([run.length for run in laid], np.int64)
    lengths = np.concatenate([np.ones(len(singles), np.int64), lengths])
    order = np.lexsort((ats, columns))
    firsts, lengths = firsts[order], lengths[order]
    inner = np.arange(len(free)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    batches = before.batches.copy()
    every = np.concatenate([singles, members])
    batches[free[np.argsort(free % lanes, kind="stable")]] = every[
        np.repeat(firsts, lengths) + inner
    ]
    return Arranged.of(batches, len(before.places))


def _runs(
    before: Arranged, chains: Chains, is_free: npt.NDArray[np.bool_], lanes: int
) -> tuple[Integers, list[_ColumnRun]]:
    """Return the batches of chains that may trade places, and the runs that they form."""
    places = before.places[chains.batches]
    numbers = np.repeat(np.arange(len(chains.bounds) - 1), np.diff(chains.bounds))
    is_there = places >= 0
    members, places, numbers = chains.batches[is_there], places[is_there], numbers[is_there]
    trades = is_free[places]
    stands = np.full(len(chains.bounds) - 1, -1, np.int64)
    np.maximum.at(stands, numbers[~trades], places[~trades])
    members, places, numbers = members[trades], places[trades], numbers[trades]
    bounds = np.searchsorted(numbers, np.arange(len(chains.bounds)))
    found = []
    for first, last, stand in zip(
        bounds[:-1].tolist(), bounds[1:].tolist(), stands.tolist(), strict=True
    ):
        if last - first > 1 or (last > first and stand >= 0):
            at = int(places[first]) if stand < 0 else stand
            found.append(_ColumnRun(first, last, at, -1 if stand < 0 else stand % lanes))
    return members, found


def _dealt(runs: list[_ColumnRun], room: list[int], turn: int) -> Iterator[_ColumnRun]:
    """Yield all runs, cut where there is no room, each with its column; take it from `room`."""
    loose = [run for run in runs if run.column < 0]
    of_column: dict[int, list[_ColumnRun]] = {}
    for run in runs:
        if run.column >= 0:
            of_column.setdefault(run.column, []).append(run)
    for column, own in of_column.items():
        kept, others = _fitting(own, room[column])
        loose += others
        room[column] -= sum(run.length for run in kept)
        yield from kept
    # The longest first, each where most room is; of equals the column that the epoch begins with.
    waiting = [(-run.length, run.at, run.first, run.last) for run in loose]
    heapq.heapify(waiting)
    shifted = [(-left, (column - turn) % len(room), column) for column, left in enumerate(room)]
    heapq.heapify(shifted)
    while waiting:
        _, at, first, last = heapq.heappop(waiting)
        left, shift, column = heapq.heappop(shifted)
        end = min(last, first - left)
        if end < last:
            heapq.heappush(waiting, (end - last, at, end, last))
        yield _ColumnRun(first, end, at, column)
        room[column] -= end - first
        heapq.heappush(shifted, (left + end - first, shift, column))


def _fitting(own: list[_ColumnRun], room: int) -> tuple[list[_ColumnRun], list[_ColumnRun]]:
    """Return runs that a column has room for, and what of them it has none for.

    Whatever is taken away from a run, all of its document is processed once more. So it is taken
    from as few, and as short ones, as may be.
    """
    excess = sum(run.length for run in own) - room
    if excess <= 0:
        return own, []
    kept, others = sorted(own, key=lambda run: (run.length, run.at)), []
    while excess > 0:
        at = bisect_left(kept, excess, key=lambda run: run.length)
        run = kept.pop(min(at, len(kept) - 1))
        # Its first batches go elsewhere, and those before the one that stands fast stay.
        cut = min(run.last, run.first + excess)
        others.append(run._replace(last=cut, column=-1))
        if cut < run.last:
            kept.append(run._replace(first=cut))
        excess -= cut - run.first
    return kept, others
