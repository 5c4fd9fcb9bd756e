"""How many nodes are wanted, in virtual time: one change for one step of load, and no flapping."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from penstock.server.metrics.wanted_nodes import (
    HEAD_ROOM,
    PART_S,
    PARTS,
    SLACK,
    Sample,
    needed_workers,
    wanted_nodes,
)

EVERY_S = 10.0
WORKERS, UNITS = 4, 48


class Seen:
    """What each of some nodes sees of a job whose readers would keep so many workers busy.

    Args:
        load: The load at a time, in workers; 0 = nobody reads.
        nodes: How many nodes serve when so many are wanted.
        asked: The units that nodes of so many are asked for; those asked for the same see the same.
    """

    def __init__(
        self,
        load: Callable[[float], float],
        nodes: Callable[[int], int] = lambda wanted: max(1, wanted),
        asked: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.load, self.nodes = load, nodes
        self.asked = asked or (lambda count: [UNITS / count])
        self.wanted = 0
        self.changes: list[tuple[float, int]] = []

    def run(self, hours: float) -> list[int]:
        """Return the values one after the other, each where it changed."""
        samples: dict[int, deque[Sample]] = {}
        busy: dict[int, float] = {}
        wanted: dict[int, int] = {}
        waited = 0.0
        for turn in range(int(hours * 3600 / EVERY_S)):
            at_s, load = turn * EVERY_S, self.load(turn * EVERY_S)
            shares = [units / UNITS for units in self.asked(self.nodes(self.wanted))]
            # All readers go at the pace of the node that has too much to do.
            pace = min(1.0, min(WORKERS / (load * share) for share in shares)) if load else 1.0
            waited += EVERY_S * (1 - pace)
            for node, share in enumerate(shares):
                seen = samples.setdefault(node, deque(maxlen=int(PARTS * PART_S / EVERY_S) + 1))
                units = max(1, round(share * UNITS)) if load else 0
                busy[node] = busy.get(node, 0.0) + EVERY_S * load * units / UNITS * pace
                seen.append(Sample(at_s, busy[node], {7: waited} if load else {}, units))
                needed = needed_workers(seen, UNITS)
                wanted[node] = wanted_nodes(wanted.get(node, 0), needed, WORKERS, UNITS)
            now = max(wanted[node] for node in range(len(shares)))
            if now != self.wanted:
                self.wanted = now
                self.changes.append((at_s, now))
        return [value for _, value in self.changes]


def steps(*plan: tuple[float, float]) -> Callable[[float], float]:
    """Return a load that is another from each of these minutes on."""
    return lambda at_s: [load for minute, load in plan if 60 * minute <= at_s][-1]


def right(load: float) -> int:
    """Return what `penstockd size` says: the workers with head room, in whole nodes."""
    return min(UNITS, math.ceil(round(HEAD_ROOM * load / WORKERS, 9)))


@pytest.mark.parametrize("before", [1.0, 3.0, 7.9, 12.0, 40.0])
@pytest.mark.parametrize("after", [1.0, 3.0, 7.9, 12.0, 40.0])
@pytest.mark.parametrize("second", [0, 37])
def test_one_step_of_load_is_one_change(before: float, after: float, second: int) -> None:
    """Where the nodes follow, and where they stay; whenever within a minute it comes."""
    load = steps((0, before), (20 + second / 60, after))
    there = right(max(before, after))

    follow, stay = Seen(load), Seen(load, nodes=lambda _: there)

    expected = [right(before)] + [right(after)] * (right(before) != right(after))
    assert follow.run(1.0) == expected
    assert stay.run(1.0) == expected
    assert all(at_s < 20 * 60 + 59 + 6 * PART_S for at_s, _ in follow.changes)


def test_readers_that_wait_tell_how_much_they_would_take() -> None:
    """One node that can do a third of what is wanted reckons three times its own workers."""
    seen = Seen(lambda _: 12.0, nodes=lambda _: 1)

    assert seen.run(1) == [right(12.0)]
    assert right(12.0) == 4


def test_each_node_says_the_same_whatever_it_was_dealt() -> None:
    """The nodes with few units and those with many: no sum is needed, the largest holds."""
    uneven = Seen(lambda _: 12.0, nodes=lambda _: 4, asked=lambda _: [20, 16, 11, 1])

    assert uneven.run(1) == [right(12.0)]


def test_a_ramp_is_followed_without_a_step_back() -> None:
    up = Seen(lambda at_s: 2 + 38 * min(1.0, at_s / 7200)).run(3)
    down = Seen(lambda at_s: 40 - 38 * min(1.0, at_s / 7200)).run(3)

    assert up == sorted(set(up))
    assert up[-1] == right(40.0)
    assert down[1:] == sorted(set(down[1:]), reverse=True)  # first there is none
    assert down[-1] == right(2.0)


@pytest.mark.parametrize("seed", range(3))
def test_noise_changes_nothing(seed: int) -> None:
    """Around any level, at the edge between two numbers of nodes too."""
    draw = random.Random(seed)
    for level in (3.2, 6.4, 8.0, 9.6, 12.8, 25.6):
        noise = [level * draw.uniform(0.85, 1.15) for _ in range(2000)]
        seen = Seen(lambda at_s, noise=noise: noise[int(at_s // 15)])

        assert len(seen.run(3)) == 1, (seed, level, seen.changes)
        assert abs(seen.wanted - HEAD_ROOM * level / WORKERS) < 1 + (SLACK - 1) * seen.wanted


def test_a_pause_changes_nothing_and_an_end_is_one_change() -> None:
    """An evaluation of four minutes is no end of the job; five minutes later there is one."""
    seen = Seen(steps((0, 12.0), (30, 0.0), (34, 12.0), (60, 0.0)))

    assert seen.run(2) == [4, 0]
    ended_s, _ = seen.changes[-1]
    assert 64 * 60 <= ended_s <= 66 * 60


def test_nobody_reads_and_nothing_is_wanted() -> None:
    assert Seen(lambda _: 0.0).run(1) == []
    assert wanted_nodes(3, [None] * PARTS, WORKERS, UNITS) == 0


def test_readers_that_can_take_anything_want_no_more_than_the_units() -> None:
    seen = Seen(lambda _: 1e6, nodes=lambda wanted: min(UNITS, max(1, wanted)))

    values = seen.run(2)
    assert values[-1] <= UNITS
    assert values == sorted(set(values))
    assert wanted_nodes(9, [None] * (PARTS - 1) + [1.0], WORKERS, units=3) == 3


def test_a_reader_of_a_lane_that_is_stuck_wants_no_nodes() -> None:
    """It waits all of its time, but no worker is busy for it: more of them would not help."""
    seen = [Sample(5.0 * n, 0.0, {1: 5.0 * n}, UNITS) for n in range(61)]

    assert wanted_nodes(1, needed_workers(seen, UNITS), WORKERS, UNITS) == 1
