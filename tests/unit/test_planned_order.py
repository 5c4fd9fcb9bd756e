"""Where the batches of planned windows stand, against loops that lay them out one by one.

Thousands of small cases: windows with any number of batches (none, too), any G, any epochs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from penstock.server.core.permutation import Permutation
from penstock.server.planning.log.batch_order import BalancedOrder, BatchPlace, Costs, WindowOrder

CASES = 400
PARTS = 4


def laid_out(
    counts: Sequence[int], seed: int | None, purpose: str, epochs: int
) -> list[tuple[int, int, int, bool]]:
    """Return (epoch, window, batch, first of its window) of each number, by loops alone."""
    found = []
    for epoch in range(epochs):
        windows = list(range(len(counts)))
        if seed is not None:
            order = Permutation(len(counts), seed, epoch, f"windows {purpose}")
            windows = [order[at] for at in windows]
        for window in windows:
            batches = list(range(counts[window]))
            if seed is not None:
                of_window = f"batches of window {window} {purpose}"
                order = Permutation(len(batches), seed, epoch, of_window)
                batches = [order[at] for at in batches]
            found += [(epoch, window, batch, at == 0) for at, batch in enumerate(batches)]
    return found


def laid_out_balanced(
    costs: Sequence[Costs], step: int, seed: int | None, epochs: int, *, ends: bool
) -> list[tuple[int, int, int, bool]]:
    """Return the same for balanced steps; the last epoch ends with a step that is not full.

    With `ends` false, what fills no step at the end goes on into an epoch that is not laid out.
    """
    by_cost = [sorted(range(len(own)), key=lambda b, own=own: (own[b], b)) for own in costs]
    kept = sorted(
        (float(costs[window][batch]), window, place, batch)
        for window, order in enumerate(by_cost)
        for place, batch in enumerate(order[: len(order) % step])
    )
    steps_of = [
        [order[at : at + step] for at in range(len(order) % step, len(order), step)]
        for order in by_cost
    ]
    found = []
    waiting: list[tuple[float, int, int, int]] = []  # cost, epoch, window, batch

    def lay_kept(number: int) -> None:
        own = sorted(waiting[:number], key=lambda each: each[0])
        del waiting[:number]
        for _, of, window, batch in own:
            first = next(b for _, w, _, b in kept if w == window)
            found.append((of, window, batch, not steps_of[window] and batch == first))

    for epoch in range(epochs):
        windows = list(range(len(costs)))
        if seed is not None:
            order = Permutation(len(windows), seed, epoch, "windows")
            windows = [order[at] for at in windows]
        for window in windows:
            steps = list(range(len(steps_of[window])))
            if seed is not None:
                order = Permutation(len(steps), seed, epoch, f"steps of window {window}")
                steps = [order[at] for at in steps]
            for place, number in enumerate(steps):
                own = steps_of[window][number]
                found += [(epoch, window, b, place == at == 0) for at, b in enumerate(own)]
        waiting += [(cost, epoch, window, batch) for cost, window, _, batch in kept]
        while len(waiting) >= step:
            lay_kept(step)
    if ends and waiting:
        lay_kept(len(waiting))
    return found


def random_counts(chance: random.Random) -> list[int]:
    """Return batches of 1 to 8 windows, in all at least one; some windows have none."""
    most = chance.choice([1, 3, 9, 40])
    counts = [chance.choice([0, chance.randint(0, most)]) for _ in range(chance.randint(1, 8))]
    if not any(counts):
        counts[chance.randrange(len(counts))] = chance.randint(1, most)
    return counts


def random_costs(chance: random.Random, counts: Sequence[int]) -> list[Costs]:
    """Return costs of every batch, many of them equal."""
    most = chance.choice([0, 3, 1000])
    return [np.array([chance.randint(0, most) for _ in range(n)], np.float64) for n in counts]


def check_firsts(
    order: WindowOrder | BalancedOrder, placed: Sequence[BatchPlace], epochs: int
) -> None:
    """Hold `bears`, `numbers_of_first` and `number_of` against what lies at every number."""
    for number, place in enumerate(placed):
        assert order.number_of(place.epoch, place.window, place.batch) == number
    bearing = [(number, place) for number, place in enumerate(placed) if place.bears]
    for epoch in range(epochs):
        windows, numbers = order.numbers_of_first(epoch)
        own = [(number, place.window) for number, place in bearing if place.epoch == epoch]
        # What comes after the last number of an endless order is not laid out here.
        told = [
            (n, w)
            for n, w in zip(numbers.tolist(), windows.tolist(), strict=True)
            if n < len(placed)
        ]
        assert told == own


@pytest.mark.parametrize("part", range(PARTS))
def test_windows_stand_where_a_loop_lays_them(part: int) -> None:
    """Every batch of every window once an epoch, and the first of each window bears its counts."""
    for case in range(part * CASES // PARTS, (part + 1) * CASES // PARTS):
        chance = random.Random(case)
        counts, epochs = random_counts(chance), chance.randint(1, 4)
        seed = chance.choice([None, 0, chance.randrange(10**6)])
        asked: Counter[int] = Counter()

        def count(window: int, counts: list[int] = counts, asked: Counter[int] = asked) -> int:
            asked[window] += 1
            return counts[window]

        order = WindowOrder(len(counts), count, seed, "of group 1")
        expected = laid_out(counts, seed, "of group 1", epochs)
        numbers = list(range(len(expected)))
        if chance.random() < 0.5:
            chance.shuffle(numbers)  # whoever begins in the middle finds the same
        placed = {number: order.find(number) for number in numbers}

        found = [placed[number] for number in range(len(expected))]
        assert [tuple(place) for place in found] == expected, (case, counts, seed)
        assert order.batches == sum(counts)
        every = Counter((p.epoch, p.window, p.batch) for p in found)
        assert every == Counter(
            (e, w, b) for e in range(epochs) for w, n in enumerate(counts) for b in range(n)
        )
        bears = Counter((p.epoch, p.window) for p in found if p.bears)
        assert bears == Counter((e, w) for e in range(epochs) for w, n in enumerate(counts) if n)
        check_firsts(order, found, epochs)
        assert max(asked.values()) == 1, "a window is packed once, whoever asks"


def test_the_beginning_is_found_without_packing_all_windows() -> None:
    """The first batches need the first window alone: a start does not wait for the whole corpus."""
    asked: list[int] = []

    def count(window: int) -> int:
        asked.append(window)
        return 5

    order = WindowOrder(1000, count, 3, "")

    for number in range(5):
        order.find(number)

    assert len(asked) == 1
    order.find(5)
    assert len(asked) == 2


@pytest.mark.parametrize("part", range(PARTS))
def test_balanced_steps_stand_where_a_loop_lays_them(part: int) -> None:
    """Each batch once an epoch; in steps of neighbours by cost, of one window or of kept ones."""
    for case in range(part * CASES // PARTS, (part + 1) * CASES // PARTS):
        chance = random.Random(case)
        counts, epochs = random_counts(chance), chance.randint(1, 4)
        seed = chance.choice([None, 0, chance.randrange(10**6)])
        step = chance.choice([1, 2, 3, 4, 6, 12, 30, 100])
        costs = random_costs(chance, counts)
        ends = chance.random() < 0.5

        order = BalancedOrder(len(counts), costs.__getitem__, step, seed, epochs if ends else None)
        expected = laid_out_balanced(costs, step, seed, epochs, ends=ends)
        found = [order.find(number) for number in range(len(expected))]

        note = (case, counts, step, seed, ends)
        assert [tuple(place) for place in found] == expected, note
        total = sum(counts)
        assert order.batches == total
        assert len(found) == (epochs * total if ends else epochs * total // step * step), note
        every = Counter((p.epoch, p.window, p.batch) for p in found)
        assert max(every.values(), default=1) == 1
        if ends:
            bears = Counter((p.epoch, p.window) for p in found if p.bears)
            assert bears == Counter(
                (e, w) for e in range(epochs) for w, n in enumerate(counts) if n
            ), note
        check_firsts(order, found, epochs)
        check_balance(found, costs, step)


def check_balance(found: Sequence[BatchPlace], costs: Sequence[Costs], step: int) -> None:
    """Check that the batches of a step come from neighbours in an order by cost, and in it."""
    kept = sorted(cost for own in costs for cost in np.sort(own)[: len(own) % step].tolist())
    for first in range(0, len(found), step):
        own = found[first : first + step]
        values = [float(costs[place.window][place.batch]) for place in own]
        # For every W that divides G, the W batches of a micro batch are neighbours in this order.
        assert values == sorted(values)
        windows = {place.window for place in own}
        if len(own) == step and len(windows) == 1 and len({p.epoch for p in own}) == 1:
            [window] = windows
            ordered = np.sort(costs[window]).tolist()
            inside = [ordered[at : at + step] for at in range(len(ordered) - step + 1)]
            if values in inside:
                continue
        # Else a run of the kept ones, in a circle: from one epoch into the next.
        runs = [
            sorted(kept[(at + n) % len(kept)] for n in range(len(own))) for at in range(len(kept))
        ]
        assert values in runs


def test_a_step_of_many_epochs_holds_each_batch_as_often_as_they_do() -> None:
    """Three batches and steps of seven: two epochs and a third of the next are one step."""
    costs = [np.array([3.0, 1.0]), np.array([2.0])]
    order = BalancedOrder(2, costs.__getitem__, 7, 5, None)

    first = [order.find(number) for number in range(7)]

    assert Counter(place.epoch for place in first) == {0: 3, 1: 3, 2: 1}
    assert [float(costs[p.window][p.batch]) for p in first] == [1, 1, 1, 2, 2, 3, 3]
    assert [order.numbers_of_first(epoch)[1].tolist() for epoch in range(2)] == [[0, 3], [1, 4]]


def test_windows_without_a_batch_have_no_first() -> None:
    """They are in no epoch's order of firsts: others bear what they count."""
    order = WindowOrder(3, [0, 2, 0].__getitem__, 1, "")

    windows, numbers = order.numbers_of_first(1)

    assert (windows.tolist(), numbers.tolist()) == ([1], [2])
