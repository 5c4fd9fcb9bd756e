"""Where the batches of windows stand, epoch after epoch, by arithmetic.

Batches of one reading group are numbered from 0, through all epochs. In each epoch windows come in
another order, and so do the batches of each window, so a batch is found from its number by a few
sums over the windows and two permutations.

Where steps are balanced, the batches of a window are sorted by cost and cut into steps of G; the
cheapest, which fill no step, are kept for steps at the end of the epoch, together with those of the
other windows, and what fills no step there goes on into the next epoch. The steps of a window come
in another order each epoch. Let T be the batches of an epoch, R those kept for its end: epoch e has
`floor((e + 1) * T / G) - floor(e * T / G)` steps, the last `floor((e + 1) * R / G) - floor(e * R /
G)` of them, at most one more than `floor(R / G)`, of kept batches.

Windows whose batches share samples have them arranged once more, see `together`: whoever makes an
order tells how.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.core.permutation import Permutation
from penstock.server.planning.log.arranged import Arranged
from penstock.server.planning.log.index_windows import Integers

Costs = npt.NDArray[np.float64]

_EPOCHS = 4
"""Epochs whose order of windows is kept: lanes may be in different ones."""


Arrange = Callable[[int, int], Arranged | None]
"""Return how a window's batches are arranged in an epoch; None = as the order itself has them."""


def _as_it_is(window: int, epoch: int) -> None:
    return None


def batches_of(window: int, count: int, seed: int, epoch: int, purpose: str) -> Permutation:
    """Return the order of a window's batches in an epoch, where they are shuffled.

    Args:
        window: The window.
        count: How many batches it has.
        seed: The job's seed.
        epoch: The epoch.
        purpose: Keeps the orders of several reading groups apart.
    """
    return Permutation(count, seed, epoch, f"batches of window {window} {purpose}")


def steps_of(window: int, count: int, seed: int, epoch: int) -> Permutation:
    """Return the order of a window's steps in an epoch, where they are shuffled.

    Args:
        window: The window.
        count: How many whole steps it has.
        seed: The job's seed.
        epoch: The epoch.
    """
    return Permutation(count, seed, epoch, f"steps of window {window}")


def by_cost(cost: Costs) -> Integers:
    """Return a window's batches by cost; equal costs keep its order, so all machines agree."""
    return np.argsort(cost, kind="stable")


def in_steps(ranked: Integers, step: int, window: int, seed: int | None, epoch: int) -> Integers:
    """Return the batches of a window's whole steps in an epoch, step by step: int64 (n,).

    Args:
        ranked: Its batches, by cost.
        step: G.
        window: The window.
        seed: The job's seed; None = steps come one after another.
        epoch: The epoch.
    """
    steps = ranked[len(ranked) % step :].reshape(-1, step)
    if seed is not None:
        steps = steps[steps_of(window, len(steps), seed, epoch).take(np.arange(len(steps)))]
    return steps.reshape(-1)


class BatchPlace(NamedTuple):
    """Which batch stands at a number.

    Attributes:
        epoch: The epoch.
        window: The window.
        batch: The batch, by its number in the window.
        bears: What comes before it, in this epoch, in no batch of the window.
    """

    epoch: int
    window: int
    batch: int
    bears: bool


class WindowOrder:
    """The order of the batches of one reading group.

    Args:
        windows: How many windows it has.
        count: Tells how many batches a window has.
        seed: The job's seed; None = windows and batches come one after another.
        purpose: Keeps the orders of several groups apart.
        arranged: Tells how the batches of a window are arranged.
    """

    def __init__(
        self,
        windows: int,
        count: Callable[[int], int],
        seed: int | None,
        purpose: str,
        arranged: Arrange = _as_it_is,
    ) -> None:
        self._arranged = arranged
        self._windows, self._count = windows, lru_cache(None)(count)
        self._seed, self._purpose = seed, purpose
        self._order = lru_cache(_EPOCHS)(self._windows_of)
        self._ends = lru_cache(_EPOCHS)(self._ends_of)
        self._total: int | None = None

    @property
    def batches(self) -> int:
        """Return how many batches an epoch has."""
        if self._total is None:
            self._total = sum(map(self._count, range(self._windows)))
        return self._total

    def find(self, number: int) -> BatchPlace | None:
        """Return which batch has a number; None = no window has any."""
        early = self._in_first_windows(number)
        if early is not None:
            return early
        if not self.batches:
            return None
        epoch, inner = divmod(number, self.batches)
        ends = self._ends(epoch)
        place = int(np.searchsorted(ends, inner, "right"))
        first = int(ends[place - 1]) if place else 0
        return self._place(epoch, int(self._order(epoch)[place]), inner - first)

    def number_of(self, epoch: int, window: int, batch: int) -> int:
        """Return the number of a batch: the reverse of `find`."""
        place = int(np.flatnonzero(self._order(epoch) == window)[0])
        before = int(self._ends(epoch)[place]) - self._count(window)
        if (arranged := self._arranged(window, epoch)) is not None:
            batch = int(arranged.places[batch])
        elif self._seed is not None:
            batch = _place_in(self._batches_of(window, epoch), self._count(window), batch)
        return epoch * self.batches + before + batch

    def numbers_of_first(self, epoch: int) -> tuple[Integers, Integers]:
        """Return windows that have batches, and the number of the first batch of each in an epoch.

        Two arrays, int64 (n,), by rising numbers.
        """
        ends = self._ends(epoch)
        begins = np.concatenate(([0], ends[:-1]))
        some = np.flatnonzero(ends > begins)
        return self._order(epoch)[some], begins[some] + epoch * self.batches

    def least_number(self, epoch: int) -> int:
        """Return a number below which an epoch has no batch."""
        return epoch * self.batches

    def of_epoch(self, epoch: int) -> tuple[Integers, Integers]:
        """Return window and batch of every number of an epoch: int64 (batches,) each."""
        windows = self._order(epoch)
        counts = [self._count(window) for window in windows.tolist()]
        batches = [
            self._all_of(window, epoch, count)
            for window, count in zip(windows.tolist(), counts, strict=True)
        ]
        return np.repeat(windows, counts), np.concatenate([*batches, np.empty(0, np.int64)])

    def _all_of(self, window: int, epoch: int, count: int) -> Integers:
        if (arranged := self._arranged(window, epoch)) is not None:
            return arranged.batches
        every = np.arange(count)
        return every if self._seed is None else self._batches_of(window, epoch).take(every)

    def _in_first_windows(self, number: int) -> BatchPlace | None:
        """Return a batch of the first epoch without counting windows that come after it."""
        if self._total is not None:
            return None
        begin = 0
        for window in self._order(0).tolist():
            end = begin + self._count(window)
            if number < end:
                return self._place(0, window, number - begin)
            begin = end
        return None

    def _place(self, epoch: int, window: int, inner: int) -> BatchPlace:
        if (arranged := self._arranged(window, epoch)) is not None:
            batch = int(arranged.batches[inner])
        else:
            batch = inner if self._seed is None else self._batches_of(window, epoch)[inner]
        return BatchPlace(epoch, window, batch, inner == 0)

    def _batches_of(self, window: int, epoch: int) -> Permutation:
        """Return the order of a window's batches; only where they are shuffled."""
        assert self._seed is not None
        return batches_of(window, self._count(window), self._seed, epoch, self._purpose)

    def _windows_of(self, epoch: int) -> Integers:
        every = np.arange(self._windows)
        if self._seed is None:
            return every
        return Permutation(self._windows, self._seed, epoch, f"windows {self._purpose}").take(every)

    def _ends_of(self, epoch: int) -> Integers:
        return np.cumsum([self._count(window) for window in self._order(epoch).tolist()])


class BalancedOrder:
    """The order of the batches of a job whose steps are balanced.

    Args:
        windows: How many windows it has.
        costs: Tells what each batch of a window costs, float64 (batches,).
        step: G, the batches of a step.
        seed: The job's seed; None = windows and steps come one after another.
        epochs: How many epochs there are; None = no end.
        arranged: Tells how the batches of a window's steps are arranged.
    """

    def __init__(
        self,
        windows: int,
        costs: Callable[[int], Costs],
        step: int,
        seed: int | None,
        epochs: int | None,
        arranged: Arrange = _as_it_is,
    ) -> None:
        self._step, self._seed, self._epochs = step, seed, epochs
        self._arranged = arranged
        every = [costs(window) for window in range(windows)]
        self._sorted = list(map(by_cost, every))
        self._counts = np.array([len(cost) for cost in every], np.int64)
        self._steps = self._counts // step
        kept = [order[: len(order) % step] for order in self._sorted]
        kept_costs = np.concatenate([cost[own] for cost, own in zip(every, kept, strict=True)])
        ranked = np.argsort(kept_costs, kind="stable")
        self._kept_costs = kept_costs[ranked]
        self._kept_windows = np.repeat(np.arange(windows), [len(own) for own in kept])[ranked]
        self._kept = np.concatenate(kept)[ranked]
        self.batches = int(self._counts.sum())
        self._order = lru_cache(_EPOCHS)(self._windows_of)
        # The first of the kept batches of each window without a step, by its place among all kept.
        kept_of, firsts = np.unique(self._kept_windows, return_index=True)
        stepless = self._steps[kept_of] == 0
        self._first_kept = dict(
            zip(kept_of[stepless].tolist(), firsts[stepless].tolist(), strict=True)
        )

    def find(self, number: int) -> BatchPlace | None:
        """Return which batch has a number; None = no window has any."""
        step, inner = divmod(number, self._step)
        total = self.batches
        if not total:
            return None
        epoch = -(-(step + 1) * self._step // total) - 1
        if self._epochs is not None:
            epoch = min(epoch, self._epochs - 1)  # of the last step, which is not full
        place = step - epoch * total // self._step
        whole = int(self._steps.sum())
        if place >= whole:
            return self._kept_at(epoch, place - whole, inner)
        ends = np.cumsum(self._steps[self._order(epoch)])
        at = int(np.searchsorted(ends, place, "right"))
        window = int(self._order(epoch)[at])
        place -= int(ends[at - 1]) if at else 0
        bears = place == 0 and inner == 0
        if (arranged := self._arranged(window, epoch)) is not None:
            return BatchPlace(
                epoch, window, int(arranged.batches[place * self._step + inner]), bears
            )
        if self._seed is not None:
            place = self._steps_of(window, epoch)[place]
        order = self._sorted[window]
        batch = int(order[len(order) % self._step + place * self._step + inner])
        return BatchPlace(epoch, window, batch, bears)

    def number_of(self, epoch: int, window: int, batch: int) -> int:
        """Return the number of a batch: the reverse of `find`."""
        order, size = self._sorted[window], self._step
        rank = int(np.flatnonzero(order == batch)[0]) - len(order) % size
        if rank < 0:
            is_it = (self._kept_windows == window) & (self._kept == batch)
            return self._number_of_kept(epoch, int(np.flatnonzero(is_it)[0]))
        place, inner = divmod(rank, size)
        if (arranged := self._arranged(window, epoch)) is not None:
            place, inner = divmod(int(arranged.places[batch]), size)
        elif self._seed is not None:
            place = _place_in(self._steps_of(window, epoch), int(self._steps[window]), place)
        windows = self._order(epoch)
        before = self._steps[windows[: int(np.flatnonzero(windows == window)[0])]].sum()
        return (epoch * self.batches // size + int(before) + place) * size + inner

    def numbers_of_first(self, epoch: int) -> tuple[Integers, Integers]:
        """Return windows that have batches, and the number of the first batch of each in an epoch.

        Two arrays, int64 (n,), by rising numbers.
        """
        order = self._order(epoch)
        steps = self._steps[order]
        begins = np.cumsum(steps) - steps + epoch * self.batches // self._step
        some = np.flatnonzero(steps)
        windows, numbers = order[some].tolist(), (begins[some] * self._step).tolist()
        for window, at in self._first_kept.items():
            windows.append(window)
            numbers.append(self._number_of_kept(epoch, at))
        ranked = np.argsort(numbers, kind="stable")
        return np.array(windows, np.int64)[ranked], np.array(numbers, np.int64)[ranked]

    def least_number(self, epoch: int) -> int:
        """Return a number below which an epoch has no batch: that of its first step.

        Batches that fill no step there come later, in one of a later epoch.
        """
        return epoch * self.batches // self._step * self._step

    def of_epoch(self, epoch: int) -> tuple[Integers, Integers]:
        """Return window and batch of every number of an epoch's whole steps: int64 (n,) each."""
        step, kept, windows, batches = self._step, len(self._kept), [], []
        for window in self._order(epoch).tolist():
            if (arranged := self._arranged(window, epoch)) is not None:
                own = arranged.batches
            else:
                own = in_steps(self._sorted[window], step, window, self._seed, epoch)
            windows.append(np.full(len(own), window))
            batches.append(own)
        for number in range(epoch * kept // step, (epoch + 1) * kept // step):
            first, members = self._kept_step(number)
            places = (first + members) % kept
            windows.append(self._kept_windows[places])
            batches.append(self._kept[places])
        none = np.empty(0, np.int64)
        return np.concatenate([*windows, none]), np.concatenate([*batches, none])

    def _steps_of(self, window: int, epoch: int) -> Permutation:
        """Return the order of a window's steps; only where they are shuffled."""
        assert self._seed is not None
        return steps_of(window, int(self._steps[window]), self._seed, epoch)

    def _kept_at(self, epoch: int, step: int, inner: int) -> BatchPlace:
        """Return a batch of the `step`-th step of kept ones in an epoch."""
        first, members = self._kept_step(epoch * len(self._kept) // self._step + step)
        of, at = divmod(first + int(members[inner]), len(self._kept))
        window = int(self._kept_windows[at])
        return BatchPlace(of, window, int(self._kept[at]), self._first_kept.get(window) == at)

    def _kept_step(self, number: int) -> tuple[int, Integers]:
        """Return the first kept batch of a step, through all epochs, and its order by cost."""
        first, size = number * self._step, self._step
        if self._epochs is not None:
            size = min(size, self._epochs * len(self._kept) - first)
        places = np.arange(first, first + size) % len(self._kept)
        return first, np.argsort(self._kept_costs[places], kind="stable")

    def _number_of_kept(self, epoch: int, at: int) -> int:
        """Return the number of a kept batch of an epoch."""
        kept = len(self._kept)
        through = epoch * kept + at
        step = through // self._step
        first, members = self._kept_step(step)
        # Steps of kept ones come at the end of the epoch that fills them.
        fills = -(-(step + 1) * self._step // kept) - 1
        if self._epochs is not None:
            fills = min(fills, self._epochs - 1)
        before = fills * self.batches // self._step + int(self._steps.sum())
        place = before + step - fills * kept // self._step
        return place * self._step + int(np.flatnonzero(members == through - first)[0])

    def _windows_of(self, epoch: int) -> Integers:
        every = np.arange(len(self._counts))
        if self._seed is None:
            return every
        return Permutation(len(every), self._seed, epoch, "windows").take(every)


def _place_in(order: Permutation, length: int, wanted: int) -> int:
    """Return where a permutation has a number."""
    return int(np.flatnonzero(order.take(np.arange(length)) == wanted)[0])
