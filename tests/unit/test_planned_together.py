"""Batches that share samples are laid into lanes, one after another, and all others beside them."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from penstock.server.planning.log.arranged import Arranged, together
from penstock.server.planning.log.batch_order import BalancedOrder, WindowOrder, by_cost, in_steps
from penstock.server.planning.log.chains import MAX_CHAIN, Chains, chains_of, shared_by
from penstock.server.planning.log.packed_window import PackedWindow, pack
from penstock.server.roles.batchers import BestFitDecreasingPackingBatcher
from resume.plans import BATCHERS

CASES = 300
CAPACITY = 32


def random_sizes(chance: random.Random) -> Any:
    """Return sizes of samples, some of them of many rows."""
    longest, share = chance.choice([40, 100, 400]), chance.choice([0.05, 0.4])
    return np.array(
        [
            chance.randint(33, longest) if chance.random() < share else chance.randint(0, 32)
            for _ in range(chance.randint(1, 120))
        ],
        np.int64,
    )


def random_window(chance: random.Random) -> PackedWindow:
    name = chance.choice(["decreasing", "decreasing", "concat", "best_fit_split", "knapsack"])
    rows = chance.choice([1, 1, 2, 3, 8])
    batcher = (
        BestFitDecreasingPackingBatcher(CAPACITY, rows=rows)
        if name == "decreasing"
        else BATCHERS[name]
    )
    seed = chance.choice([None, 3])
    return pack(batcher, random_sizes(chance), None, seed, "window 0", by_length=False)


def holders(packed: PackedWindow) -> dict[int, set[int]]:
    """Return which batches hold pieces of each sample, by loops alone."""
    found: dict[int, set[int]] = {}
    for batch, (first, last) in enumerate(pairwise(packed.batches.tolist())):
        for row, end in pairwise(packed.rows[first : last + 1].tolist()):
            for slot in packed.slots[row:end].tolist():
                found.setdefault(slot, set()).add(batch)
    return found


def members(chains: Chains) -> list[list[int]]:
    return [chains.batches[a:b].tolist() for a, b in pairwise(chains.bounds.tolist())]


def test_chains_are_batches_that_share_samples() -> None:
    """Each batch in one of them at most, in their order; and all that share, up to the bound."""
    split = 0
    for case in range(CASES):
        packed = random_window(random.Random(case))
        several = {slot: own for slot, own in holders(packed).items() if len(own) > 1}
        if not several:
            assert packed.shared is None
            assert packed.chains is None
            continue
        split += 1
        assert packed.shared is not None
        assert packed.chains is not None
        assert {slot: set(packed.shared.of(slot).tolist()) for slot in several} == several
        for slot in set(packed.slots.tolist()) - set(several):
            assert not len(packed.shared.of(slot))
        chains = members(packed.chains)
        every = [batch for chain in chains for batch in chain]
        assert len(every) == len(set(every))
        for chain in chains:
            assert chain == sorted(chain)
            assert 2 <= len(chain) <= MAX_CHAIN
            assert is_linked(chain, several), case
        if all(len(own) < MAX_CHAIN // 4 for own in several.values()) and len(packed) < MAX_CHAIN:
            of = {batch: number for number, chain in enumerate(chains) for batch in chain}
            assert all(len({of[batch] for batch in own}) == 1 for own in several.values())
    assert split > CASES // 2


def is_linked(chain: list[int], several: dict[int, set[int]]) -> bool:
    """Tell whether each batch of a chain is reached from the first by samples that they share."""
    reached, grows = {chain[0]}, True
    while grows:
        more = [own & set(chain) for own in several.values() if own & reached]
        larger = reached.union(*more)
        grows, reached = larger != reached, larger
    return reached == set(chain)


def test_a_sample_of_a_thousand_rows_is_no_endless_chain() -> None:
    """A lane makes batches of other samples in between, and it is processed for each stretch."""
    slots, rows = np.zeros(1000, np.int64), np.arange(1001)
    shared = shared_by(slots, rows, rows)
    assert shared is not None

    chains = members(chains_of(shared, np.array([1000 * CAPACITY])))

    assert [len(chain) for chain in chains] == [MAX_CHAIN] * 15 + [1000 % MAX_CHAIN]
    assert [batch for chain in chains for batch in chain] == list(range(1000))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_rows_of_a_sample_share_batches(rows: int) -> None:
    """Of samples of a few rows each, no more than one in six is in more batches than it must."""
    chance = random.Random(rows)
    for _ in range(20):
        sizes = np.array([chance.choice([5, 9, 20, 50, 90, 130, 300]) for _ in range(200)])
        batcher = BestFitDecreasingPackingBatcher(CAPACITY, rows=rows)

        packed = pack(batcher, sizes, None, chance.choice([None, 1]), "window 0", by_length=False)

        pieces = Counter(packed.slots.tolist())
        # The end of a sample is in a row with others, which may belong to another sample's batch.
        more = [
            slot
            for slot, own in holders(packed).items()
            if len(own) > -(-(pieces[slot] - 1) // rows) + 1
        ]
        assert len(more) <= sum(number > 1 for number in pieces.values()) / 6


def arranged_before(total: int, chance: random.Random) -> Arranged:
    order = list(range(total))
    chance.shuffle(order)
    return Arranged.of(np.array(order, np.int64), total)


def test_every_batch_stands_somewhere_and_chains_in_columns() -> None:
    """Those that may not trade places stay; a chain that has room is in one lane, without a gap."""
    whole = 0
    for case in range(CASES):
        chance = random.Random(case)
        packed = random_window(chance)
        if packed.chains is None:
            continue
        lanes, total = chance.choice([1, 2, 3, 6, 48]), len(packed)
        before = arranged_before(total, chance)

        found = together(before, packed.chains, np.ones(total, bool), lanes)

        assert sorted(found.batches.tolist()) == list(range(total)), case
        assert (found.places[found.batches] == np.arange(total)).all()
        room = total // lanes
        chains = members(packed.chains)
        longest = max(map(len, chains))
        for chain in chains:
            places = found.places[chain].tolist()
            if longest * 2 <= room and sum(map(len, chains)) * 2 <= total:
                assert places == list(range(places[0], places[-1] + 1, lanes)), case
                whole += 1
            # Cut where lanes have no room, and each stretch goes on where the lane does.
            stretches = Counter(place % lanes for place in places)
            assert len(stretches) <= min(lanes, len(chain))
    assert whole > CASES // 4


def test_what_stands_fast_has_its_chain_in_its_lane() -> None:
    """The batches that may trade places, before it where such places are; all others stay."""
    followed = missed = 0
    for case in range(CASES):
        chance = random.Random(case)
        packed = random_window(chance)
        if packed.chains is None:
            continue
        total, lanes = len(packed), chance.choice([1, 2, 4])
        before = arranged_before(total, chance)
        # Batches of one chain but its last may trade places, as those that are full of one sample.
        free = np.ones(total, bool)
        lasts = [chain[-1] for chain in members(packed.chains)]
        free[before.places[lasts]] = False

        found = together(before, packed.chains, free, lanes)

        assert sorted(found.batches.tolist()) == list(range(total))
        assert (found.batches[~free] == before.batches[~free]).all()
        for chain in members(packed.chains):
            columns = Counter((found.places[chain[:-1]] % lanes).tolist())
            followed += columns[int(found.places[chain[-1]]) % lanes]
            missed += len(chain) - 1
    assert followed > 0.6 * missed


@pytest.mark.parametrize("balanced", [False, True])
def test_orders_find_what_is_arranged(balanced: bool) -> None:
    """By number, by batch, and of a whole epoch; and balanced steps stay sorted by cost."""
    every_case: dict[int, tuple[list[PackedWindow], Any]] = {}
    for case in range(CASES // 10):
        chance = random.Random(case)
        windows = [random_window(chance) for _ in range(chance.randint(1, 4))]
        lanes, step, seed = chance.choice([1, 3, 4]), chance.choice([1, 2, 4]), 5
        costs = [
            np.array([chance.randint(0, 3) for _ in range(len(own))], float) for own in windows
        ]

        every_case[case] = windows, costs

        @lru_cache(None)
        def arranged(
            window: int,
            epoch: int,
            *,
            case: int = case,
            lanes: int = lanes,
            step: int = step,
        ) -> Arranged | None:
            windows, costs = every_case[case]
            chains, total = windows[window].chains, len(windows[window])
            if chains is None:
                return None
            every = np.arange(total)
            free = np.ones(total, bool)
            if balanced:
                every = in_steps(by_cost(costs[window]), step, window, 5, epoch)
                free = costs[window][every] == 3
            return together(Arranged.of(every, total), chains, free, lanes)

        counts = [len(own) for own in windows]
        if not sum(counts):
            continue
        order: WindowOrder | BalancedOrder
        if balanced:
            order = BalancedOrder(len(windows), costs.__getitem__, step, seed, 2, arranged)
        else:
            order = WindowOrder(len(windows), counts.__getitem__, seed, "", arranged)

        found = [order.find(number) for number in range(2 * sum(counts))]

        places = [(p.epoch, p.window, p.batch) for p in found if p is not None]
        assert sorted(places) == [
            (epoch, window, batch)
            for epoch in range(2)
            for window, count in enumerate(counts)
            for batch in range(count)
        ], case
        for number, place in enumerate(places):
            assert order.number_of(*place) == number
        of_windows, batches = order.of_epoch(0)
        told = list(zip(of_windows.tolist(), batches.tolist(), strict=True))
        assert told == [(window, batch) for _, window, batch in places[: len(told)]]
        if balanced:
            values = [costs[window][batch] for _, window, batch in places]
            steps = [values[first : first + step] for first in range(0, len(values), step)]
            assert all(own == sorted(own) for own in steps)
