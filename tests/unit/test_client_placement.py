"""Which node is asked for which unit: every order of events in small cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping
from math import lcm

import pytest

from penstock.client.nodes.dealing import LaneUnits
from penstock.client.nodes.placement import FORGOTTEN_S, HEALTHY_S, Placement
from penstock.client.nodes.read_lanes import read_lanes
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2

ROW = 12


class Watched:
    """A placement with a clock and a reader of its own, which checks what must always hold.

    Args:
        nodes: How many nodes there are.
        units: How many units.
    """

    def __init__(self, nodes: int, units: int) -> None:
        self.names = [f"node-{number}" for number in range(nodes)]
        self.units, self.now_s, self.position, self.prefetch = units, 0.0, 0, 5
        self.placement = Placement(units, ROW)
        self.placement.know(dict.fromkeys(self.names, 1), self.now_s)
        self.left: set[str] = set()
        self.settle()

    def settle(self) -> int:
        """Have it decide; return how many units have moved."""
        placement = self.placement
        before, planned = placement.owners, placement.planned
        moves = placement.settle(self.now_s, self.position, self.position + self.prefetch)
        owners, usable = placement.owners, set(self.names) - self.left
        assert len(owners) == self.units
        if usable:
            assert usable.issuperset(owners), "a unit is asked of a node that was left"
        assert [(m.unit, m.before, m.after) for m in moves] == [
            (unit, old, new)
            for unit, (old, new) in enumerate(zip(before, owners, strict=False))
            if old != new
        ]
        at_boundary = planned is not None and self.position >= planned.position
        for move in moves:
            assert move.before in self.left or at_boundary, "a unit moved for nothing"
        if placement.planned is not None:
            assert placement.planned.position % ROW == 0
            assert usable.issuperset(placement.planned.owners)
            assert placement.planned.owners != owners
        assert placement.settle(self.now_s, self.position, self.position + self.prefetch) == []
        return len(moves)

    def do(self, event: str) -> None:
        """Have something happen: `leave 1`, `answer 1`, `wait` or `read`."""
        what, _, which = event.partition(" ")
        if what == "leave":
            name = self.names[int(which)]
            self.left.add(name)
            self.placement.leave(name, "it broke", self.now_s)
        elif what == "answer":
            name = self.names[int(which)]
            self.left.discard(name)
            self.placement.answers(name, self.now_s)
        elif what == "wait":
            self.now_s += HEALTHY_S
        else:
            self.position += ROW
        self.settle()

    def rest(self) -> None:
        """Let nothing happen for long, while it is read."""
        for event in ("wait", "read", "read"):
            self.do(event)


def events(nodes: int) -> list[str]:
    return [f"{what} {n}" for what in ("leave", "answer") for n in range(nodes)] + ["wait", "read"]


@pytest.mark.parametrize(("nodes", "units", "length"), [(2, 3, 5), (3, 4, 4)])
def test_every_order_of_events_leaves_each_unit_with_one_node_that_may_be_asked(
    nodes: int, units: int, length: int
) -> None:
    """Whatever happened, readers come to rest where one that starts then begins."""
    for order in itertools.product(events(nodes), repeat=length):
        watched = Watched(nodes, units)
        for event in order:
            watched.do(event)
        watched.rest()
        if len(watched.left) < nodes:
            fresh = Watched(nodes, units)
            for name in watched.left:
                fresh.placement.leave(name, "it broke", 0.0)
            fresh.left = set(watched.left)
            fresh.rest()
            assert watched.placement.owners == fresh.placement.owners, order
            assert watched.placement.planned is None, order


def test_only_the_units_of_a_node_that_was_left_move_and_they_come_back_at_a_boundary() -> None:
    watched = Watched(3, 24)
    before = watched.placement.owners
    theirs = {unit for unit, owner in enumerate(before) if owner == "node-1"}
    watched.do("leave 1")

    moved = {
        u for u, (a, b) in enumerate(zip(before, watched.placement.owners, strict=True)) if a != b
    }
    assert moved == theirs
    watched.do("answer 1")
    watched.now_s += HEALTHY_S - 1
    watched.position = ROW - 7
    assert watched.settle() == 0
    assert watched.placement.planned is None
    watched.now_s += 1
    assert watched.settle() == 0
    planned = watched.placement.planned
    assert planned is not None
    assert planned.position == ROW
    watched.position = ROW - 1
    assert watched.settle() == 0
    watched.position = ROW
    assert watched.settle() >= len(theirs)
    assert watched.placement.owners == before


def test_readers_of_one_row_move_at_one_position() -> None:
    """Whatever each has prefetched, as long as that ends in the same row."""
    found = set()
    for position in range(1, ROW - 5):
        watched = Watched(2, 8)
        watched.do("leave 0")
        watched.do("answer 0")
        watched.position = position
        watched.do("wait")
        assert watched.placement.planned is not None
        found.add(watched.placement.planned.position)
    assert found == {ROW}


def test_nodes_that_join_or_go_get_or_lose_their_units_at_a_boundary() -> None:
    placement = Placement(24, ROW)
    placement.know({"a": 1, "b": 1}, 0.0)
    placement.settle(0.0, 0, 5)
    placement.know({"a": 1, "b": 1, "c": 1}, 1.0)
    assert placement.settle(HEALTHY_S, 1, 6) == []
    assert placement.planned is None
    assert placement.settle(1.0 + HEALTHY_S, 1, 6) == []
    assert placement.planned is not None
    assert {move.after for move in placement.settle(40.0, ROW, ROW + 5)} >= {"c"}
    assert "c" in placement.owners

    placement.know({"a": 1, "b": 1}, 50.0)
    assert placement.settle(50.0, ROW, ROW + 5) == []
    assert placement.settle(51.0, 2 * ROW, 2 * ROW + 5)
    assert "c" not in placement.owners


@pytest.mark.parametrize("name", ["node-{}", "{:08x}"])
def test_a_node_on_trial_moves_nothing_and_then_only_what_it_gets(name: str) -> None:
    """Also where boundaries pass meanwhile: nothing is dealt to others first, and then to it."""
    units, numbers = 96, [number * (1 if name == "node-{}" else 7919) for number in range(5)]
    *first, last = (name.format(number) for number in numbers)
    placement = Placement(units, ROW)
    placement.know(dict.fromkeys(first, 1), 0.0)
    placement.settle(0.0, 0, 5)
    before = placement.owners

    placement.know(dict.fromkeys([*first, last], 1), 1.0)
    for second in range(1, 30):
        assert placement.settle(float(second), second * ROW, second * ROW + 5) == []
        assert placement.planned is None
    placement.leave(last, "it broke", 30.0)
    assert placement.settle(30.0, 30 * ROW, 30 * ROW + 5) == []
    placement.answers(last, 31.0)
    for second in range(31, 31 + int(HEALTHY_S)):
        assert placement.settle(float(second), second * ROW, second * ROW + 5) == []
    assert placement.owners == before
    placement.settle(62.0, 62 * ROW, 62 * ROW + 5)
    moves = placement.settle(63.0, 64 * ROW, 64 * ROW + 5)

    to_it = [move for move in moves if move.after == last]
    assert len(to_it) in (units // 5, -(-units // 5))
    if name == "node-{}":
        assert moves == to_it


def test_a_plan_is_dropped_when_a_node_of_it_breaks() -> None:
    watched = Watched(3, 12)
    watched.do("leave 2")
    watched.do("answer 2")
    watched.do("wait")
    assert watched.placement.planned is not None
    watched.do("leave 2")
    assert watched.placement.planned is None
    watched.do("read")
    assert "node-2" not in watched.placement.owners


def test_the_last_node_is_kept_and_the_first_that_answers_takes_all() -> None:
    watched = Watched(2, 6)
    watched.do("leave 0")
    watched.do("leave 1")
    assert set(watched.placement.owners) <= {"node-0", "node-1"}
    watched.do("answer 0")

    assert set(watched.placement.owners) == {"node-0"}
    watched.do("answer 1")
    assert set(watched.placement.owners) == {"node-0"}, "one on trial gets nothing"
    watched.do("wait")
    watched.do("read")
    assert set(watched.placement.owners) == {"node-0", "node-1"}


def test_a_node_that_starts_again_and_again_gets_no_unit() -> None:
    watched = Watched(2, 6)
    for _ in range(10):
        watched.do("leave 0")
        watched.now_s += HEALTHY_S / 2
        watched.do("answer 0")
        watched.now_s += HEALTHY_S / 2
        watched.do("read")
        assert set(watched.placement.owners) == {"node-1"}


def test_many_units_are_dealt_once_for_each_change() -> None:
    """A reader looks twice a second, and dealing 10,000 units takes longer than that may."""
    dealt = []

    def deal(units: int, weights: Mapping[str, int], *, away: Collection[str]) -> tuple[str, ...]:
        dealt.append(1)
        names = sorted(set(weights) - set(away))
        return tuple(names[unit % len(names)] for unit in range(units))

    placement = Placement(10_000, ROW, deal)
    placement.know(dict.fromkeys("abcd", 1), 0.0)
    for tick in range(100):
        placement.settle(float(tick), tick, tick + 5)

    assert len(dealt) == 1


def shares() -> Iterator[tuple[int, Share]]:
    rng = random.Random(5)
    for _ in range(200):
        world = rng.randint(1, 12)
        size = world * rng.randint(1, 6)
        uneven = rng.random() < 0.5
        size += rng.randint(0, world - 1) if uneven else 0
        yield rng.randint(1, 40), Share(size, rng.randrange(world), world, uneven=uneven)


def test_the_lanes_that_a_rank_meets_are_known_without_reading() -> None:
    for lanes, share in shares():
        steps = range(lcm(lanes, share.batches_per_step) // share.batches_per_step)
        met = {position % lanes for step in steps for position in share.positions(step)}

        assert read_lanes(lanes, share) == met, (lanes, share)


def test_units_are_numbered_without_gaps() -> None:
    units = LaneUnits(7, (4, 9, 4), snapshot_every=16)

    assert list(units.of_lane) == [0, 1, 0, 0, 1, 0, 0]
    assert (len(units.members), units.row) == (2, 112)
    assert LaneUnits(5).row == 5


def test_a_node_that_is_gone_for_a_while_moves_no_unit_of_others() -> None:
    """Names that are no row are dealt otherwise without it: not before it has long been gone."""
    names = ["zebra", "heron", "lynx", "otter"]
    placement = Placement(48, ROW)
    placement.know(dict.fromkeys(names, 1), 0.0)
    placement.settle(0.0, 0, 5)
    before = placement.owners
    placement.leave("lynx", "it broke", 1.0)
    assert {move.before for move in placement.settle(1.0, 0, 5)} == {"lynx"}
    placement.know(dict.fromkeys(["zebra", "heron", "otter"], 1), 20.0)

    for second in range(20, 200, 10):
        assert placement.settle(second, second * ROW, second * ROW + 5) == []
    placement.know(dict.fromkeys(names, 1), 200.0)
    placement.answers("lynx", 200.0)
    placement.settle(240.0, 240 * ROW, 240 * ROW + 5)
    placement.settle(241.0, 245 * ROW, 245 * ROW + 5)
    assert placement.owners == before

    placement.leave("lynx", "it broke", 300.0)
    placement.settle(300.0, 300 * ROW, 300 * ROW + 5)
    gone = dict.fromkeys(["zebra", "heron", "otter"], 1)
    placement.know(gone, 301.0)
    placement.know(gone, 301.0 + FORGOTTEN_S)
    assert placement.left == {}


@pytest.mark.parametrize("answers_s", [[5.0], [5.0, 25.0], [25.0]])
def test_a_node_that_answers_and_is_not_known_yet_moves_no_unit_of_others(
    answers_s: list[float],
) -> None:
    """Also where it was known for a moment: it is dealt without only when it has long been gone."""
    names = ["zebra", "heron", "lynx", "otter"]
    known = dict.fromkeys(names, 1)
    placement = Placement(48, ROW)
    placement.know(known, 0.0)
    placement.settle(0.0, 0, 5)
    before = placement.owners
    placement.leave("lynx", "it broke", 1.0)
    placement.settle(1.0, 0, 5)
    without = placement.owners
    gone = {name: weight for name, weight in known.items() if name != "lynx"}

    for second in range(2, 200):
        # In the 25th second it is among those that are known, as it answers, and gone again.
        placement.know(known if second == 25 else gone, second)
        if second in answers_s:
            placement.answers("lynx", second)
        placement.know(gone, second)
        assert placement.settle(second, second * ROW, second * ROW + 5) == []
        assert placement.owners == without

    placement.know(known, 200.0)
    placement.answers("lynx", 200.0)
    placement.settle(240.0, 240 * ROW, 240 * ROW + 5)
    placement.settle(241.0, 245 * ROW, 245 * ROW + 5)
    assert placement.owners == before


def test_a_node_that_has_drained_takes_its_units_as_soon_as_it_is_back() -> None:
    """At a boundary; and while the next one drains, what moves goes to it, too."""
    names = [f"penstock-{number}" for number in range(3)]
    placement = Placement(12, 100)
    placement.know(dict.fromkeys(names, 1), 0.0)
    placement.settle(0.0, 0, 0)
    before = placement.owners

    placement.leave(names[2], "it shuts down", 10.0, feed_pb2.LEFT_DRAINS)
    placement.leave(names[2], "no answer", 10.1)  # it has ended
    assert {move.before for move in placement.settle(10.1, 50, 60)} == {names[2]}
    placement.answers(names[2], 20.0)
    assert placement.settle(20.0, 110, 120) == []
    placement.leave(names[1], "it shuts down", 21.0, feed_pb2.LEFT_DRAINS)
    moves = placement.settle(21.0, 130, 140)
    assert {move.before for move in moves} == {names[1]}
    assert {move.after for move in moves} == {names[0], names[2]}
    placement.answers(names[1], 30.0)
    placement.settle(30.0, 210, 220)
    placement.settle(31.0, 300, 320)

    assert placement.owners == before


def test_a_node_that_has_broken_is_on_trial_though_another_has_drained() -> None:
    """What is true of one that was ended on purpose is not of one that may do so again."""
    placement = Placement(12, 100)
    placement.know({"penstock-0": 1, "penstock-1": 1}, 0.0)
    placement.settle(0.0, 0, 0)
    placement.leave("penstock-1", "no answer", 10.0)
    placement.settle(10.0, 50, 60)
    placement.answers("penstock-1", 11.0)

    assert placement.settle(11.0, 110, 120) == []
    assert placement.planned is None
    assert placement.settle(10.0 + HEALTHY_S, 110, 120) == []
    assert placement.planned is None
    placement.settle(11.0 + HEALTHY_S, 110, 120)
    assert placement.planned is not None
