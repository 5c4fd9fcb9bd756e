"""A window, packed: which pieces of which samples share a row, and which rows a batch.

Sizes alone decide it. So it is computed once for all epochs: in each of them another sample of the
same size takes the place of a sample here, see `penstock.server.planning.log.planned_log`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.core.permutation import Permutation
from penstock.server.core.refs import ItemRef, Rows, SampleRef
from penstock.server.pipeline.lane_counts import all_counts
from penstock.server.planning.log.chains import (
    Chains,
    SharedSamples,
    chains_of,
    order_of_rows,
    shared_by,
)
from penstock.server.planning.log.cost_expression import Expression
from penstock.server.planning.log.index_windows import Integers
from penstock.server.roles.batcher import SampleBatcher, facts_of
from penstock.server.roles.batchers.packer import PacksWindows
from penstock.server.roles.filling import BatchColumns, BatchSizes
from penstock.server.roles.role import asked, failing
from penstock.server.usercode.contained import as_exception
from penstock.wire.errors import BadItem, PenstockError


@dataclass(frozen=True)
class PackedWindow:
    """A window of a planned job: its batches, of pieces of samples.

    Attributes:
        slots: int64 (n,): the sample of each piece, by its number in the window, batch by batch and
            row by row.
        starts, stops: int64 (n,): the part of it, where the batcher splits or cuts samples; -1 =
            all of it. None = all of every sample.
        sizes: int64 (n,): the size of each piece.
        rows: int64 (rows + 1,): where each row begins among the pieces, and n.
        batches: int64 (batches + 1,): where each batch begins among the rows, and their number.
        counts: What the batcher counted: `dropped:REASON` and `batcher:NAME`.
        cost: float64 (batches,): what each batch costs; None = nobody asked.
        shared: Which batches hold pieces of one sample; None = each sample is in one batch.
        chains: Batches that are to follow each other in one lane; None where `shared` is None.
    """

    slots: Integers
    starts: Integers | None
    stops: Integers | None
    sizes: Integers
    rows: Integers
    batches: Integers
    counts: Counter[str]
    cost: npt.NDArray[np.float64] | None = None
    shared: SharedSamples | None = None
    chains: Chains | None = None

    def __len__(self) -> int:
        """Return how many batches there are."""
        return len(self.batches) - 1


def pack(
    batcher: SampleBatcher,
    sizes: Integers,
    counts: Integers | None,
    seed: int | None,
    purpose: str,
    *,
    by_length: bool,
) -> PackedWindow:
    """Return a window, packed as a job's batcher says.

    What packs windows is array code. Any other batcher is given the samples one by one, and asked
    for what is left at the end.

    Args:
        batcher: The job's batcher; it is not changed.
        sizes: int64 (n,): the size of each sample.
        counts: int64 (n, measures): what each counts; None = nothing.
        seed: Rows come in an order that it decides; None = in that of their oldest samples.
        purpose: Keeps the orders of several windows apart.
        by_length: Put samples of like sizes into one batch.

    Raises:
        BadItem: The batcher refuses a sample; `item` is its number in the window.
        InvalidJob: The batcher fails.
    """
    if by_length:
        order = np.argsort(-sizes, kind="stable")
        counts = None if counts is None else counts[order]
        found = pack(batcher, sizes[order], counts, None, purpose, by_length=False)
        return replace(found, slots=order[found.slots])
    if isinstance(batcher, PacksWindows) and not batcher.is_of_user():
        return _at_once(batcher, sizes, counts, seed, purpose)
    return _one_by_one(batcher, sizes, counts)


class Outline(NamedTuple):
    """What is known of a packed window from its sizes, without packing it.

    Attributes:
        batches: How many it has; None = only packing says it.
        counts: What the batcher counts.
    """

    batches: int | None
    counts: Counter[str]


def outline(batcher: SampleBatcher, sizes: Integers) -> Outline | None:
    """Return what `pack` makes of a window as far as it takes no packing; None = nothing.

    Args:
        batcher: The job's batcher.
        sizes: int64 (n,): the size of each sample, in any order.

    Raises:
        BadItem: As `pack`.
    """
    if not isinstance(batcher, PacksWindows) or batcher.is_of_user():
        return None
    if facts_of(batcher).sizes_kept is None:
        return None  # what is left out is known when it is packed
    working = batcher.clone()
    return Outline(working.count_batches(sizes), +Counter(all_counts({}, working)))


def with_cost(
    packed: PackedWindow,
    cost: Expression,
    names: Sequence[str] = (),
    counts: Integers | None = None,
) -> PackedWindow:
    """Return a packed window with what each batch costs.

    Args:
        packed: It.
        cost: What that is.
        names: The measures of its samples.
        counts: int64 (n, measures): what each sample counts; None = nothing.

    Raises:
        InvalidJob: The cost of a batch is no finite number.
    """
    counted = {} if counts is None else dict(zip(names, counted_by(packed, counts), strict=True))
    return replace(packed, cost=cost.of({**counted, **measures(packed)}))


def counts_of(packed: PackedWindow, slots: Integers, counts: Integers) -> Integers:
    """Return what the pieces of a window count, int64 (pieces, measures).

    A sample's counts are with the piece that begins it.

    Args:
        packed: The window.
        slots: int64 (pieces,): the sample of each.
        counts: int64 (n, measures): what each sample counts.
    """
    found = counts[slots]
    return found if packed.starts is None else found * (packed.starts[:, np.newaxis] <= 0)


def counted_by(packed: PackedWindow, counts: Integers) -> list[npt.NDArray[np.float64]]:
    """Return what each batch counts, by measure: float64 (batches,), whole numbers."""
    bounds = packed.rows[packed.batches]
    columns = counts_of(packed, packed.slots, counts).T
    before = [np.concatenate([[0], np.cumsum(column)]) for column in columns]
    return [np.diff(column[bounds]).astype(np.float64) for column in before]


def measures(packed: PackedWindow) -> dict[str, npt.NDArray[np.float64]]:
    """Return what a cost is an expression of, for each batch: float64 (batches,) by name.

    All are whole numbers, exact up to 2^53.
    """
    columns = BatchColumns.of(BatchSizes(packed.sizes, packed.rows, packed.batches))
    return {name: values.astype(np.float64) for name, values in columns._asdict().items()}


# --- how ------------------------------------------------------------------------------------------


def _at_once(
    batcher: SampleBatcher,
    sizes: Integers,
    counts: Integers | None,
    seed: int | None,
    purpose: str,
) -> PackedWindow:
    working = batcher.clone()
    pieces, bounds, per_batch, in_order = working.pack_window(sizes, counts)
    bounds = _whole_batches(bounds, per_batch)
    rows = len(bounds) - 1
    if seed is not None and not in_order:
        order = Permutation(rows, seed, 0, f"rows of {purpose}").take(np.arange(rows))
    else:
        firsts = np.minimum.reduceat(pieces.slots, bounds[:-1]) if rows else bounds[:0]
        order = np.argsort(firsts, kind="stable")
    is_cut = bool((pieces.starts >= 0).any())
    chains = None
    if is_cut:
        order, chains = order_of_rows(pieces.slots, pieces.starts, bounds, order, per_batch)
    places, bounds = _reordered(bounds, order)
    slots, starts, stops, of_piece = (values[places] for values in pieces)
    batches = np.append(np.arange(0, rows, per_batch), rows) if rows else np.zeros(1, np.int64)
    shared = shared_by(slots, bounds, batches) if is_cut else None
    return PackedWindow(
        slots,
        starts if is_cut else None,
        stops if is_cut else None,
        of_piece,
        bounds,
        batches,
        +Counter(all_counts({}, working)),
        shared=shared,
        chains=None if shared is None else chains,
    )


def _whole_batches(bounds: Integers, rows: int) -> Integers:
    """Return bounds of so many rows that they fill batches, where there are samples enough.

    The last rows with several samples give their last ones to rows of their own: a batch with fewer
    rows in the middle of an epoch would have another shape than all others.
    """
    missing = -(len(bounds) - 1) % rows
    if not missing:
        return bounds
    several = np.flatnonzero(np.diff(bounds) > 1)[::-1]
    cuts: list[int] = []
    for row in several.tolist():
        first, last = int(bounds[row]), int(bounds[row + 1])
        cuts += range(last - 1, max(first, last - 1 - (missing - len(cuts))), -1)
        if len(cuts) >= missing:
            break
    return np.sort(np.concatenate([bounds, np.array(cuts, np.int64)]))


def _refused(slot: int, reason: str) -> BadItem:
    return BadItem(reason, item=slot, stage="draw", reason=reason)


def _reordered(bounds: Integers, order: Integers) -> tuple[Integers, Integers]:
    """Return the places of stretches in another order, and their bounds there."""
    lengths = np.diff(bounds)[order]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(bounds[:-1][order] - ends[:-1], lengths) + np.arange(ends[-1])
    return places, ends


def _one_by_one(batcher: SampleBatcher, sizes: Integers, counts: Integers | None) -> PackedWindow:
    working = batcher.clone()
    found: list[Rows] = []
    looks = batcher.needs_sizes  # else they are 0 for it, as in a lane that is not planned
    beside = [()] * len(sizes) if counts is None or not looks else map(tuple, counts.tolist())
    for slot, (size, of_it) in enumerate(zip(sizes.tolist(), beside, strict=True)):
        ref = SampleRef(ItemRef("", slot, 0), 0, size if looks else 0, None, of_it)
        try:
            found += working.add(ref)
        except BadItem as error:
            raise _refused(slot, error.reason or error.message) from error
        except PenstockError:
            raise
        except BaseException as raised:
            raise failing(batcher, "add", as_exception(raised)) from raised
    found += asked(working, "flush")
    refs = [ref for batch in found for row in batch for ref in row]
    spans = [ref.span for ref in refs]
    is_split = any(span is not None for span in spans)
    starts = [-1 if span is None else span.start for span in spans]
    stops = [-1 if span is None else span.stop for span in spans]
    slots = _array([ref.item.index for ref in refs])
    rows = np.cumsum(_array([0, *(len(row) for batch in found for row in batch)]))
    batches = np.cumsum(_array([0, *map(len, found)]))
    shared = shared_by(slots, rows, batches)
    return PackedWindow(
        slots,
        _array(starts) if is_split else None,
        _array(stops) if is_split else None,
        _array([ref.size for ref in refs]) if looks or is_split else sizes[slots],
        rows,
        batches,
        +Counter(all_counts({}, working)),
        shared=shared,
        chains=None if shared is None else chains_of(shared, sizes),
    )


def _array(values: Sequence[int]) -> Integers:
    return np.array(values, np.int64)
