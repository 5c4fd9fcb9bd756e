"""Windows of a lane that are packed at once: knapsack, best fit decreasing, and `window_N`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.server import packing
from penstock.server.core.refs import Row, SampleRef
from penstock.server.packing.best_fit import best_fit_decreasing_packs
from penstock.server.packing.knapsack import knapsack_packs
from penstock.server.packing.lengths import Histogram, Lengths
from penstock.server.packing.packs import Packs
from penstock.server.packing.vectors import Counts
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.packer import (
    OVERLONG,
    Flags,
    Integers,
    PacksWindows,
    Pieces,
    RowPackingBatcher,
    WindowRows,
    sample_key,
)
from penstock.server.roles.parameters import AtLeast, OneOf, TrueOrFalse, declared
from penstock.wire.errors import InvalidJob

FIRST_WINDOW, YOUNG_ROWS = 8, 4
"""A lane's first window ends after so many samples if they hold the tokens of so many rows, and
each window is twice as large as the one before it: so the first rows come after a few samples."""

MOST_COUNTED = 1 << 22
"""Sizes below this one are counted, in 32 MiB for a moment; of larger ones hardly two are alike."""


@declared
class WindowsBatcher(RowPackingBatcher):
    """Collects a window of samples, packs all of it, and gives out its rows while the next fills.

    A subclass packs sizes in `pack`. The rows of a window come one by one, spread over the samples
    of the next window, so a lane never has to read a whole window before it goes on; they come in
    the order of their oldest samples, so that long documents are not all at the front.

    A window never holds two samples of one item, so no row does: it is packed before the second
    comes. A sample leaves at the latest with the last row of its window, so at most `2 * window`
    rows after it came. What is held is at most two windows.

    At the lane's end the rows that wait are finished, and what was collected is packed as a smaller
    window.
    """

    window: Annotated[int, AtLeast(1, "the samples that are packed at once")] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self._size = min(FIRST_WINDOW, self._most)  # of the window that is collected
        self._collected: list[SampleRef] = []
        self._keys: dict[tuple[str, int, int], None] = {}  # of these: a set is not plain
        self._tokens = 0  # of these
        self._packed: list[Row] = []  # rows of the window before, the next one first
        self._rows_of_window = 0  # how many they were

    @property
    def _most(self) -> int:
        """Return how many samples are packed at once."""
        return self.window

    def facts(self) -> BatcherFacts:
        """Return the size of a window, which is held beside the rows of the one before."""
        return replace(super().facts(), pool=self._most, most_held=2 * self._most)

    def state(self) -> Any:
        """Return what is held; what follows from it is left out."""
        state = super().state()
        del state["_keys"], state["_tokens"]
        return state

    def restore(self, state: Any) -> None:
        """Take back what `state` gave."""
        super().restore(state)
        self._keys = dict.fromkeys(map(sample_key, self._collected))
        self._tokens = sum(ref.size for ref in self._collected)

    @abstractmethod
    def pack(
        self, sizes: Lengths, counts: Counts | None, most: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """Return packs of indices: each index once, or not at all where it is counted.

        Args:
            sizes: The size of each sample.
            counts: What it counts of each limit; None = there is no limit.
            most: The limits.
        """

    def _place(self, ref: SampleRef) -> None:
        if sample_key(ref) in self._keys:
            self._pack_window()
        self._collected.append(ref)
        self._keys[sample_key(ref)] = None
        self._tokens += ref.size
        held = len(self._collected)
        self._release(-(-self._rows_of_window * min(held, self._size) // self._size))
        if held >= self._most or (
            held >= self._size and self._tokens >= YOUNG_ROWS * self.max_tokens
        ):
            self._pack_window()
            self._size = min(2 * self._size, self._most)

    def _release(self, due: int) -> None:
        """Finish rows of the window before until `due` of them are."""
        while len(self._packed) > self._rows_of_window - due:
            self._finish(self._packed.pop(0))

    def _pack_window(self) -> None:
        self._release(self._rows_of_window)
        limits, refs = self._penstock_limits, self._collected
        counts = None if limits is None else [limits.used([ref]) for ref in refs]
        most = () if limits is None else limits.most
        packs = self.pack([ref.size for ref in refs], counts, most)
        self._packed = [
            [self._collected[index] for index in pack] for pack in sorted(packs, key=min)
        ]
        self._rows_of_window = len(self._packed)
        self._collected, self._tokens = [], 0
        self._keys.clear()

    def _held(self) -> Iterator[SampleRef]:
        yield from self._collected
        for row in self._packed:
            yield from row

    def _drain(self) -> None:
        self._pack_window()
        self._release(self._rows_of_window)


class ArrayWindowsBatcher(WindowsBatcher, PacksWindows):
    """Packs windows by array code: those of a lane, and those of a planned job."""

    @abstractmethod
    def pack(self, sizes: Lengths, counts: Counts | None, most: Sequence[int]) -> Packs:
        """Return packs of indices: each index once, or not at all where it is counted."""

    @abstractmethod
    def count(self, histogram: Histogram) -> int:
        """Return how many packs `pack` makes of a window with so many samples of each size."""

    def pack_window(self, sizes: Integers, counts: Integers | None = None) -> WindowRows:
        """Return the packs of a window, then what fills a row alone."""
        limits = self._penstock_limits
        pieces, is_above = self.pieces(sizes, counts)
        shares = (pieces.sizes <= self._most_shared) & ~is_above[pieces.slots]
        placed, singles = np.flatnonzero(shares), np.flatnonzero(~shares)
        if limits is None or counts is None:
            packs = self.pack(pieces.sizes[placed], None, ())
            limited = None
        else:
            begins = pieces.starts[:, np.newaxis] <= 0
            limited = counts[:, limits.places][pieces.slots] * begins
            packs = self.pack(pieces.sizes[placed], limited[placed], limits.most)
        order = np.concatenate([placed[packs.indices], singles])
        bounds = np.concatenate([packs.bounds, packs.bounds[-1] + 1 + np.arange(len(singles))])
        if limited is not None:
            self._note_rows(pieces.sizes[order], limited[order], bounds)
        return WindowRows(Pieces(*(values[order] for values in pieces)), bounds, self.rows)

    def _note_rows(self, sizes: Integers, counts: Integers, bounds: Integers) -> None:
        """Count rows by the limit of which they have the largest part, as `_note_row` does."""
        limits = self._penstock_limits
        assert limits is not None
        if len(bounds) == 1:
            return
        used = np.add.reduceat(counts, bounds[:-1]).tolist()
        for size, of_row in zip(np.add.reduceat(sizes, bounds[:-1]).tolist(), used, strict=True):
            if name := limits.tightest(of_row, size, self._full):
                self._counts[f"closed_by_{name}"] += 1

    def count_batches(self, sizes: Integers) -> int | None:
        """Return what the number of packs makes; None where sizes are too large to count them."""
        pieces, _ = self.pieces(sizes, None)
        shares = pieces.sizes <= self._most_shared
        placed = pieces.sizes[shares]
        if placed.max(initial=0) >= MOST_COUNTED:
            return None
        rows = self.count(np.bincount(placed)) + int(np.count_nonzero(~shares))
        return -(-rows // self.rows)

    def pieces(self, sizes: Integers, counts: Integers | None) -> tuple[Pieces, Flags]:
        """Return what of many samples is packed, each as `add` takes it; the others are counted.

        Args:
            sizes: int64 (n,): the size of each.
            counts: int64 (n, measures): what each counts; None = nothing.

        Returns:
            The pieces; and bool (n,): which samples are above a limit by themselves.

        Raises:
            BadItem: One is longer than a row, or above a limit, and `overlong` is `error`; `item`
                is its number.
        """
        is_above = self._above(sizes, counts)
        self._dropped["empty"] += int(np.count_nonzero(sizes == 0))
        is_whole = np.where(is_above, self.overlong == "alone", sizes <= self.max_tokens)
        slots = np.flatnonzero((sizes > 0) & is_whole)
        starts = stops = np.full(len(slots), -1, np.int64)
        is_long: Flags = (sizes > self.max_tokens) & ~is_above
        if counts is not None and is_long.any() and self.overlong in ("split", "truncate"):
            media = self._media_places(counts.shape[1])
            whole: Flags = is_long & counts[:, media].any(axis=1)
            self._dropped["overlong"] += int(np.count_nonzero(whole))
            is_long = is_long & ~whole
        long = np.flatnonzero(is_long)
        if len(long):
            every = zip((slots, starts, stops), self._cut(long, sizes[long]), strict=True)
            slots, starts, stops = map(np.concatenate, every)
        found = np.where(starts < 0, sizes[slots], stops - starts)
        return Pieces(slots, starts, stops, found), is_above

    def _above(self, sizes: Integers, counts: Integers | None) -> Flags:
        """Return which samples are above a limit by themselves, counted as `overlong` says."""
        limits = self._penstock_limits
        if limits is None or counts is None:
            return np.zeros(len(sizes), np.bool_)
        limited = (counts[:, limits.places] > limits.most) & (sizes > 0)[:, np.newaxis]
        found = np.asarray(limited.any(axis=1))
        first = limited[found].argmax(axis=1)  # the first limit that each is above
        if self.overlong == "error" and len(first):
            slot = int(np.flatnonzero(found)[0])
            if (sizes[:slot] <= self.max_tokens).all():  # else that one comes before
                name = limits.names[int(first[0])]
                raise limits.too_many(name, counts[slot].tolist(), slot)
        if self.overlong == "alone":
            self._counts["overlong_alone"] += len(first)
        elif self.overlong != "error":
            for number, many in enumerate(np.bincount(first, minlength=len(limits.names)).tolist()):
                if many:
                    self._dropped[f"overlong_{limits.names[number]}"] += many
        return found


class PartOfARow:
    """A part of a row, above 0 and at most 1."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse what is none."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InvalidJob(
                f"{name} is {value!r}: give the part of a row that is filled, above 0 and at "
                "most 1",
                key=key,
            )


@declared
class KnapsackPackingBatcher(ArrayWindowsBatcher):
    """Packs windows by the greedy knapsack of neat packing: longest first, into the emptiest row.

    NeMo Automodel's `greedy_knapsack`, fed by windows of the lane, since a stream has no end: rows
    are filled evenly, to at most `packing_ratio` of `max_tokens` (`<=`). Its rows are those of
    `penstock.server.packing.knapsack` for each window. A sample that fits into `max_tokens` and not
    into that part of it is a row of its own.

    The first window of a lane has 8 samples, if they hold the tokens of 4 rows, and each is twice
    as large as the one before it, up to `window`. Rows come one by one while the next window fills.
    A window never holds two samples of one item: it ends before the second.

    Where sizes are told before items are processed (`size`, `sizes`) and turn out too small, what
    `packing_ratio` leaves free takes the difference: see `docs/batchers.md`.

    Counts and drops as `best_fit` does, and samples of rows beyond `max_packs` as `max_packs`. At
    the lane's end what was collected is packed as a smaller window.

    Args:
        max_tokens: The most tokens of a row: Automodel's `pack_size`.
        window: How many samples are packed at once. A larger window leaves less padding; it takes
            memory for up to twice that many samples of every lane, and a sample waits longer.
        packing_ratio: The part of `max_tokens` that rows are filled to, above 0, at most 1. Less
            than 1 leaves room for sizes that turn out larger than they were told; Automodel's
            recipes have 0.9. With exact sizes it only costs padding.
        drop_long_samples: True leaves out samples longer than `max_tokens`, as `overlong: drop`.
        max_packs: How many rows of each window are kept, the first that were opened; samples of
            the others are dropped. None = all. For trials: it leaves data out.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`: `split`, `truncate`, `drop`,
            `alone` or `error`, as of `best_fit`; Automodel's is `error`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small or too large, `overlong` is not one of the five words, or
            it contradicts `drop_long_samples`.
    """

    type_name: ClassVar[str] = "knapsack"
    version: ClassVar[int | str | None] = 1

    dropped_for: ClassVar[Sequence[str]] = (*RowPackingBatcher.dropped_for, "max_packs")

    packing_ratio: Annotated[float, PartOfARow()] = 1.0
    drop_long_samples: Annotated[bool, TrueOrFalse()] = False
    max_packs: Annotated[int | None, AtLeast(1, "the rows of a window")] = None
    _: KW_ONLY
    overlong: Annotated[str | None, OneOf(OVERLONG)] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.drop_long_samples and self.overlong not in (None, "drop"):
            raise InvalidJob(
                f"overlong is {self.overlong!r} and drop_long_samples is true: leave one of them "
                "out",
                key="overlong",
            )
        self.overlong = self.overlong or ("drop" if self.drop_long_samples else "split")
        self.packing_ratio = float(self.packing_ratio)
        super().__post_init__()
        self._capacity = int(self.max_tokens * self.packing_ratio)
        if self._capacity < 1:
            raise InvalidJob(
                f"packing_ratio is {self.packing_ratio}, so rows of {self.max_tokens} tokens "
                "would not hold one of them: raise it",
                key="packing_ratio",
            )
        self._most_shared = min(self._capacity, self._most_shared)

    @property
    def _full(self) -> int:
        """Return what `packing_ratio` makes of `max_tokens`."""
        return self._capacity

    def facts(self) -> BatcherFacts:
        """Return what others do, but that `max_packs` leaves out samples of any size."""
        found = super().facts()
        return found if self.max_packs is None else replace(found, sizes_kept=None)

    def count(self, histogram: Histogram) -> int:
        """Return how many packs `pack` makes of a window with so many samples of each size."""
        packs = packing.count_knapsack(histogram, self._capacity)
        return packs if self.max_packs is None else min(packs, self.max_packs)

    def pack(self, sizes: Lengths, counts: Counts | None, most: Sequence[int]) -> Packs:
        """Return the packs of a window; the samples beyond `max_packs` of them are counted."""
        packs = knapsack_packs(sizes, self._capacity, counts, most)
        if self.max_packs is None:
            return packs
        bounds = packs.bounds[: self.max_packs + 1]
        self._dropped["max_packs"] += len(packs.indices) - int(bounds[-1])
        return Packs(packs.indices[: bounds[-1]], bounds)


@declared
class BestFitDecreasingPackingBatcher(ArrayWindowsBatcher):
    """Packs windows of samples, longest first, each into the fullest row with room (`<=`).

    The packing of "Fewer Truncations Improve Language Modeling" (Ding et al., 2024), fed by windows
    of the lane; rows are those of `penstock.server.packing.best_fit_decreasing` for each window.
    All but the last rows of a window are nearly full, so a larger window leaves less padding.

    The first window of a lane has 8 samples, if they hold the tokens of 4 rows, and each is twice
    as large as the one before it, up to `window`. Rows come one by one while the next window fills.
    A window never holds two samples of one item: it ends before the second.

    Counts and drops as `best_fit` does. At the lane's end what was collected is packed as a smaller
    window.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        window: How many samples are packed at once. A larger window leaves less padding; it takes
            memory for up to twice that many samples of every lane, and a sample waits longer.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`: `split`, `truncate`, `drop`,
            `alone` or `error`, as of `best_fit`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "best_fit_decreasing"
    version: ClassVar[int | str | None] = 1

    def count(self, histogram: Histogram) -> int:
        """Return how many packs `pack` makes of a window with so many samples of each size."""
        return packing.count_best_fit_decreasing(histogram, self.max_tokens)

    def pack(self, sizes: Lengths, counts: Counts | None, most: Sequence[int]) -> Packs:
        """Return the packs of a window."""
        return best_fit_decreasing_packs(sizes, self.max_tokens, counts, most)


@declared
class WindowPackingBatcher(WindowsBatcher):
    """Fills each row by one scan over a window of pending samples: LMMS-Engine's `window_10`.

    Both of its forms, named `window_N` or `{type: window, window: N}`. As its code does it, the
    window rolls: it is filled to N samples, a row takes the oldest and then, in order, every sample
    that still fits (`<=`), and the window is filled again. So a sample leaves within N rows, and
    finishes at most one.

    With `sort: true`, as its guide describes it, samples are ordered longest first and cut into
    windows of N, each used up by scans before the next is looked at. Since a stream has no end,
    `sort_over` samples are sorted at a time, less at a lane's beginning as for `knapsack`. That
    puts the longest together and leaves more padding; it is here for those who trained with it.

    A row never holds two samples of one item. Counts and drops as `best_fit` does. At the lane's
    end rows are made of what is left, in the same way.

    Args:
        max_tokens: The most tokens of a row: LMMS-Engine's `packing_length`.
        window: How many samples a scan looks at. More leave less padding, and a sample waits for
            more rows.
        sort: True takes the guide's form.
        sort_over: With `sort`, how many samples are sorted at a time.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`. `drop` and `alone` are what
            LMMS-Engine's `filter_overlong` decides between; `split`, `truncate` and `error` as of
            `best_fit`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "window"
    version: ClassVar[int | str | None] = 1
    numbered_by: ClassVar[str] = "window"

    window: Annotated[int, AtLeast(1, "the samples that a scan looks at")] = 10
    sort: Annotated[bool, TrueOrFalse()] = False
    sort_over: Annotated[int, AtLeast(1, "the samples that are sorted at a time")] = 256

    @property
    def _most(self) -> int:
        """Return how many samples are packed at once."""
        return self.sort_over if self.sort else self.window

    def facts(self) -> BatcherFacts:
        """Return what others do; a window that is not sorted rolls, and is held alone."""
        found = super().facts()
        return found if self.sort else replace(found, most_held=self.window)

    def pack(
        self, sizes: Lengths, counts: Counts | None, most: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """Return the packs of a window."""
        budgets = self.max_tokens, self.window
        return packing.window(sizes, *budgets, sort=True, counts=counts, most=most)

    def _place(self, ref: SampleRef) -> None:
        if self.sort:
            super()._place(ref)
            return
        self._collected.append(ref)
        if len(self._collected) == self.window:
            self._scan()

    def _drain(self) -> None:
        if self.sort:
            super()._drain()
        while self._collected:
            self._scan()

    def _scan(self) -> None:
        """Finish the row that one scan over the window fills."""
        row: Row = []
        left: list[SampleRef] = []
        room, present = self.max_tokens, set[tuple[str, int, int]]()
        limits = self._penstock_limits
        used = [] if limits is None else limits.used(())
        for ref in self._collected:
            fits = limits is None or limits.fits(used, ref.counts)
            if fits and ref.size <= room and sample_key(ref) not in present:
                row.append(ref)
                if limits is not None:
                    limits.add(used, ref.counts)
                room -= ref.size
                present.add(sample_key(ref))
            else:
                left.append(ref)
        self._collected = left
        self._finish(row)
