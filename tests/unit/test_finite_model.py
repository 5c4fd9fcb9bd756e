"""Finite epochs as a model: planners and numbers alone, no node, over thousands of small cases.

Ranks walk their positions, and learn of the log what they ask for and what others happened to ask.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.server.core.refs import BatchPlan, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import MapDistributor, PaddedCollator
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources import ItemsSource
from penstock.wire.errors import PastEnd
from penstock.wire.numbering import Located, Numbering
from penstock.wire.order import Cut, Share, Tail
from resume.plans import BATCHERS

LOGS, CASES_PER_LOG = 120, 40


def give(raw: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return none, one or several samples of an item."""
    return [{"input_ids": [0] * size} for size in raw["sizes"]] or None


@dataclass
class Log:
    """A small finite log, planned to its end.

    Attributes:
        plans: Of each lane.
        drawn: Items drawn over all lanes.
        left_out: Samples that the batcher left out.
        filtered: Items without a sample.
    """

    plans: list[list[BatchPlan]] = field(default_factory=list)
    drawn: int = 0
    left_out: int = 0
    filtered: int = 0

    @property
    def ends(self) -> list[int]:
        """How many batches each lane holds."""
        return [len(plans) for plans in self.plans]


def make_log(chance: random.Random) -> tuple[Log, int]:
    """Return a random log, and how many samples its items give."""
    sizes = [
        [chance.randint(0, 45) for _ in range(chance.choice([0, 1, 1, 2]))]
        for _ in range(chance.randint(1, 16))
    ]
    epochs, log = chance.randint(1, 2), Log()
    job = Job(
        ItemsSource([{"sizes": each} for each in sizes]),
        MapDistributor(shuffle=chance.choice(["full", "none"])),
        FunctionProcessor(give),
        BATCHERS[chance.choice(sorted(BATCHERS))].clone(),
        PaddedCollator(),
        lanes=chance.randint(1, 6),
        epochs=epochs,
        seed=chance.randrange(100),
    )
    items = Items(job)
    for lane in range(job.lanes):
        planner = SamplePlanner(job, lane, items)
        log.plans.append(list(iter(planner.next, None)))
        counts = planner.counts()
        log.drawn += planner.drawn
        log.left_out += sum(n for name, n in counts.items() if name.startswith("dropped:"))
        log.filtered += sum(n for name, n in counts.items() if name.startswith("filtered:"))
    assert log.drawn == epochs * len(sizes)
    return log, epochs * sum(map(len, sizes))


class Walk:
    """Ranks that read one log.

    Args:
        chance: Decides what happens next.
        log: The log.
        cut: How it is cut into steps.
        world: How many ranks read.
    """

    def __init__(self, chance: random.Random, log: Log, cut: Cut, world: int) -> None:
        self.chance, self.log, self.cut, self.world = chance, log, cut, world
        self.recorded: dict[int, int] = {}  # what a store holds
        self.numbering = self.new_numbering()
        self.asks = 0
        size = cut.batches_per_step
        self.shares = [Share(size, rank, world, uneven=True) for rank in range(world)]
        self.next = [share.at_or_after(0) for share in self.shares]
        self.given: list[dict[int, Located]] = [{} for _ in self.shares]
        self.ended = [False] * world

    def new_numbering(self) -> Numbering:
        """Return what a node knows as it starts: recorded ends, and how far no lane reaches."""
        lanes = len(self.log.plans)
        return Numbering(lanes, [self.recorded.get(lane) for lane in range(lanes)])

    def learn(self, lane: int, offset: int) -> None:
        """Plan a lane up to an offset: it is there, or the lane has ended before."""
        end = self.log.ends[lane]
        if offset < end:
            self.numbering.reach(lane, offset + 1)
        else:
            self.recorded[lane] = end
            self.numbering.end(lane, end)

    def turn(self, rank: int) -> None:
        """Let a rank have its next batch, or ask for one thing that it must know before."""
        position, size = self.next[rank], self.cut.batches_per_step
        try:
            located = self.numbering.locate(position, self.cut)
        except PastEnd:
            self.ended[rank] = True
            return
        if located is None:
            last = position if self.cut.pad else (position // size + 1) * size - 1
            missing = list(self.numbering.missing(last))
            assert missing, "nothing is missing, and it is not known"
            self.asks += 1
            self.learn(*self.chance.choice(missing))
            return
        assert self.given[rank].setdefault(position, located) == located
        self.next[rank] = self.shares[rank].nth_after(position, 1)

    def restart(self) -> None:
        """Start a node anew: what was given stands where it stood, by the recorded ends alone."""
        self.numbering, self.asks = self.new_numbering(), 0
        for given in self.given:
            for position, located in given.items():
                if not located.blanked:
                    assert self.numbering.assume(position, self.cut) == located

    def resume(self) -> None:
        """Have every rank go back to some step that it had reached, as from a checkpoint."""
        size = self.cut.batches_per_step
        step = self.chance.randint(0, min(at // size for at in self.next))
        self.next = [share.at_or_after(step * size) for share in self.shares]
        self.ended = [False] * self.world

    def run(self) -> None:
        """Let all ranks come to the end: in any order, or one of them quite alone."""
        alone = self.chance.random() < 0.3
        bound = sum(self.log.ends) + len(self.log.ends)
        while waiting := [rank for rank in range(self.world) if not self.ended[rank]]:
            self.turn(waiting[0] if alone else self.chance.choice(waiting))
            assert self.asks <= bound, "asking leads nowhere"
            what = self.chance.random()
            if what < 0.02:
                self.restart()
            elif what < 0.03:
                self.resume()
            elif what < 0.1:  # a count, or a reader of another group, finds something out
                lane = self.chance.randrange(len(self.log.plans))
                self.learn(lane, self.chance.randint(0, self.log.ends[lane]))


def refs_of(log: Log, located: Located) -> list[SampleRef]:
    """Return the samples of a batch."""
    return [ref for row in log.plans[located.lane][located.offset].rows for ref in row]


def check(walk: Walk, samples: int) -> None:
    """Hold what ranks were given against the definition, to the item."""
    log, cut = walk.log, walk.cut
    order = sorted((o, lane) for lane, end in enumerate(log.ends) for o in range(end))
    tail = Tail(len(order), cut.batches_per_step, cut.pad)
    real: list[int] = []
    for share, given in zip(walk.shares, walk.given, strict=True):
        own = [p for step in range(tail.steps) for p in share.positions(step)]
        assert sorted(given) == own
        assert len(own) == tail.steps * -(-cut.batches_per_step // walk.world)
        for position, located in given.items():
            source = tail.blanked(position)
            assert located.blanked == (source is not None)
            at = position if source is None else source
            assert (located.offset, located.lane) == order[at]
            if source is None and not share.is_filler(position):
                real.append(position)
    dropped = range(tail.end, len(order)) if not cut.pad else range(0)
    assert sorted(real) == list(range(len(order) - len(dropped)))
    spans: Counter[SampleRef] = Counter()
    for position in (*real, *dropped):
        offset, lane = order[position]
        spans.update(refs_of(log, Located(lane, offset)))
    assert max(spans.values(), default=1) == 1
    delivered = {(ref.item, ref.part) for ref in spans}
    assert len(delivered) + log.left_out == samples
    items = {item for item, _ in delivered}
    assert len(items) + log.filtered <= log.drawn


@pytest.mark.parametrize("part", range(4))
def test_all_ranks_read_equally_many_batches_and_every_item_once(part: int) -> None:
    """Whatever is packed, whoever asks first, restarts or resumes: by the definition, and ended."""
    for number in range(part * LOGS // 4, (part + 1) * LOGS // 4):
        log, samples = make_log(random.Random(number))
        for case in range(CASES_PER_LOG):
            chance = random.Random(1000 * number + case)
            size = chance.randint(1, 9)
            cut, world = Cut(size, chance.random() < 0.5), chance.randint(1, size + 4)
            walk = Walk(chance, log, cut, world)
            try:
                walk.run()
                check(walk, samples)
            except Exception as error:
                error.add_note(f"log {number}, case {case}: {cut}, {world} ranks, ends {log.ends}")
                raise
