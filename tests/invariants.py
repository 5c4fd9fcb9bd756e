"""The five invariants, as one checker that end-to-end, fault and model tests share.

* **Purity**: for every (log id, position) one set of bytes, and it is what `local:` computes.
* **Conservation**: every item that a lane drew is accounted for, each span once; the positions of
  a generation's ranks partition what it finished.
* **Cursor**: answered commits survive, and within a generation the cursor never falls.
* **Progress**: what is owed arrives before a deadline, or an error with a reason does.
* **Bounds**: ready bytes stay under the stated limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.job import Job
from penstock.server.local import LocalLoader
from penstock.server.pipeline.joint_planner import JointPlanner
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.wire.digest import batch_digest
from penstock.wire.order import Cut
from penstock.wire.v1 import feed_pb2


class Purity:
    """One set of bytes per position, over everything that was seen anywhere.

    Args:
        job: The job, as this process computes it.
        cut: How readers cut a finite log into steps; None = endless.
    """

    def __init__(self, job: Job, cut: Cut | None = None) -> None:
        self._job, self._loader = job, LocalLoader(job)
        self._cut = cut
        self._truth: dict[int, tuple[feed_pb2.BatchHeader, str, bytes]] = {}
        self.seen = 0

    def truth(self, position: int) -> tuple[feed_pb2.BatchHeader, str, bytes]:
        """Return header, digest and body of a position as `local:` has them."""
        if position not in self._truth:
            computed = self._loader.batch(position, self._cut)
            header = feed_pb2.BatchHeader.FromString(computed.header)
            body = bytes(computed.body)
            self._truth[position] = header, batch_digest(header, body), body
        return self._truth[position]

    def saw(self, header: feed_pb2.BatchHeader, body: bytes) -> None:
        """Check a batch that came over the wire, header and bytes."""
        expected, _, bytes_of = self.truth(header.position)
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
    """Check that every item a lane drew is accounted for, each sample and each piece once.

    Args:
        job: The job.
        lane: The lane.
        batches: How many of its batches are looked at.

    Returns:
        The line's counters at the end.
    """
    line = Line(job, lane)
    delivered: list[SampleRef] = []
    for _ in range(batches):
        plan = line.advance()
        delivered += _refs(plan.rows)
        line.planner.forget()
    planner = line.planner
    inner = planner.inner if isinstance(planner, JointPlanner) else [planner]
    held: list[SampleRef] = []
    for each in inner:
        assert isinstance(each, SamplePlanner)
        held += each.batching.batcher.pending
        held += [ref for group in each.ready for ref in _refs(group)]
    counters = Counter(planner.counts())

    pieces: dict[Any, list[SampleRef]] = {}
    for ref in [*delivered, *held]:
        pieces.setdefault((ref.item, ref.part), []).append(ref)
    for key, refs in pieces.items():
        spans = sorted(ref.span for ref in refs if ref.span is not None)
        if not spans:
            assert len(refs) == 1, f"{key} was delivered or held {len(refs)} times"
            continue
        assert len(spans) == len(refs), f"{key} is there whole and in pieces"
        assert spans[0].start == 0, f"the beginning of {key} is missing"
        for before, after in pairwise(spans):
            assert before.stop == after.start, f"the pieces of {key} overlap or leave a gap"

    present = {item for item, _ in pieces}
    left_out = sum(
        count
        for name, count in counters.items()
        if name.startswith(("filtered:", "quarantined:", "dropped:"))
    )
    one_sample_each = all(part == 0 for _, part in pieces)
    if one_sample_each:
        assert counters["drawn"] == len(present) + left_out, dict(counters)
    else:
        # Of an item with several samples some may be dropped: then it is present all the same.
        assert len(present) <= counters["drawn"] <= len(present) + left_out, dict(counters)
    drawn: set[Any] = set()
    for part, each in zip(job.lane_roles(lane), inner, strict=True):
        draws = part.open_draws()
        drawn.update(draws.next() for _ in range(each.drawn))
    assert present <= drawn, "an item was delivered that was never drawn"
    return counters


def _refs(group: Rows) -> list[SampleRef]:
    return [ref for row in group for ref in row]


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
    "Purity",
    "check_bounds",
    "check_conservation",
    "check_steps",
    "eventually",
]
