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
        accounting: What was counted on the way to it since the batch before it: names and numbers.
    """

    lane: int
    offset: int
    rows: Rows
    role_set: int = 0
    accounting: tuple[tuple[str, int], ...] = ()

    @property
    def samples(self) -> int:
        """How many samples it holds, a piece of a split one counted as one."""
        return sum(map(len, self.rows))

    def to_json(self) -> list[Any]:
        """Return `[lane, offset, rows]`, refs as `SampleRef.to_json` gives them.

        Then the number of the set of roles and the accounting, where there is any.
        """
        rows = [[ref.to_json() for ref in row] for row in self.rows]
        counted = [list(map(list, self.accounting))] if self.accounting else []
        named = [self.role_set] if self.role_set or counted else []
        return [self.lane, self.offset, rows, *named, *counted]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> BatchPlan:
        """Return the plan that `to_json` wrote."""
        lane, offset, rows, *more = data
        refs = [[SampleRef.from_json(ref) for ref in row] for row in rows]
        role_set = more[0] if more else 0
        counted = more[1] if len(more) > 1 else ()
        return cls(lane, offset, refs, role_set, tuple((name, n) for name, n in counted))


__all__ = ["BatchPlan", "ItemRef", "Row", "Rows", "SampleRef", "Span"]
