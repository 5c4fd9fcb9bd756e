"""Which raw record a sample comes from: item refs, sample refs, and the plan of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.wire.refs import number_text


class ItemRef(NamedTuple):
    """One raw record in one epoch.

    Attributes:
        source: The name of its source in the job.
        index: Its number there: an index, or shard and row of a stream (`penstock.wire.refs`).
        epoch: Which pass over the data.
    """

    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a ref
    epoch: int

    def __str__(self) -> str:
        return f"{self.source}[{number_text(self.index)}] in epoch {self.epoch}"


class Span(NamedTuple):
    """Half of a split sample: elements `[start, stop)` of it."""

    start: int
    stop: int


class SampleRef(NamedTuple):
    """One sample: an item, which of the item's samples, and which piece if it is split.

    Attributes:
        item: The raw record.
        part: Which of the samples that `process` gave for this item; 0 for the first.
        size: The size of this sample, or of this piece: tokens, frames; 0 if it is not needed.
        span: The piece `[start, stop)` where a packer split the sample; None = all of it.
    """

    item: ItemRef
    part: int = 0
    size: int = 0
    span: Span | None = None

    def to_json(self) -> list[Any]:
        """Return `[source, index, epoch, part, size]`, then `start, stop` if there is a span."""
        return [*self.item, self.part, self.size, *(self.span or ())]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> SampleRef:
        """Return the ref that `to_json` wrote."""
        source, index, epoch, part, size, *span = data
        return cls(ItemRef(source, index, epoch), part, size, Span(*span) if span else None)


Row = list[SampleRef]
"""A row of a batch: for a packer the samples in it, one after another."""

Rows = list[Row]
"""What a batcher returns: the rows of a batch."""


class BatchPlan(NamedTuple):
    """What a batch is made of: enough for any worker of any node to make its bytes.

    Attributes:
        lane: The lane of the batch.
        offset: How many batches of the lane come before it.
        rows: The rows, each a list of sample refs.
        role_set: The number of the job's set of roles that the batch is made by.
    """

    lane: int
    offset: int
    rows: Rows
    role_set: int = 0

    @property
    def samples(self) -> int:
        """How many samples it holds, a piece of a split one counted as one."""
        return sum(map(len, self.rows))

    def to_json(self) -> list[Any]:
        """Return `[lane, offset, rows]`, refs as `SampleRef.to_json` gives them.

        Then the number of the set of roles, if it is not 0.
        """
        rows = [[ref.to_json() for ref in row] for row in self.rows]
        named = [self.role_set] if self.role_set else []
        return [self.lane, self.offset, rows, *named]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> BatchPlan:
        """Return the plan that `to_json` wrote."""
        lane, offset, rows, *named = data
        refs = [[SampleRef.from_json(ref) for ref in row] for row in rows]
        return cls(lane, offset, refs, *named)


__all__ = ["BatchPlan", "ItemRef", "Row", "Rows", "SampleRef", "Span"]
