"""Nodes that share a store: what one has done the others do, whatever the order of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.store import Memory, MemoryStore
from penstock.server.store.records import Lead, Seen
from penstock.server.store.tables import finish
from penstock.wire.errors import LogDiverged
from penstock.wire.order import Order

LOG = bytes(32)
LANES, OFFSETS, AHEAD = 2, 3, 2


def item_of(lane: int, offset: int) -> ItemRef:
    """Return the item of a batch: every other offset of every lane has the same one."""
    return ItemRef("main", offset % 2, 0)


class _Node:
    """What a node does of the rule: it reserves, learns, and only then plans."""

    def __init__(self, memory: Memory) -> None:
        self.store = MemoryStore(memory)
        _now(self.store.open())
        self.book = VerdictBook(_now(self.store.verdicts(LOG)))
        self.known = _now(self.store.changes(LOG, None)).change
        self.reserved = dict.fromkeys(range(LANES), 0)
        self.planned = dict.fromkeys(range(LANES), 0)

    def learn(self, changes: Any) -> None:
        self.known = max(self.known, changes.change)
        self.book.learn([each for each in changes.verdicts if each not in self.book])

    def reserve(self, lane: int) -> None:
        lead = Lead(self.planned[lane], self.planned[lane] + AHEAD)
        found = _now(self.store.reserve(LOG, {lane: lead}, self.known))
        self.learn(found.changes)
        self.reserved[lane] = max(self.reserved[lane], found.leads[lane])


def _now(call: Any) -> Any:
    """Return what an operation of a store in memory gives: it never waits."""
    return finish(call)


class _World(NamedTuple):
    """A history: what the batches held that were given away, by lane and offset."""

    nodes: list[_Node]
    memory: Memory
    given: dict[tuple[int, int], str]
    fails: list[bool]
    halted: set[int]


def _new() -> _World:
    memory = Memory()
    return _World([_Node(memory), _Node(memory)], memory, {}, [False], set())


def plan(world: _World, number: int, lane: int) -> None:
    """Plan, and give away, a node's next batch of a lane; the store is asked where it must be."""
    node = world.nodes[number]
    offset = node.planned[lane]
    if offset >= OFFSETS or lane in world.halted:
        return
    if offset + 1 > node.reserved[lane]:
        node.reserve(lane)
    item = item_of(lane, offset)
    verdict = node.book.find("draw", item, lane, offset)
    if verdict is None and world.fails[0] and item.index == 0:
        seen = Seen(Order(LANES), node.planned[lane], max(node.planned.values()))
        bad = Verdict("draw", item, "", "bad", True, lane, offset)
        try:
            verdict = _now(node.store.add_verdict(LOG, bad, seen))
        except LogDiverged:
            world.halted.add(lane)  # readers are told: no byte differs
            return
        node.book.learn([verdict])
    content = f"without by {item}" if verdict is not None else f"with {item}"
    node.planned[lane] = offset + 1
    before = world.given.setdefault((lane, offset), content)
    if before != content and not _is_noticed(world, lane, offset):
        raise AssertionError(f"lane {lane}, offset {offset}: {before}, then {content}")


def _is_noticed(world: _World, lane: int, offset: int) -> bool:
    """Tell whether a node finds, as it hears of verdicts, that it has made what was left out.

    In the lane of a verdict, above what was recorded as planned: an item was whole for one node and
    damaged for the next. That is no order of events that pure items have, and it stops the lane.
    """
    for node in world.nodes:
        for each in _now(node.store.changes(LOG, node.known)).verdicts:
            if each.lane == lane and node.planned[lane] > each.offset:
                world.halted.add(lane)
                return True
    return False


def hear(world: _World, number: int) -> None:
    """Look for what has changed."""
    node = world.nodes[number]
    node.learn(_now(node.store.changes(LOG, node.known)))


def crash(world: _World, number: int) -> None:
    """Start again: what was planned is known to the store alone."""
    world.nodes[number] = _Node(world.memory)


def turn_bad(world: _World) -> None:
    """From now on the first item cannot be read: at any node."""
    world.fails[0] = True


def mend(world: _World) -> None:
    """Mend the item, and let it be drawn again."""
    if world.fails[0]:
        world.fails[0] = False
        node = world.nodes[0]
        seen = Seen(Order(LANES), 0, max(node.planned.values()))
        _now(node.store.release_verdicts(LOG, "main", 0, seen))


STEPS: dict[str, Any] = {
    **{
        f"plan {node} {lane}": lambda world, node=node, lane=lane: plan(world, node, lane)
        for node in range(2)
        for lane in range(LANES)
    },
    "hear 1": lambda world: hear(world, 1),
    "crash 0": lambda world: crash(world, 0),
    "turn bad": turn_bad,
    "mend": mend,
}


LIKELY = {("turn bad", 0), ("mend", 1)}
"""An item turns bad once, and then is mended once."""


def histories(depth: int) -> Iterator[tuple[str, ...]]:
    """Yield every order of so many steps, in which the item turns bad, and is mended, once."""

    def more(so_far: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(so_far) == depth:
            yield so_far
            return
        for step in STEPS:
            has_turned = so_far.count("turn bad") + so_far.count("mend")
            if (step, has_turned) not in LIKELY and step in ("turn bad", "mend"):
                continue
            yield from more((*so_far, step))

    return more(())


def play(history: tuple[str, ...]) -> _World:
    """Play a history from the beginning."""
    world = _new()
    for step in history:
        STEPS[step](world)
    return world


def test_no_order_of_plans_verdicts_and_crashes_gives_other_bytes() -> None:
    """Two nodes, two lanes: every order of five events, and then all is planned by both.

    Whatever is planned twice, by either node, holds the same, or its lane is halted.
    """
    for history in histories(5):
        world = play(history)
        for lane in range(LANES):
            for number in (1, 0):
                for _ in range(OFFSETS):
                    plan(world, number, lane)


@pytest.mark.parametrize("seed", range(20))
def test_longer_histories_give_the_same_bytes(seed: int) -> None:
    """Many more events, in a random order; items fail alike at both nodes from the start."""
    rng = random.Random(seed)
    for _ in range(50):
        world = _new()
        if rng.random() < 0.5:
            turn_bad(world)
        for _ in range(60):
            STEPS[rng.choice([step for step in STEPS if step not in ("turn bad", "mend")])](world)
            if rng.random() < 0.05:
                crash(world, 1)
        assert not world.halted, seed


def test_a_release_holds_above_all_that_nodes_have_reserved() -> None:
    """A node that has not heard of it leaves the item out exactly where the others do."""
    world = _new()
    turn_bad(world)
    plan(world, 0, 0)
    hear(world, 1)
    plan(world, 1, 1)
    mend(world)

    released = _now(world.nodes[1].store.verdicts(LOG))
    assert [each.released for each in released] == [AHEAD] * 2
    for lane in range(LANES):
        for number in range(2):
            for _ in range(OFFSETS):
                plan(world, number, lane)
    assert world.given[0, 2].startswith("with ")


async def test_a_store_in_memory_serves_nodes_of_several_tasks() -> None:
    """Reservations of both nodes are in the answer of either."""
    memory = Memory()
    stores = [MemoryStore(memory), MemoryStore(memory)]
    await asyncio.gather(*(store.open() for store in stores))

    answers = await asyncio.gather(
        *(store.reserve(LOG, {0: Lead(0, 10 * at)}, 0) for at, store in enumerate(stores, 1))
    )

    assert sorted(answer.leads[0] for answer in answers) == [10, 20]
