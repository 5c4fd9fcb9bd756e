"""Batches made of columns: their samples' numbers are copied, and no sample becomes an object.

It only saves time: what cannot be made so is made of items one by one, which gives the same bytes,
and there errors of items are found, named and judged. An error that is of no item is warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from penstock.server.core.refs import BatchPlan, Rows
from penstock.server.pipeline.raws import RawItems
from penstock.server.pipeline.retry import RoleCall
from penstock.server.roles.context import CollateContext
from penstock.server.roles.number_columns import (
    ColumnCollator,
    ColumnRows,
    Indices,
    SequenceColumns,
)
from penstock.server.usercode.contained import contained
from penstock.wire.errors import PenstockError


def collate_columns(
    items: RawItems, plan: BatchPlan
) -> tuple[dict[str, Any], dict[str, int]] | None:
    """Return the values and counts of a batch; None where it must be made of items.

    Args:
        items: Reads sources.
        plan: What it is made of; no verdict is about one of its items.
    """
    role = collator = items.job.role_sets[plan.role_set].collator
    if not isinstance(collator, ColumnCollator) or items.careful:
        return None
    items.progress("fetch", next((ref.item for row in plan.rows for ref in row), None))
    context = CollateContext(items.job.seed, plan.lane, plan.offset)
    try:
        rows = _Rows(items, plan)
        if not rows.as_planned:
            return None
        values = contained(lambda: collator.collate_columns(rows, context))
    except PenstockError:  # of an item or a file: met again there, and named or tried again
        return None
    except Exception as error:  # a batch of a log must be made wherever it can be
        said = (
            f"{role.code_of()} got no batch of columns, and makes it of items, which takes longer"
        )
        items.tell_once(RoleCall(role, "collate_columns"), error, said)
        return None
    return values, {"samples": sum(map(len, plan.rows)), **context.counts}


class _PlannedSamples(NamedTuple):
    """Samples one after another, as columns.

    Attributes:
        names: Of which source each is.
        indices: int64 (k,): their items.
        starts: int64 (k,): the first number of each.
        stops: int64 (k,): where each ends; 0 = at the end of its item's row of numbers.
        sizes: int64 (k,): what each was planned with; 0 where that was not needed.
    """

    names: Sequence[str]
    indices: Indices
    starts: Indices
    stops: Indices
    sizes: Indices

    @classmethod
    def of(cls, rows: Rows) -> _PlannedSamples:
        """Return the samples of all rows."""
        refs = list(chain.from_iterable(rows))
        if not refs:
            return cls((), *np.empty((4, 0), np.int64))
        items, _, sizes, spans, _ = zip(*refs, strict=True)
        names, indices, _ = zip(*items, strict=True)
        starts, stops = np.zeros((2, len(refs)), np.int64)
        if any(spans):
            starts, stops = np.array([span or (0, 0) for span in spans], np.int64).T
        return cls(names, np.array(indices, np.int64), starts, stops, np.array(sizes, np.int64))

    def at(self, places: slice | Indices) -> _PlannedSamples:
        """Return some of them, all of one source; `names` are not cut."""
        return self._replace(
            indices=self.indices[places],
            starts=self.starts[places],
            stops=self.stops[places],
            sizes=self.sizes[places],
        )


class _Rows(ColumnRows):
    """The rows of a plan.

    Attributes:
        as_planned: Every sample has the length that it was planned with, in all columns.
    """

    def __init__(self, items: RawItems, plan: BatchPlan) -> None:
        self._items, self._roles = items, items.job.role_sets[plan.role_set]
        self.as_planned = True
        samples = _PlannedSamples.of(plan.rows)
        self._samples = samples = samples._replace(stops=self._stops(samples))
        self._ends = [0, *accumulate(map(len, plan.rows))]
        lengths = samples.stops - samples.starts
        self.lengths = [lengths[begin:end] for begin, end in pairwise(self._ends)]
        # One that holds the numbers of all sources.
        self.dtypes = {
            column: np.result_type(*map(partial(self._dtype, column), self._roles.sources))
            for column in self._roles.columns
        }

    @override
    def write(self, column: str, row: int, out: npt.NDArray[Any]) -> None:
        end = 0
        for name, run in self._runs(self._ends[row], self._ends[row + 1]):
            begin, end = end, end + int((run.stops - run.starts).sum())
            gather, place = self._source(name).gather, out[begin:end]
            self._items.of_source(
                partial(gather, column, run.indices, run.starts, run.stops, place)
            )

    def _source(self, name: str) -> SequenceColumns:
        source = self._roles.sources[name]
        assert isinstance(source, SequenceColumns)
        return source

    def _dtype(self, column: str, name: str) -> np.dtype[Any]:
        dtype = self._source(name).sequence_dtype(column)
        assert dtype is not None
        return dtype

    def _runs(self, begin: int, end: int) -> Iterator[tuple[str, _PlannedSamples]]:
        """Yield samples that follow one another and are of one source, with its name."""
        names = self._samples.names
        borders = [n for n in range(begin + 1, end) if names[n] != names[n - 1]]
        for start, stop in pairwise([begin, *borders, end]):
            if stop > start:
                yield names[start], self._samples.at(slice(start, stop))

    def _stops(self, samples: _PlannedSamples) -> Indices:
        """Return the ends of samples; note whether they are as they were planned."""
        if self._roles.columns == [self._roles.planned_column] and samples.sizes.all():
            return samples.starts + samples.sizes  # it was planned from these lengths
        stops = np.empty_like(samples.stops)
        every = np.array(samples.names)
        for name in set(samples.names):
            places = np.flatnonzero(every == name)
            stops[places] = self._stops_of(name, samples.at(places))
        return stops

    def _stops_of(self, name: str, samples: _PlannedSamples) -> Indices:
        """Return the ends of samples of one source, as its columns tell them."""
        source = self._source(name)
        lengths, *others = (
            self._items.of_source(partial(source.lengths, column, samples.indices))
            for column in self._roles.columns
        )
        stops = np.where(samples.stops > 0, samples.stops, lengths)
        planned = np.where(samples.sizes > 0, samples.sizes, stops - samples.starts)
        if (
            (lengths < np.maximum(stops, 0)).any()  # below 0: numbers are missing
            or (planned != stops - samples.starts).any()
            or any((other != lengths).any() for other in others)
            or (samples.stops.any() and not self._as_told(name, samples, lengths))
        ):
            self.as_planned = False
        return stops

    def _as_told(self, name: str, samples: _PlannedSamples, lengths: Indices) -> bool:
        """Tell whether what pieces are of was cut by its length, and not by a size beside it."""
        if self._roles.planned_column is not None:
            return True
        source = self._roles.sized_sources.get(name)
        if source is None:
            return False
        ask = partial(self._roles.told_sizes, source, samples.indices.tolist())
        told = self._items.of_source(ask)
        return told is not None and bool((np.asarray(told) == lengths).all())
