"""The five invariants, as one checker that end-to-end, fault and model tests share.

* **Purity**: for every (log id, position) one set of bytes, and it is what `local:` computes.
* **Conservation**: every item that a lane drew is accounted for, each span once; the positions of
  a generation's ranks partition what it finished.
* **Cursor**: answered commits survive, and within a generation the cursor never falls.
* **Progress**: what is owed arrives before a deadline, or an error with a reason does.
* **Bounds**: ready bytes stay under the stated limit.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from penstock.server.core.refs import ItemRef, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Outcome
from penstock.server.pipeline.joint_planner import JointPlanner
from penstock.server.pipeline.known_verdicts import Quarantined
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.processing import Filtered
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.wire import frame
from penstock.wire.digest import batch_digest
from penstock.wire.order import Cut
from penstock.wire.v1 import feed_pb2
from truth import Truth


class Purity:
    """One set of bytes per position, over everything that was seen anywhere.

    Args:
        job: The job, as this process computes it.
        cut: How readers cut a finite log into steps; None = endless.
    """

    def __init__(self, job: Job, cut: Cut | None = None) -> None:
        self._job, self._loader = job, Truth(job)
        self._cut = cut
        self._truth: dict[int, tuple[feed_pb2.BatchHeader, str, bytes]] = {}
        self._lock = threading.Lock()  # one thread at a time may compute with a job's roles
        self.seen = 0

    def truth(self, position: int) -> tuple[feed_pb2.BatchHeader, str, bytes]:
        """Return header, digest and body of a position as `local:` has them."""
        with self._lock:
            if position not in self._truth:
                computed = self._loader.batch(position, self._cut)
                header = feed_pb2.BatchHeader.FromString(computed.header)
                body = bytes(computed.body)
                self._truth[position] = header, batch_digest(header, body), body
            return self._truth[position]

    def saw(self, header: feed_pb2.BatchHeader, body: bytes) -> None:
        """Check a batch that came over the wire, or as a client has completed it."""
        expected, _, bytes_of = self.truth(header.position)
        if expected.HasField("packed") and not header.HasField("packed"):
            bytes_of = bytes(frame.completed(expected, bytes_of))  # type: ignore[arg-type]
            completed = feed_pb2.BatchHeader.FromString(expected.SerializeToString())
            completed.ClearField("packed")
            expected = completed
        assert header == expected, f"the header at position {header.position} differs"
        assert body == bytes_of, f"the bytes at position {header.position} differ"
        self.seen += 1

    def saw_digest(self, position: int, digest: str) -> None:
        """Check a batch of which a client noted the digest."""
        assert digest == self.truth(position)[1], f"the bytes at position {position} differ"
        self.seen += 1


@dataclass
class Generation:
    """What one attempt of a group did.

    Attributes:
        start_step: Where it began.
        world_size: Its ranks.
        delivered: Rank -> positions that it was given, in order.
        answered: Rank -> the highest row that a commit of it was answered with.
    """

    start_step: int
    world_size: int
    delivered: dict[int, list[int]] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)


@dataclass
class Attempts:
    """Every attempt of one group, in order: Conservation over ranks, and Cursor.

    Args:
        batches_per_step: G of the group.
        generations: The attempts, the first one first.
    """

    batches_per_step: int
    generations: list[Generation] = field(default_factory=list)

    def check(self, cursor: int) -> None:
        """Check all attempts, and that the group's cursor is where answers left it.

        Args:
            cursor: The group's cursor as the store has it now.
        """
        size = self.batches_per_step
        ends = [later.start_step for later in self.generations[1:]] + [cursor]
        for number, (one, end) in enumerate(zip(self.generations, ends, strict=True), 1):
            answered = [one.answered.get(rank, one.start_step) for rank in range(one.world_size)]
            assert end >= min(answered), f"generation {number}: answered commits were lost"
            finished: Counter[int] = Counter()
            for rank, positions in one.delivered.items():
                assert positions == sorted(set(positions)), (
                    f"generation {number}, rank {rank}: a position came twice or out of order"
                )
                for position in positions:
                    assert position % size % one.world_size == rank
                    assert position >= one.start_step * size
                finished.update(p for p in positions if p < end * size)
            expected = range(one.start_step * size, end * size)
            lost = [p for p in expected if finished[p] == 0]
            repeated = [p for p, count in finished.items() if count > 1]
            assert not lost, f"generation {number}: positions {lost[:5]} were lost"
            assert not repeated, f"generation {number}: positions {repeated[:5]} came twice"


def check_conservation(job: Job, lane: int, batches: int) -> Mapping[str, int]:
    """Check, at every offset, that all that a lane drew is accounted for, to the item.

    Each drawn item is filtered, quarantined or gives samples; each sample is delivered, held or
    dropped, whole or each piece once; each sample of a plan is in its batch or left out of it by a
    verdict; and all of it is counted by reason, in the planner and in the batches.

    Args:
        job: The job.
        lane: The lane.
        batches: How many of its batches are looked at.

    Returns:
        The line's counters at the end.
    """
    ledger = Ledger(job, lane)
    ledger.check()
    for _ in range(batches):
        ledger.advance()
        ledger.check()
    return ledger.line.counters()


class Ledger:
    """What a lane drew, and what became of it, added up beside its line.

    Args:
        job: The job.
        lane: The lane.
    """

    def __init__(self, job: Job, lane: int) -> None:
        self.job, self.line = job, Line(job, lane)
        planner = self.line.planner
        inner = planner.inner if isinstance(planner, JointPlanner) else [planner]
        self._inner = [each for each in inner if isinstance(each, SamplePlanner)]
        self._draws = [part.open_draws() for part in job.lane_roles(lane)]
        self._drawn = [0] * len(self._inner)
        self._sizes: dict[ItemRef, int] = {}
        for each in self._inner:
            each.draws.took = self._hearing(each.draws.took)
            each.draws.step = self._hearing_many(each.draws.step)
        self._expected: Counter[str] = Counter()
        self._samples: set[tuple[ItemRef, int]] = set()
        self._delivered: list[SampleRef] = []
        self._told: Counter[str] = Counter()

    def _hearing(self, took: Callable[[ItemRef, int], None]) -> Callable[[ItemRef, int], None]:
        def hear(item: ItemRef, size: int) -> None:
            self._sizes[item] = size
            took(item, size)

        return hear

    def _hearing_many(
        self, step: Callable[[Sequence[ItemRef], Sequence[int]], None]
    ) -> Callable[[Sequence[ItemRef], Sequence[int]], None]:
        def hear(items: Sequence[ItemRef], sizes: Sequence[int]) -> None:
            self._sizes.update(zip(items, sizes, strict=True))
            step(items, sizes)

        return hear

    def advance(self) -> None:
        """Make the next batch, and compare what it holds with its plan."""
        line = self.line
        plan = line.advance()
        planned = _refs(plan.rows)
        self._delivered += planned
        self._told.update(dict(plan.accounting))
        made = line.make(plan)
        header = frame.read_header(made.write(memoryview(bytearray(made.nbytes))))
        exits = sum(n for name, n in made.exits.items() if name.startswith("quarantined:"))
        assert len(header.samples) + exits == len(planned), dict(made.exits)
        told = {count.name: count.value for count in header.accounting}
        assert told == Counter(dict(plan.accounting)) + Counter(made.exits)
        line.planner.forget()

    def check(self) -> None:
        """Compare what was counted with what should have been."""
        planner = self.line.planner
        counters = Counter(planner.counts())
        held: list[SampleRef] = []
        for number, (inner, draws) in enumerate(zip(self._inner, self._draws, strict=True)):
            while self._drawn[number] < inner.drawn:
                item = draws.next()
                assert item is not None
                self._draw(item)
                draws.took(item, self._sizes[item])
                self._drawn[number] += 1
            held += inner.batching.batcher.pending
            held += _refs(r for rows in inner.ready for r in rows)
        assert counters["drawn"] == sum(self._drawn)
        present = _pieces([*self._delivered, *held])
        assert present <= self._samples, "a sample was delivered that was never drawn"
        dropped = Counter({n: c for n, c in counters.items() if n.startswith("dropped:")})
        assert len(present) + dropped.total() == len(self._samples), dict(counters)
        left_out = Counter({n: c for n, c in counters.items() if n.startswith(ITEMS_LEFT_OUT)})
        assert left_out == self._expected
        _, state = snapshot.decode(planner.snapshot(), self.job.log_id, self.line.lane)
        finished: Counter[str] = Counter()
        for inner_state in state.get("sets", [state]):
            before, ready = inner_state["accounts"]
            finished.update(before)
            for bears in ready:
                finished.subtract(dict(bears))
        assert +finished == self._told, "batches bear something else than was counted"

    def _draw(self, item: ItemRef) -> None:
        """Note what should become of an item."""
        items, lane = self.line.items, self.line.lane
        if self.job.roles_of(item.source).plans_from_refs:
            quarantined = items.verdicts.find("draw", item, lane, END) is not None
            outcome: Outcome | list[None] = [None]
        else:
            [outcome] = items.samples([item], "draw", lane, END)
            quarantined = isinstance(outcome, Quarantined)
        if quarantined:
            self._expected["quarantined:draw"] += 1
        elif isinstance(outcome, Filtered):
            self._expected[f"filtered:{outcome.reason}"] += 1
        else:
            assert isinstance(outcome, list)
            self._samples.update((item, part) for part in range(len(outcome)))


ITEMS_LEFT_OUT = ("filtered:", "quarantined:")
END = 1 << 40
"""An offset at which all verdicts hold."""


def _pieces(refs: Iterable[SampleRef]) -> set[tuple[ItemRef, int]]:
    """Return the samples, each of which is there whole, or in pieces without gap or overlap."""
    pieces: dict[tuple[ItemRef, int], list[SampleRef]] = {}
    for ref in refs:
        pieces.setdefault((ref.item, ref.part), []).append(ref)
    for key, found in pieces.items():
        spans = sorted(ref.span for ref in found if ref.span is not None)
        if not spans:
            assert len(found) == 1, f"{key} was delivered or held {len(found)} times"
            continue
        assert len(spans) == len(found), f"{key} is there whole and in pieces"
        assert spans[0].start == 0, f"the beginning of {key} is missing"
        for before, after in pairwise(spans):
            assert before.stop == after.start, f"the pieces of {key} overlap or leave a gap"
    return set(pieces)


def _refs(rows: Iterable[Sequence[SampleRef]]) -> list[SampleRef]:
    return [ref for row in rows for ref in row]


def eventually(holds: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Progress: wait until `holds()`, at most for `deadline_s` seconds.

    Raises:
        AssertionError: The deadline passed; says what was waited for.
    """
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)


def check_bounds(status: Mapping[str, Any], largest_bytes: int) -> None:
    """Check a node's status against its bound: peak = bound + readers * largest batch."""
    readers = sum(len(job["groups"]) for job in status["jobs"])
    ready = sum(job["ready_bytes"] + job["kept_bytes"] for job in status["jobs"])
    limit = status["bound_bytes"] + readers * largest_bytes
    assert ready <= limit, f"{ready} bytes are ready, the limit is {limit}"


def check_steps(per_rank: Iterable[int]) -> None:
    """Check that all ranks ended at the same step."""
    assert len(set(per_rank)) == 1, f"ranks ended at different steps: {list(per_rank)}"


__all__ = [
    "Attempts",
    "Generation",
    "Ledger",
    "Purity",
    "check_bounds",
    "check_conservation",
    "check_steps",
    "eventually",
]
