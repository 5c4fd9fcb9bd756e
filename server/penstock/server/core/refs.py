"""Which raw record a sample comes from: item refs, sample refs, and the plan of a batch.

Glossary:
    row: The first axis of a batch counts rows. A packed row holds several samples, one after
        another; every other row is one sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, TypeVar

from penstock.wire.item_numbers import number_text

_Ref = TypeVar("_Ref", bound=tuple[Any, ...])


def _made(cls: type[_Ref], fields: Iterable[tuple[Any, ...]]) -> list[_Ref]:
    """Return many named tuples: `__new__` of their own is a function in Python, and slower."""
    return list(map(partial(tuple.__new__, cls), fields))


class ItemRef(NamedTuple):
    """One raw record in one epoch.

    Attributes:
        source: The name of its source in the job.
        index: Its number there: an index, or shard and row of a stream
            (`penstock.wire.item_numbers`).
        epoch: Which pass over the data.
    """

    source: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a ref
    epoch: int

    @classmethod
    def many(cls, source: str, indices: Iterable[int], epoch: int) -> list[ItemRef]:
        """Return the items of a source in one epoch, in this order."""
        return _made(cls, zip(repeat(source), indices, repeat(epoch)))

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
        counts: What it counts beside its size, in the order of the processor's `measures`; empty
            where it has none. Of a split sample the piece that begins it has all.

    Glossary:
        item, sample: An item is a record of a source; a sample is what the processor makes of it,
            and an item may give several.
    """

    item: ItemRef
    part: int = 0
    size: int = 0
    span: Span | None = None
    counts: tuple[int, ...] = ()

    def to_json(self) -> list[Any]:
        """Return `[source, index, epoch, part, size]`, and what there is of span and counts.

        A span is two more numbers, and counts are a list at the end.
        """
        found = [*self.item, self.part, self.size, *(self.span or ())]
        return [*found, list(self.counts)] if self.counts else found

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> SampleRef:
        """Return the ref that `to_json` wrote.

        Raises:
            ValueError, TypeError: It has another form, or something else than whole numbers.
        """
        source, index, epoch, part, size, *span = data
        counts = tuple(span.pop()) if span and isinstance(span[-1], list) else ()
        for number in (index, epoch, part, size, *span, *counts):
            if type(number) is not int or not 0 <= number < 1 << 63:
                raise ValueError(f"{list(data)} is not the ref of a sample")
        return cls(ItemRef(source, index, epoch), part, size, Span(*span) if span else None, counts)

    @classmethod
    def whole(cls, items: Iterable[ItemRef], sizes: Iterable[int]) -> list[SampleRef]:
        """Return the first samples of items, whole, in their order; as many as there are sizes."""
        return _made(cls, zip(items, repeat(0), sizes, repeat(None), repeat(())))


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
        later: Samples that come here from another row, or from a batch before, with the number of
            the row that each joins.
        before: The plans of the lane's batches before it whose samples may come here; None = that
            is decided: `later` has all.
        is_last: It is known to be the last batch of its lane; told only where samples may come
            later.
        again: Those of its items that later batches of the lane hold other pieces of, where the
            planner says so: whoever goes on with the lane keeps what processing them gave. It
            decides no byte, and stays in the process that has planned the batch.

    Glossary:
        batch: What one rank feeds to its model at once: a micro batch, packed; named values.
    """

    lane: int
    offset: int
    rows: Rows
    role_set: int = 0
    accounting: tuple[tuple[str, int], ...] = ()
    later: tuple[tuple[int, SampleRef], ...] = ()
    before: tuple[BatchPlan, ...] | None = None
    is_last: bool = False
    again: frozenset[ItemRef] = frozenset()

    @property
    def samples(self) -> int:
        """How many samples it holds, a piece of a split one counted as one."""
        return sum(map(len, self.rows))

    def to_json(self) -> list[Any]:
        """Return `[lane, offset, rows]`, the rows as columns.

        Then the number of the set of roles and the accounting, where there is any; and an object
        with `later`, `before` and `last`, those of them that say something.
        """
        rows = _rows_to_json(self.rows)
        late = self._late_to_json()
        counted = [list(map(list, self.accounting))] if self.accounting or late else []
        named = [self.role_set] if self.role_set or counted else []
        return [self.lane, self.offset, rows, *named, *counted, *([late] if late else [])]

    def _late_to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.later:
            found["later"] = [[row, ref.to_json()] for row, ref in self.later]
        if self.before is not None:
            found["before"] = [plan.to_json() for plan in self.before]
        if self.is_last:
            found["last"] = True
        return found

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> BatchPlan:
        """Return the plan that `to_json` wrote."""
        lane, offset, rows, *more = data
        refs = _rows_from_json(rows)
        role_set = more[0] if more else 0
        counted = tuple((name, n) for name, n in more[1]) if len(more) > 1 else ()
        found = cls(lane, offset, refs, role_set, counted)
        return found._with_late(more[2]) if len(more) > 2 else found

    def _with_late(self, late: Mapping[str, Any]) -> BatchPlan:
        before = late.get("before")
        return self._replace(
            later=tuple((row, SampleRef.from_json(ref)) for row, ref in late.get("later", ())),
            before=None if before is None else tuple(map(BatchPlan.from_json, before)),
            is_last=late.get("last", False),
        )


def _rows_to_json(rows: Rows) -> list[Any]:
    """Return rows as columns: most plans have one source, one epoch, first parts and no spans.

    `[samples of each row, sources, indices, epochs, parts, sizes, starts, stops]`, where each of
    the last seven is a list, or a single value that all samples share; -1 means no span. Where
    samples have counts, a column of each follows.
    """
    counts = list(map(len, rows))
    refs = list(chain.from_iterable(rows))
    if not refs:
        return [counts]
    items, parts, sizes, spans, counted = zip(*refs, strict=True)
    ends = zip(*(span or (-1, -1) for span in spans), strict=True)
    columns = (*zip(*items, strict=True), parts, sizes, *ends)
    if refs[0].counts:
        columns = (*columns, *zip(*counted, strict=True))
    return [counts, *map(_shortened, columns)]


def _shortened(column: Sequence[Any]) -> Any:
    """Return a column as one value, where it has no other."""
    return column[0] if column.count(column[0]) == len(column) else list(column)


def _rows_from_json(data: Sequence[Any]) -> Rows:
    """Return the rows that `_rows_to_json` wrote."""
    counts, *columns = data
    if not columns:
        return [[] for _ in counts]
    sources, indices, epochs, parts, sizes, starts, stops, *counted = (
        column if isinstance(column, list) else [column] * sum(counts) for column in columns
    )
    items = _made(ItemRef, zip(sources, indices, epochs, strict=True))
    ends = zip(starts, stops, strict=True)
    spans = [None if start < 0 else Span(start, stop) for start, stop in ends]
    of_each = zip(*counted, strict=True) if counted else repeat((), len(items))
    refs = iter(_made(SampleRef, zip(items, parts, sizes, spans, of_each, strict=True)))
    return [list(islice(refs, count)) for count in counts]
