"""Batches made of columns: their samples' numbers are copied, and no sample becomes an object.

It only saves time: what cannot be made so is made of items one by one, which gives the same bytes,
and there errors of items are found, named and judged. An error that is of no item is warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.core.refs import BatchPlan, Row
from penstock.server.pipeline.raws import RawItems
from penstock.server.pipeline.retry import Call
from penstock.server.role_set import RoleSet
from penstock.server.roles.base import Source
from penstock.server.roles.columns import ColumnCollator, ColumnRows, Indices, SequenceColumns
from penstock.server.roles.context import CollateContext
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
        items.tell_once(Call(role, "collate_columns"), error, said)
        return None
    return values, {"samples": sum(map(len, plan.rows)), **context.counts}


class _Run(NamedTuple):
    """Samples of a row that follow one another and are of one source.

    Attributes:
        name: The source's name.
        source: The source.
        indices: int64 (k,): their items.
        starts: int64 (k,): the first number of each.
        stops: int64 (k,): where each ends; 0 = at the end of its item's row of numbers.
        sizes: int64 (k,): what each was planned with; 0 where that was not needed.
    """

    name: str
    source: SequenceColumns
    indices: Indices
    starts: Indices
    stops: Indices
    sizes: Indices


class _Rows(ColumnRows):
    """The rows of a plan.

    Attributes:
        as_planned: Every sample has the length that it was planned with, in all columns.
    """

    def __init__(self, items: RawItems, plan: BatchPlan) -> None:
        self._items = items
        roles = items.job.role_sets[plan.role_set]
        self._rows: list[list[_Run]] = []
        self.lengths, self.as_planned = [], True
        for row in plan.rows:
            runs = [self._settled(run, roles) for run in _runs(roles.sources, row)]
            self._rows.append(runs)
            self.lengths.append(
                np.concatenate([run.stops - run.starts for run in runs])
                if runs
                else np.empty(0, np.int64)
            )
        self.dtypes = {}
        for source in roles.sources.values():
            assert isinstance(source, SequenceColumns)
            for column in roles.columns:
                dtype = source.sequence_dtype(column)
                assert dtype is not None
                self.dtypes[column] = dtype

    def write(self, column: str, row: int, out: npt.NDArray[Any]) -> None:
        """Write the samples of a row one after another into `out`, which has just that size."""
        end = 0
        for run in self._rows[row]:
            begin, end = end, end + int((run.stops - run.starts).sum())
            place = out[begin:end]
            self._items.of_source(
                partial(run.source.gather, column, run.indices, run.starts, run.stops, place)
            )

    def _settled(self, run: _Run, roles: RoleSet) -> _Run:
        """Return a run with the ends of its samples; note whether they are as they were planned."""
        if roles.columns == [roles.planned_column] and run.sizes.all():
            # It was planned from these lengths.
            return run._replace(stops=run.starts + run.sizes)
        lengths, *others = (
            self._items.of_source(partial(run.source.lengths, column, run.indices))
            for column in roles.columns
        )
        stops = np.where(run.stops > 0, run.stops, lengths)
        planned = np.where(run.sizes > 0, run.sizes, stops - run.starts)
        if (
            (lengths < np.maximum(stops, 0)).any()  # below 0: numbers are missing
            or (planned != stops - run.starts).any()
            or any((other != lengths).any() for other in others)
            or (run.stops.any() and not self._as_told(run, lengths, roles))
        ):
            self.as_planned = False
        return run._replace(stops=stops)

    def _as_told(self, run: _Run, lengths: Indices, roles: RoleSet) -> bool:
        """Tell whether what pieces are of was cut by its length, and not by a size beside it."""
        if roles.planned_column is not None:
            return True
        source = roles.sized_sources.get(run.name)
        if source is None:
            return False
        told = self._items.of_source(partial(roles.told_sizes, source, run.indices.tolist()))
        return told is not None and bool((np.asarray(told) == lengths).all())


def _runs(sources: Mapping[str, Source], row: Row) -> Iterator[_Run]:
    for name, refs in groupby(row, key=lambda ref: ref.item.source):
        source = sources[name]
        assert isinstance(source, SequenceColumns)
        numbers = np.array(
            [(ref.item.index, *(ref.span or (0, 0)), ref.size) for ref in refs], np.int64
        )
        yield _Run(name, source, *numbers.T)


__all__ = ["collate_columns"]
