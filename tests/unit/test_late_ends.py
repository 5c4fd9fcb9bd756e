"""A finite log whose lanes end where nobody knew: what readers are given is right, to the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.server.job import Job
from penstock.server.node.count import ensure_counted
from penstock.server.node.reader import Reader
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources.items import ItemsSource
from penstock.server.store import SqliteStore
from penstock.wire import frame
from penstock.wire.errors import LogDiverged
from penstock.wire.order import Cut, Share, Tail, divisors
from resume import plans
from truth import Truth
from unit.inline_workers import InlineNode

CASES = 90


def make_job(seed: int) -> Job:
    """Return a small finite job, made alike each time, whose lanes end anywhere.

    Of its items any number may give no sample, or several; every other job packs them.
    """
    chance = random.Random(seed)
    if seed % 2:
        return plans.make_job(
            chance.choice(list(plans.BATCHERS)),
            chance.choice(plans.SHUFFLES),
            chance.choice(["sized", "choosy", "choosy"]),
            chance.randrange(1, 5),
            epochs=chance.choice([1, 1, 2]),
            snapshot_every=chance.choice([1, 2, 16]),
        )
    given = [chance.choice([0, 0, 1, 1, 2]) for _ in range(chance.randrange(4, 50))]
    items = [{"x": number, "n": count} for number, count in enumerate(given)]
    return Job(
        ItemsSource(items=[*items, {"x": -1, "n": 1}]),
        processor=FunctionProcessor(lambda raw: [{"x": raw["x"]}] * raw["n"]),
        batch_size=chance.choice([1, 2, 3]),
        lanes=chance.randrange(1, 5),
        epochs=chance.choice([1, 1, 2]),
        seed=seed,
        snapshot_every=chance.choice([2, 16]),
    )


class NotingStore(SqliteStore):
    """Counts the transactions by which ends are recorded."""

    recorded = 0

    async def add_lane_ends(self, log_id: bytes, ends: Mapping[int, int]) -> None:
        """Record ends."""
        self.recorded += 1
        await super().add_lane_ends(log_id, ends)


async def test_the_ends_of_many_lanes_are_recorded_together(tmp_path: Path) -> None:
    """As a count brings them all at once; one that another node recorded otherwise stops alone."""
    store = NotingStore(tmp_path / "store.db")
    await store.open()
    lanes = 1000
    job = Job(
        ItemsSource(items=[{"x": number, "n": 1} for number in range(3 * lanes)]),
        processor=FunctionProcessor(lambda raw: [raw]),
        batch_size=1,
        lanes=lanes,
        epochs=1,
    )
    node = InlineNode({"job": job}, store, workers=1, bound_bytes=1)
    await node.start()
    log = node.log(job)
    await store.add_lane_ends(job.log_id, {7: 2})
    store.recorded = 0

    for lane in range(lanes):
        node.ends.found(log, lane, 3, {})
    async with asyncio.timeout(60):
        while log.numbering.end_of(lanes - 1) is None:
            await node.settle()

    assert store.recorded <= 3
    assert isinstance(log.lanes[7].error, LogDiverged)
    assert [lane for lane in range(lanes) if log.numbering.end_of(lane) is None] == [7]
    assert await store.lane_ends(job.log_id) == dict.fromkeys(range(lanes), 3) | {7: 2}
    await node.close(0.0)
    await store.close()


class Play:
    """Ranks of one run, and workers, moved by a random generator."""

    def __init__(self, seed: int, store: SqliteStore) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        counted = make_job(seed)
        ensure_counted(counted)
        self.truth, batches = Truth(counted), counted.order.batches
        self.counted = counted
        step = self.rng.choice([1, 2, 3, 5, 6])
        self.world = self.rng.choice([*divisors(step), self.rng.randrange(1, step + 4)])
        self.cut = Cut(step, self.rng.random() < 0.5)
        assert batches is not None
        self.tail: Tail = self.cut.tail(batches)
        self.node = self._new_node(store)
        self.readers: dict[int, Reader] = {}
        self.given: dict[int, set[int]] = {rank: set() for rank in range(self.world)}

    def dropped(self) -> int:
        """Return how many samples the batches hold that fill no step."""
        return sum(map(self.truth.samples, range(self.tail.end, self.tail.batches)))

    def share(self, rank: int) -> Share:
        """Return the positions of a rank; where the step is uneven it gets fillers."""
        return Share(self.cut.batches_per_step, rank, self.world, uneven=True)

    def _new_node(self, store: SqliteStore) -> InlineNode:
        jobs = {"job": make_job(self.seed)}
        bound = self.rng.choice([0, 1_000, 50_000])
        return InlineNode(jobs, store, workers=self.rng.choice([1, 2]), bound_bytes=bound)

    def open(self, rank: int) -> None:
        """Have a rank read on from where it stands."""
        share = self.share(rank)
        # As a client does: what has come beyond the first that is missing comes once more.
        start = next(own for own in share.walk(0) if own not in self.given[rank])
        self.given[rank] = {own for own in self.given[rank] if own < start}
        self.readers[rank] = self.node.open(
            self.node.jobs["job"], share, self.cut, start, None, lambda: None
        )

    def extend(self) -> None:
        """Move some horizons."""
        for rank, reader in self.readers.items():
            if self.rng.random() < 0.5:
                done = max(self.given[rank], default=0)
                self.node.extend(reader, done + self.rng.randrange(2, 20))

    def take(self) -> None:
        """Take what may be taken, and hold it against what a pass over all items gives."""
        for rank, reader in self.readers.items():
            while self.rng.random() < 0.8 and (entry := reader.take()) is not None:
                position = entry.key.position
                filler = reader.share.is_filler(position)
                expected = self.truth.batch(position, self.cut, filler=filler)
                assert frame.with_position(entry.header, position) == expected.header, position
                assert bytes(entry.body or b"") == bytes(expected.body), position
                assert position not in self.given[rank], "it was given twice"
                self.given[rank].add(position)
                self.node.sent(reader, entry)

    def answer(self) -> bool:
        """Let some worker answer one message."""
        hands = self.node.hands
        self.rng.shuffle(hands)
        return any(hand.answer_one() for hand in hands)

    async def turn(self) -> None:
        """Do anything."""
        await self.node.settle()
        every = [self.extend, self.take, self.answer, self.die, self.count]
        what = self.rng.choices(every, [4, 4, 10, 0.3, 0.3])
        what[0]()

    def count(self) -> None:
        """Say where a lane ends, as a count does that somebody has asked for."""
        job = self.node.jobs["job"]
        ends = self.counted.order.ends
        assert ends is not None
        if job.needs_counting:
            lane = self.rng.randrange(job.lanes)
            self.node.ends.found(self.node.log(job), lane, ends[lane], {})

    def die(self) -> None:
        """End a worker."""
        hand = self.rng.choice(self.node.hands)
        if hand.ready and not hand.dead:
            hand.die()

    async def restart(self, store: SqliteStore) -> None:
        """End the node as a SIGKILL does: only what the store was told is left."""
        self.readers.clear()
        await self.node.close(0.0)
        self.node = self._new_node(store)
        await self.node.start()

    async def finish(self) -> None:
        """Let the ranks that read have everything to the end."""
        idle = 0
        while waiting := [
            rank
            for rank, one in self.readers.items()
            if not one.finished or one.unknown.dropped_samples() is None
        ]:
            for rank in waiting:
                self.node.extend(self.readers[rank], self.tail.end + 30)
            await self.node.settle()
            self.take()
            idle = 0 if self.answer() else idle + 1
            if idle > 20:
                await asyncio.sleep(0.002)  # for the store
            assert idle < 30_000, [
                (r, self.readers[r].head, self.readers[r].lacks) for r in waiting
            ]


@pytest.mark.parametrize("part", range(3))
async def test_ranks_are_given_all_of_a_log_whose_ends_are_found_as_it_is_read(
    tmp_path: Path, part: int
) -> None:
    """Any answers, deaths, restarts and laggards: right bytes, equal steps, ends as counted."""
    for seed in range(part * CASES // 3, (part + 1) * CASES // 3):
        store = SqliteStore(tmp_path / f"{seed}.db")
        await store.open()
        play = Play(seed, store)
        await play.node.start()
        alone = play.rng.random() < 0.4  # then one rank reads all before another one begins
        for rank in range(play.world):
            play.open(rank)
            for _ in range(play.rng.randrange(60)):
                await play.turn()
            if play.rng.random() < 0.3:
                here = list(play.readers)
                await play.restart(store)
                for again in here:
                    play.open(again)
            if alone:
                await play.finish()
        await play.finish()

        for rank, positions in play.given.items():
            own = [p for step in range(play.tail.steps) for p in play.share(rank).positions(step)]
            assert sorted(positions) == own, seed
        for reader in play.readers.values():
            assert reader.unknown.dropped_samples() == play.dropped(), seed
        counted = play.counted.order.ends
        one = play.node.log(play.node.jobs["job"])
        known = {lane: one.numbering.end_of(lane) for lane in range(one.job.lanes)}
        assert one.numbering.batches in (play.tail.batches, None)
        found = {lane: end for lane, end in known.items() if end is not None}
        if one.job.needs_counting:  # else nobody had to find them out
            assert found == await store.lane_ends(one.job.log_id), seed
        assert all(end in (None, counted[lane]) for lane, end in known.items())
        await play.node.close(0.0)
        await store.close()
