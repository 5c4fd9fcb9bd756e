"""Which raw record a sample comes from: item refs, sample refs, and the plan of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from penstock.wire.errors import BadItem
from penstock.wire.refs import number_text

MAX_NAMED = 3
"""How many of the items that are left out an error names."""


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
    """One sample: an item, which of the item's samples, and which piece where it is split.

    Attributes:
        item: The raw record.
        part: Which of the samples that `process` gave for this item; 0 for the first.
        size: The size of this sample, or of this piece: tokens, frames; 0 where nobody asked.
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
"""One row of a batch: for a packer the samples that lie behind each other in it."""

Group = list[Row]
"""What a batcher finishes: the rows of one batch."""


class BatchPlan(NamedTuple):
    """What one batch is made of: enough for any worker of any node to make its bytes.

    Attributes:
        lane: The lane of the batch.
        offset: How many batches of the lane come before it.
        rows: The rows, each a list of sample refs.
    """

    lane: int
    offset: int
    rows: Group

    def to_json(self) -> list[Any]:
        """Return `[lane, offset, rows]`, refs as `SampleRef.to_json` gives them."""
        return [self.lane, self.offset, [[ref.to_json() for ref in row] for row in self.rows]]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> BatchPlan:
        """Return the plan that `to_json` wrote."""
        lane, offset, rows = data
        return cls(lane, offset, [[SampleRef.from_json(ref) for ref in row] for row in rows])


class Verdict(NamedTuple):
    """A quarantine entry: this item is left out, for this reason, by every node alike.

    It holds from a place on, never below: what was given before it was made stays what it was. That
    place is an offset above all that was given or planned by then in any lane; and the batch that
    it was met for, with all behind it in its lane at stage `draw`.

    Attributes:
        stage: `draw` (removed before batching), `exit` (removed from its own group only) or `size`
            (a sample or piece was left out of a group, for its size was not the planned one).
        item: The item, in the epoch in which it was met.
        content_hash: SHA-256 of its raw bytes, hex.
        reason: One line.
        every_epoch: It is about the raw bytes: nothing random was drawn before the failure, so it
            holds in every epoch. Else it may be the chance of that epoch's augmentation.
        lane: The lane that met it.
        offset: The offset that was being planned, or made, there.
        above: It holds in every lane from this offset on.
        released: It holds in no lane from this offset on; None = it was not released.
        number: 1, 2, ... in the order of its log's store; 0 = kept in one process only.
    """

    stage: str
    item: ItemRef
    content_hash: str
    reason: str
    every_epoch: bool = False
    lane: int = 0
    offset: int = 0
    above: int = 0
    released: int | None = None
    number: int = 0

    def holds(self, item: ItemRef, lane: int, offset: int) -> bool:
        """Tell whether it is about an item and holds for the batch at `offset` of `lane`."""
        if item != self.item and not (self.every_epoch and item[:2] == self.item[:2]):
            return False
        if self.released is not None and offset >= self.released:
            return False
        if offset >= self.above:
            return True
        # Behind a draw nothing was given. Makers go in any order: behind an exit it may have been.
        here = offset >= self.offset if self.stage == "draw" else offset == self.offset
        return lane == self.lane and here

    def to_json(self) -> list[Any]:
        """Return the attributes in their order, the item as a list."""
        return [self.stage, list(self.item), *self[2:]]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Verdict:
        """Return the verdict that `to_json` wrote."""
        stage, item, *rest = data
        return cls(stage, ItemRef(*item), *rest)


def budget_spent(limit: int, verdict: Verdict, known: Iterable[Verdict] = ()) -> BadItem:
    """Return the error for an item that would be left out beyond `max_quarantined`.

    Args:
        limit: `max_quarantined` of the job.
        verdict: About the item.
        known: What is left out already, where no store has it for `penstock quarantine` to list.
    """
    named = ", ".join(f"{one.item} ({one.reason})" for one in islice(known, MAX_NAMED))
    look = f"the first are {named}" if named else "`penstock quarantine` lists them, and why"
    return BadItem(
        f"item {verdict.item} fails ({verdict.reason}), and max_quarantined = {limit} items of the "
        f"job are left out already; look at the data ({look}), or raise max_quarantined",
        item=list(verdict.item),
        stage=verdict.stage,
        lane=verdict.lane,
        offset=verdict.offset,
        reason="quarantine budget spent",
    )


__all__ = ["BatchPlan", "Group", "ItemRef", "Row", "SampleRef", "Span", "Verdict", "budget_spent"]
