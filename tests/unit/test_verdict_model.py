"""Verdicts under any interleaving: whatever was given at an address is given there for ever.

Items begin to fail and are healed at random moments; lines of one lane stand at several offsets,
workers die, snapshots are written, items are released. A lane may stop, and says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.server.job.job import Job
from penstock.server.node.demand import cached
from penstock.server.node.demand import lane_state as lanes
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.node.supply.worker_pool import Hear, Lose
from penstock.server.roles import (
    BatchCollator,
    BestFitPackingBatcher,
    CollateContext,
    MapDistributor,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.server.store import SqliteStore
from penstock.wire.errors import LaneStarved, LogDiverged
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2
from unit.inline_workers import InlineNode, InlineWorker
from unit.memory_port import MemoryPort

LANES, ITEMS = 2, 7
SEEDS, TURNS = 15, 500


class Fickle(RawItemProcessor):
    """Some items fail, others at other times."""

    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    bad: ClassVar[set[int]] = set()

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the item, today."""
        if raw in self.bad:
            raise ValueError("not today")
        return {"input_ids": [raw] * (1 + raw % 3)}


class Sized(Fickle):
    """Its sizes fail, so batches are planned from refs."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def size(self, raw: Any) -> int:
        """Return the size, today."""
        return len(self.process(raw, ProcessContext.__new__(ProcessContext))["input_ids"])

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the item; on exit nothing fails."""
        if raw in self.bad and not hasattr(context, "item"):
            raise ValueError("not today")
        return {"input_ids": [raw] * (1 + raw % 3)}


class Nothing(BatchCollator):
    """The items are in the header."""

    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    pads_empty = True

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return no value."""
        return {}


class ThreadWorker(InlineWorker):
    """An `InlineWorker` that answers on a thread, so that it can wait in the middle."""

    end = MemoryPort
    busy: asyncio.Task[None] | None = None

    async def work(self) -> None:
        """Take one message and answer it."""
        message = self.next_message()
        if message is not None:
            await asyncio.to_thread(self.side.handle, message)


class ThreadNode(InlineNode):
    """A node of such workers."""

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> InlineWorker:
        return ThreadWorker(number, hear, lose)


class World:
    """A node, its readers, and what they were given."""

    def __init__(self, job: Job, store: SqliteStore, dice: random.Random) -> None:
        self.node = ThreadNode({"job": job}, store, workers=2, bound_bytes=1 << 20)
        self.dice, self.job = dice, job
        self.readers: list[StreamDemand] = []
        self.given: dict[tuple[int, int], list[int]] = {}
        self.again = 0
        self.broken: list[str] = []
        self.node.life.on_fatal = lambda: self.broken.append("the node ended")

    @property
    def hands(self) -> list[ThreadWorker]:
        """Return the workers."""
        return [one for one in self.node.workers if isinstance(one, ThreadWorker)]

    @property
    def stopped(self) -> bool:
        """Tell whether nothing can be given any more."""
        return all(lane.error is not None for lane in self.node.log(self.job).lanes)

    async def act(self) -> None:
        """Do one thing, any."""
        dice = self.dice
        roll = dice.random()
        if roll < 0.015:
            Fickle.bad ^= {dice.randrange(ITEMS)}
            if len(Fickle.bad) > ITEMS - 3:
                Fickle.bad.clear()
        elif roll < 0.10 and len(self.readers) < 4:
            highest = max((offset for _, offset in self.given), default=0)
            start = dice.choice([0, dice.randint(0, highest + 2)]) * LANES
            lanes = dice.choice([None, [0], [1]])
            reader = self.node.open(self.job, Share(1, 0, 1), None, start, lanes, lambda: None)
            self.readers.append(reader)
            self.node.extend(reader, start + dice.randint(1, 30))
        elif roll < 0.13 and self.readers:
            self.leave(dice.choice(self.readers))
        elif roll < 0.20 and self.readers:
            reader = dice.choice(self.readers)
            self.node.extend(reader, reader.horizon + dice.randint(1, 10))
        elif roll < 0.21:
            await self.node.release(self.job, "main", dice.randrange(ITEMS))
        elif roll < 0.22:
            await self.node.snapshots.save()
        elif roll < 0.23:
            hand = dice.choice(self.hands)
            if hand.busy is None and not hand.dead:
                hand.die()
        elif roll < 0.7:
            hand = dice.choice(self.hands)
            if hand.busy is None:
                hand.busy = asyncio.create_task(hand.work())
                hand.busy.add_done_callback(lambda _: setattr(hand, "busy", None))
        elif self.readers:
            self.take(dice.choice(self.readers))
        await asyncio.sleep(0.0005 if dice.random() < 0.2 else 0)

    def take(self, reader: StreamDemand) -> None:
        """Take a batch, and hold it against what was given at its address before."""
        try:
            entry = self.node.take(reader)
        except (LogDiverged, LaneStarved):
            self.leave(reader)
            return
        if entry is None:
            return
        header = feed_pb2.BatchHeader.FromString(entry.header)
        items = [sample.index for sample in header.samples]
        place = entry.key.lane, entry.key.offset
        self.again += place in self.given
        assert self.given.setdefault(place, items) == items, f"{place} was {self.given[place]}"
        self.node.sent(reader, entry)

    def leave(self, reader: StreamDemand) -> None:
        """End a reader."""
        self.readers.remove(reader)
        self.node.leave(reader)

    async def end(self) -> None:
        """Wait for the threads, and end the node."""
        await asyncio.gather(*(hand.busy for hand in self.hands if hand.busy is not None))
        await self.node.close()


@pytest.mark.parametrize("planned", ["from samples", "from refs", "on exit"])
async def test_what_was_given_at_an_address_is_given_there_for_ever(
    tmp_path: Path, planned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of random turns; replays are frequent, for next to nothing is kept."""
    monkeypatch.setattr(lanes, "KEPT_PLANS", lanes.PLANS_AHEAD + 1)
    monkeypatch.setattr(cached, "CACHED_BATCHES", 1)
    given = again = verdicts = 0
    for seed in range(SEEDS):
        Fickle.bad = set()
        packs = planned == "from refs"
        job = Job(
            ItemsSource(list(range(ITEMS))),
            MapDistributor(shuffle="none"),
            Sized() if packs else Fickle(),
            BestFitPackingBatcher(6, pool_size=2) if packs else SimpleBatcher(2),
            Nothing(),
            seed=seed,
            lanes=LANES,
            snapshot_every=5,
            on_item_error="quarantine",
            name="job",
        )
        if planned == "on exit":
            monkeypatch.setattr(Fickle, "one_to_one", True)
        store = SqliteStore(tmp_path / f"{seed}.db")
        await store.open()
        world = World(job, store, random.Random(seed))
        await world.node.start()
        try:
            for _ in range(TURNS):
                if not world.stopped:
                    await world.act()
            verdicts += len(await store.verdicts(job.log_id))
        finally:
            await world.end()
            await store.close()
        assert not world.broken
        given += len(world.given)
        again += world.again

    assert given > 100
    assert again > 50
    assert verdicts > 20
