"""A node's decisions under any order of answers, deaths and readers: the bytes are always right."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from penstock.server.core.refs import BatchPlan
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.node.protocol.messages import Make, PlanAhead, Produce
from penstock.server.pipeline.line import Computed
from penstock.server.store import SqliteStore
from penstock.wire import frame
from penstock.wire.order import Share
from resume.plans import make_job
from truth import Truth
from unit.inline_workers import InlineNode

TRUTH: dict[tuple[str, str, int], tuple[Truth, dict[tuple[int, bool], Computed]]] = {}


def truth(plan: tuple[str, str, int], position: int, *, filler: bool = False) -> Computed:
    """Return a batch as `local:` computes it; remembered, as every seed asks for the same."""
    if plan not in TRUTH:
        batcher, processor, lanes = plan
        TRUTH[plan] = (Truth(make_job(batcher, "full", processor, lanes)), {})
    loader, known = TRUTH[plan]
    if (position, filler) not in known:
        known[position, filler] = loader.batch(position, filler=filler)
    return known[position, filler]


class _Play:
    """Readers and workers of one node, moved by a random generator."""

    def __init__(self, seed: int, plan: tuple[str, str, int], store: SqliteStore) -> None:
        self.rng = random.Random(seed)
        self.plan = plan
        batcher, processor, lanes = plan
        self.job = make_job(batcher, "full", processor, lanes)
        self.node = InlineNode(
            {"job": self.job},
            store,
            workers=self.rng.choice([1, 2, 3]),
            bound_bytes=self.rng.choice([0, 2_000, 50_000]),
        )
        self.owed: dict[StreamDemand, list[int]] = {}
        self.stalled: set[StreamDemand] = set()  # they want, and take nothing

    def open(self) -> None:
        start = self.rng.choice([0, 7, 30, 90, 200])
        count = self.rng.randrange(1, 30)
        world = self.rng.choice([1, 1, 2, 3, 4, 8])
        share = Share(6, self.rng.randrange(world), world, uneven=True)
        reader = self.node.open(self.job, share, None, start, None, lambda: None)
        self.owed[reader] = list(itertools.islice(share.walk(start), count))
        if self.rng.random() < 0.3:
            self.stalled.add(reader)

    def extend(self) -> None:
        for reader, owed in self.owed.items():
            if owed and self.rng.random() < 0.5:
                self.node.extend(reader, min(owed[0] + self.rng.randrange(1, 16), owed[-1] + 1))

    def take(self) -> None:
        for reader, owed in self.owed.items():
            while reader not in self.stalled and self.rng.random() < 0.8:
                entry = reader.take()
                if entry is None:
                    break
                position = entry.key.position
                filler = reader.share.is_filler(position)
                expected = truth(self.plan, position, filler=filler)
                assert frame.with_position(entry.header, position) == expected.header, position
                assert bytes(entry.body or b"") == bytes(expected.body), position
                owed.remove(position)
                self.node.sent(reader, entry)

    def answer(self) -> bool:
        hands = self.node.hands
        self.rng.shuffle(hands)
        return any(hand.answer_one() for hand in hands)

    def die(self) -> None:
        hand = self.rng.choice(self.node.hands)
        if hand.ready and not hand.dead:
            hand.die()

    async def leave(self) -> None:
        if self.owed:
            reader = self.rng.choice(list(self.owed))
            del self.owed[reader]
            self.node.leave(reader)

    async def run(self) -> None:
        """Do anything in any order for a while; then let everybody have what is owed."""
        await self.node.start()
        for _ in range(120):
            await self.node.settle()
            self.rng.choices(
                [self.open, self.extend, self.take, self.answer, self.die],
                weights=[1, 4, 4, 12, 1],
            )[0]()
            if self.rng.random() < 0.02:
                await self.leave()
            if self.rng.random() < 0.05:
                await self.node.snapshots.save()
        for reader, owed in self.owed.items():
            if owed:
                self.node.extend(reader, owed[-1] + 1)
        await self.finish()
        self.stalled.clear()
        await self.finish()
        one = self.node.log(self.job)
        for reader in list(self.owed):
            self.node.leave(reader)
        while self.answer():
            await self.node.settle()
        one.cached.shed()
        for worker in self.node.workers:
            assert all(reader.spans == 0 for reader in worker.arenas.values())
        assert (one.ready_bytes, one.cached.nbytes, one.making) == (0, 0, 0)
        assert all(len(lane.lines) <= 8 for lane in one.lanes)

    async def finish(self) -> None:
        """Let every reader that takes have all that it is owed."""
        idle = 0
        while waiting := [r for r, owed in self.owed.items() if owed and r not in self.stalled]:
            await self.node.settle()
            self.take()
            # No answer outstanding and nothing to take: whoever is owed something waits forever.
            idle = 0 if self.answer() else idle + 1
            assert idle < 200, [reader.head for reader in waiting]


PLANS = [
    ("simple", "identity", 3),
    ("best_fit_split", "sized", 2),
    ("best_fit_split", "choosy", 2),
    ("sequential", "identity", 1),
    ("pool", "choosy", 3),
]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("plan", PLANS, ids=["-".join(map(str, plan)) for plan in PLANS])
async def test_every_reader_gets_its_own_bytes(
    plan: tuple[str, str, int], seed: int, tmp_path: Path
) -> None:
    """Readers far apart, deaths, tiny bounds: what is taken equals `local:`, and nothing stalls.

    At the end every reader has its positions exactly, and no shared memory is held.
    """
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    play = _Play(seed, plan, store)
    try:
        await play.run()
    finally:
        await play.node.close()
        await store.close()


@pytest.mark.parametrize("plan", PLANS[1:3], ids=["sized", "choosy"])
async def test_the_ledger_does_not_grow_with_the_run(
    plan: tuple[str, str, int], tmp_path: Path
) -> None:
    """After a thousand batches a node holds what it held after a hundred."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    play = _Play(1, plan, store)
    node = play.node
    await node.start()
    reader = node.open(node.jobs["job"], Share(1, 0, 1), None, 0, None, lambda: None)
    sizes = {}
    try:
        for position in range(1000):
            node.extend(reader, position + 8)
            while (entry := reader.take()) is None:
                await node.settle()
                play.answer()
            node.sent(reader, entry)
            if position in (99, 999):
                one = node.log(node.jobs["job"])
                lines = [line for hand in node.hands for line in hand.side.lines.by_number.values()]
                sizes[position] = {
                    "entries": len(one.entries),
                    "kept": len(one.cached.batches),
                    "plans": max(len(lane.plans) for lane in one.lanes),
                    "wanted": max(len(lane.wanted) for lane in one.lanes),
                    "starts": max(len(lane.starts) + len(lane.deaths) for lane in one.lanes),
                    "lines": len(lines),
                    "unsaved": len(node.snapshots.unsaved),
                    "arenas": sum(len(worker.arenas) for worker in node.workers),
                }
                held = [len(line.planner.samples) + len(line.planner.ahead) for line in lines]
                assert max(held, default=0) < 100
    finally:
        await node.close()
        await store.close()

    for name, size in sizes[999].items():
        assert size <= max(64, sizes[99][name]), (name, sizes)


async def test_an_evicted_batch_costs_itself_again_and_no_replay(tmp_path: Path) -> None:
    """A late reader's batches are made from kept plans: only their own items are processed."""
    plan = ("best_fit_split", "choosy", 2)
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    job = make_job(plan[0], "full", *plan[1:])
    node = InlineNode({"job": job}, store, workers=1, bound_bytes=0)
    await node.start()
    [hand] = node.hands

    async def read() -> None:
        reader = node.open(node.jobs["job"], Share(1, 0, 1), None, 0, None, lambda: None)
        node.extend(reader, 60)
        for _ in range(60):
            while (entry := reader.take()) is None:
                await node.settle()
                hand.answer_one()
            assert bytes(entry.body or b"") == bytes(truth(plan, entry.key.position).body)
            node.sent(reader, entry)
        node.leave(reader)

    try:
        await read()
        hand.answered.clear()
        processed = hand.side.jobs[node.jobs["job"].log_id].items.processed
        await read()
    finally:
        await node.close()
        await store.close()

    assert not any(isinstance(message, PlanAhead | Produce) for message in hand.answered)
    asked = [message for message in hand.answered if isinstance(message, Make)]
    assert len(asked) == 60
    own_items = sum(
        len({ref.item for row in BatchPlan.from_json(json.loads(message.plan)).rows for ref in row})
        for message in asked
    )
    assert hand.side.jobs[node.jobs["job"].log_id].items.processed - processed == own_items
