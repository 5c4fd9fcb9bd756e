"""What readers of a job are given, to compare what a plan says with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import RawItem
from penstock.server.sources import ItemsSource
from penstock.wire import frame
from penstock.wire.errors import PastEnd


def tokens_of(header: bytes) -> int:
    """Return the count of tokens of a batch."""
    counts = frame.read_header(header).counts
    return {count.name: count.value for count in counts}["tokens"]


class SizedItems(ItemsSource):
    """Items whose sizes the source tells, beside them; it notes whether any was read."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, items: Sequence[RawItem]) -> None:
        super().__init__(items)
        self.fetched = 0

    def sizes(self, indices: Sequence[int]) -> list[int]:
        """Return how many tokens items have."""
        return [len(self._items[index]["input_ids"]) for index in indices]

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return items, and note it."""
        self.fetched += len(indices)
        return super().fetch(indices)


class Read:
    """What a reader of all lanes is given.

    Args:
        job: The job.
        epochs: Up to the draws of so many epochs; None = to the end.
        limit: How many batches of each lane; None = as many as there are.

    Attributes:
        counts: Sums of the batches' counts.
        sources: How many samples are of each source.
        planner: What the planners have counted at last.
        batches, rows, samples: How many there are.
    """

    def __init__(
        self, job: Job, epochs: int | None = None, limit: Sequence[int] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.planner: Counter[str] = Counter()
        self.batches = self.rows = self.samples = 0
        for lane in range(job.lanes):
            line = Line(job, lane)
            while limit is None or line.offset < limit[lane]:
                try:
                    plan = line.advance()
                except PastEnd:
                    break
                if epochs is not None and line.planner.drawn > _draws(job, lane, epochs):
                    break
                made = line.make(plan)
                self.counts.update(made.counts)
                self.batches += 1
                self.rows += len(plan.rows)
                self.samples += plan.samples
                for ref in (ref for row in plan.rows for ref in row):
                    self.sources[ref.item.source] += 1
            self.planner.update(line.planner.counts())


def _draws(job: Job, lane: int, epochs: int) -> int:
    items = sum(len(each) for each in job.sources.values())  # type: ignore[arg-type]
    return -(-(epochs * items - lane) // job.lanes)


__all__ = ["Read", "SizedItems", "tokens_of"]
