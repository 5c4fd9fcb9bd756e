"""The batches of one reading group of a planned job: how many a window has, and where they are.

What is found of a window is alike in all epochs, and depends on nothing but its samples; only where
its batches stand differs, and is arithmetic, too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.log.arranged import Arranged, together
from penstock.server.planning.log.batch_order import (
    BalancedOrder,
    Costs,
    WindowOrder,
    batches_of,
    by_cost,
    in_steps,
)
from penstock.server.planning.log.chains import Chains
from penstock.server.planning.log.index_windows import Integers, Windows, WindowSamples
from penstock.server.planning.log.packed_window import (
    Outline,
    PackedWindow,
    outline,
    pack,
    with_cost,
)
from penstock.server.planning.log.plan_parameters import PlanParameters
from penstock.server.planning.log.processed import Processed, processed_in
from penstock.wire.errors import BadItem

KEPT_SAMPLES = 4_000_000
"""Samples of packed windows that a process keeps, in all: about 250 MB. Lanes of several reading
groups, and of two epochs, draw from several windows at a time."""

ARRANGED = 4
"""Windows whose arranged batches are kept: lanes may be in two windows, and in two epochs."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Recent(Generic[KeyT, ValueT]):
    """What was used last, of at most `KEPT_SAMPLES` samples in all; the last one in any case."""

    def __init__(self) -> None:
        self._kept: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._samples = 0

    def get(self, key: KeyT) -> ValueT | None:
        """Return what is kept; None = nothing."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: KeyT, value: ValueT, samples: int) -> None:
        """Keep what so many samples are in."""
        self._kept[key] = value, samples
        self._samples += samples
        while self._samples > KEPT_SAMPLES and len(self._kept) > 1:
            self._samples -= self._kept.popitem(last=False)[1][1]


Packed = tuple[WindowSamples, PackedWindow]
"""The samples of a window, and how they are packed."""


class GroupStream:
    """The batches of one reading group, or of the whole job: those of its lanes, in turn.

    Args:
        windows: Its windows.
        roles: The roles.
        plan: What the job says of it.
        seed: The job's seed; None = nothing is shuffled.
        step: The batches of a step, where steps are balanced; else None.
        group: The number of the reading group.
        lanes: How many lanes take its batches in turn.
        kept: Where packed windows of all groups are kept.

    Attributes:
        windows: How many windows it has.
        most_parts: Of how many parts of the line, such as storage blocks, a window has items.
    """

    def __init__(
        self,
        windows: Windows,
        roles: RoleSet,
        plan: PlanParameters,
        seed: int | None,
        step: int | None,
        group: int,
        lanes: int,
        kept: Recent[tuple[int, int], Packed],
    ) -> None:
        self._windows, self._roles, self._plan, self._seed = windows, roles, plan, seed
        self._step, self._group, self._purpose = step, group, f"of group {group}"
        self._lanes, self._kept = lanes, kept
        self.windows, self.most_parts = len(windows), windows.most_parts
        self.arranged = lru_cache(ARRANGED)(self._arranged)
        self._made: WindowOrder | BalancedOrder | None = None
        self._batches: dict[int, int] = {}
        self._counted: dict[int, Counter[str]] = {}
        self._costs: dict[int, Costs] = {}
        self._chains: dict[int, Chains | None] = {}

    @property
    def order(self) -> WindowOrder | BalancedOrder:
        """Return where its batches stand."""
        if self._made is None:
            seed, epochs = self._seed, self._roles.epochs
            if self._step is None:
                of_windows = self.windows, self.count, seed, self._purpose
                self._made = WindowOrder(*of_windows, self.arranged)
            else:
                of_steps = self.windows, self._cost, self._step, seed, epochs
                self._made = BalancedOrder(*of_steps, self.arranged)
        return self._made

    @property
    def batches(self) -> int:
        """Return how many batches an epoch has."""
        return self.order.batches

    def samples(self, number: int) -> WindowSamples:
        """Return the samples of a window."""
        return self._windows.samples(number)

    def window(self, number: int, samples: WindowSamples | None = None) -> PackedWindow:
        """Return a window, packed: alike in all epochs.

        Its counts are those of its items, too.

        Raises:
            BadItem: A sample does not fit, and the batcher refuses it.
        """
        samples = samples or self.samples(number)
        try:
            found = pack(
                self._roles.batcher,
                samples.sizes,
                samples.measured,
                self._seed,
                f"window {number} {self._purpose}",
                by_length=self._plan.group_by_length,
            )
        except BadItem as error:
            raise self._named(error, samples) from error
        found.counts.update(samples.counts)
        self._batches[number], self._counted[number] = len(found), Counter(found.counts)
        if self._plan.balance is not None:
            names = self._roles.measures
            found = with_cost(found, self._plan.balance, names, samples.measured)
            assert found.cost is not None
            self._costs[number] = found.cost
        if found.chains is None:
            self._chains[number] = None
        return found

    def packed(self, number: int) -> Packed:
        """Return a window's samples, and how they are packed; kept for a while."""
        found = self._kept.get((self._group, number))
        if found is None:
            samples = self.samples(number)
            found = samples, self.window(number, samples)
            self._kept.put((self._group, number), found, len(samples.sizes))
        return found

    def learn(
        self, number: int, batches: int, cost: Costs | None, chains: Chains | None = None
    ) -> None:
        """Take what `window` would find, from a process that has packed it."""
        self._batches[number], self._chains[number] = batches, chains
        if cost is not None:
            self._costs[number] = cost

    def _arranged(self, number: int, epoch: int) -> Arranged | None:
        """Return how a window's batches are arranged; None = as the order has them by itself."""
        if not self._roles.batcher_facts.may_split:
            return None
        if number not in self._chains:
            packed = self.packed(number)[1]
            return self.arrange(number, epoch, len(packed), packed.chains, packed.cost)
        batches, cost = self._batches[number], self._costs.get(number)
        return self.arrange(number, epoch, batches, self._chains[number], cost)

    def arrange(
        self, number: int, epoch: int, batches: int, chains: Chains | None, cost: Costs | None
    ) -> Arranged | None:
        """Return how a window's batches are arranged in an epoch, so that chains are in one lane.

        Args:
            number: The window.
            epoch: The epoch.
            batches: How many batches it has.
            chains: Its chains; None = no two of its batches share a sample.
            cost: What its batches cost, where steps are balanced.
        """
        if chains is None:
            return None
        if self._step is None:
            every = np.arange(batches)
            if self._seed is not None:
                every = batches_of(number, batches, self._seed, epoch, self._purpose).take(every)
            is_free = np.ones(batches, np.bool_)
        else:
            assert cost is not None
            every = in_steps(by_cost(cost), self._step, number, self._seed, epoch)
            # Most batches of chains are full of one sample: they cost the same.
            values, counts = np.unique(-cost[chains.batches], return_counts=True)
            common = -values[counts.argmax()] if len(counts) else np.nan
            is_free = cost[every] == common
        return together(Arranged.of(every, batches), chains, is_free, self._lanes)

    def count(self, number: int) -> int:
        """Return how many batches a window has."""
        if number not in self._batches:
            found = self._outline(number, self._windows.sizes(number))
            if found is not None and found.batches is not None:
                self._batches[number] = found.batches
            else:
                self.window(number)
        return self._batches[number]

    def counts(self, number: int) -> Counter[str]:
        """Return what a window counts, and those after it without a batch, which cannot bear it."""
        found = Counter(self.counts_of(number))
        for following in range(number + 1, number + self.windows):
            other = following % self.windows
            if self.count(other):
                break
            found.update(self.counts_of(other))
        return found

    def counts_of(self, number: int) -> Counter[str]:
        """Return what a window counts."""
        if number not in self._counted:
            samples = self.samples(number)
            found = self._outline(number, samples.sizes)
            if found is None:
                self.window(number, samples)
            else:
                self._counted[number] = found.counts + samples.counts
        return self._counted[number]

    def processed(
        self,
        number: int,
        samples: WindowSamples,
        packed: PackedWindow,
        epoch: int = 0,
    ) -> Processed:
        """Return how often the samples of a window are processed in an epoch.

        Args:
            number: The window.
            samples: Its samples.
            packed: How they are packed.
            epoch: The epoch: whatever sample has a place there, it has the size of this one.
        """
        arranged = self.arrange(number, epoch, len(packed), packed.chains, packed.cost)
        return processed_in(packed, arranged, self._lanes, samples.sizes)

    def _outline(self, number: int, sizes: Integers) -> Outline | None:
        try:
            return outline(self._roles.batcher, sizes)
        except BadItem:
            self.window(number)  # which names the item
            raise

    def _cost(self, number: int) -> Costs:
        if number not in self._costs:
            self.window(number)
        return self._costs[number]

    def _named(self, error: BadItem, samples: WindowSamples) -> BadItem:
        slot = int(error.fields["item"])
        name = list(self._roles.sources)[int(samples.sources[slot])]
        item = ItemRef(name, int(samples.items[slot]), 0)
        return BadItem(f"{item}: {error.message}", **{**error.fields, "item": list(item)})
