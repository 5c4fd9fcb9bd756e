"""How the line of an epoch is cut into windows, and which samples each window holds.

The line holds the items of all sources as the distributor `map` draws them: those that `where`
keeps, as many times as `sample_ratio` says. It is cut into pieces: storage blocks with `shuffle:
blocks`, else runs of up to 1,024 items. A seeded permutation of the pieces is cut into windows of
about equal length, the same for all epochs, so that the number of batches is the same, too. Copies
of an item are in windows of their own, so no window holds an item twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.core.permutation import Permutation
from penstock.server.pipeline.lane_counts import MAX_REASONS
from penstock.server.planning.index.block import OTHER_REASONS, QUARANTINED, LeftOut
from penstock.server.planning.index.index_file import IndexedSizes, SizeIndex
from penstock.server.roles.distributors.joined_sources import Drawn

Integers = npt.NDArray[np.int64]

RUN, RUNS = 1024, 64
"""The most items of a piece where sources have no storage blocks, and how many pieces a window has
at least: few items, so that a window mixes all of a source, and enough that their sizes are read in
a few microseconds each."""


class LineStretch(NamedTuple):
    """A stretch of the line: rows `[start, stop)` of one of its parts."""

    part: int
    start: int
    stop: int


class WindowSamples(NamedTuple):
    """The samples of a window, in the order in which they are packed.

    Attributes:
        sizes: int64 (n,): the size of each.
        sources: int16 (n,): the number of its source.
        items: int64 (n,): its item.
        copies: int32 (n,): in which of the epoch's passes over its source.
        parts: int32 (n,): which of its item's samples; None = the only one, of all of them.
        measured: int64 (n, measures): what each counts beside its size; None = nothing.
        counts: Items: `drawn`, and those that gave no sample, by reason, as `Reasons` has them.
    """

    sizes: Integers
    sources: npt.NDArray[np.int16]
    items: Integers
    copies: npt.NDArray[np.int32]
    parts: npt.NDArray[np.int32] | None
    counts: Counter[str]
    measured: Integers | None = None


class Reasons:
    """Keeps counts of reasons to few names, whatever a role makes of its reasons.

    By name are those that the index names at its end, of all sources together: `MAX_REASONS` of
    them, and items that fail. All others are one. So a reason has the same name in each block,
    window, batch and process, and sums of sums agree however they are added up; they would not if
    each sum kept the names that it met first.

    Args:
        sources: The sizes of the sources that are drawn from.
    """

    def __init__(self, sources: Sequence[IndexedSizes]) -> None:
        every = dict.fromkeys(reason for source in sources for reason in source.left_out)
        self._named = {*[reason for reason in every if reason != QUARANTINED][:MAX_REASONS]}
        self._named.add(QUARANTINED)

    def add(self, reasons: Mapping[str, int], into: Counter[str]) -> None:
        """Add counts of reasons to others."""
        for reason, count in reasons.items():
            into[reason if reason in self._named else OTHER_REASONS] += count


class _OfPositions(NamedTuple):
    """What the index says of some positions.

    Attributes:
        per_item: How many samples each has; None = one.
        sizes: Their sizes.
        left_out: Why how many have none.
        measured: What the samples count; None = nothing.
    """

    per_item: Integers | None
    sizes: Integers
    left_out: Counter[str]
    measured: Integers | None


class Windows:
    """The windows of one reading group, or of the whole line.

    Args:
        drawn: The line of an epoch.
        index: The sizes.
        names: The names of the sources, in the line's order.
        pieces: What of the line belongs to these windows, in the order that windows are cut from:
            pieces of different lists are in different windows.
        length: How many items a window has, about.
        align: All windows but the last have a multiple of so many items.
        whole: Windows are of whole pieces.
        seed: The job's seed; None = samples keep the order of the line.
        purpose: Keeps the orders of several groups apart.
    """

    def __init__(
        self,
        drawn: Drawn,
        index: SizeIndex,
        names: Sequence[str],
        pieces: Sequence[Sequence[LineStretch]],
        length: int,
        align: int,
        whole: bool,
        seed: int | None,
        purpose: str,
    ) -> None:
        self._drawn, self._seed, self._purpose = drawn, seed, purpose
        self._sources = [index.sources[name] for name in names]
        self._reasons = Reasons(self._sources)
        self._windows = [
            window for own in pieces for window in cut(own, length, align, whole=whole)
        ]

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self._windows)

    @property
    def most_parts(self) -> int:
        """Return of how many parts of the line, such as storage blocks, a window has items."""
        return max((len({piece.part for piece in own}) for own in self._windows), default=0)

    def samples(self, number: int) -> WindowSamples:
        """Return the samples of a window.

        Raises:
            SourceUnavailable: The index cannot be read.
        """
        found = [self._of_piece(piece) for piece in self._windows[number]]
        counts: Counter[str] = Counter()
        for one in found:
            counts.update(one.counts)
        parts = None
        if any(one.parts is not None for one in found):
            parts = np.concatenate(
                [
                    np.zeros(len(one.items), np.int32) if one.parts is None else one.parts
                    for one in found
                ]
            )
        joined = WindowSamples(
            np.concatenate([one.sizes for one in found]),
            np.concatenate([one.sources for one in found]),
            np.concatenate([one.items for one in found]),
            np.concatenate([one.copies for one in found]),
            parts,
            counts,
            _measured([one.measured for one in found]),
        )
        if self._seed is None:
            return joined
        # Neighbours of the line are not packed with each other more often than others.
        total = len(joined.sizes)
        order = Permutation(total, self._seed, 0, f"samples of window {number} {self._purpose}")
        return _taken(joined, order.take(np.arange(total)))

    def sizes(self, number: int) -> Integers:
        """Return the sizes of a window's samples, in no order: int64 (n,)."""
        found = []
        for piece in self._windows[number]:
            source, positions, _ = self._drawn.places(piece.part, 0, piece.start, piece.stop)
            found.append(self._read(source, positions).sizes)
        return np.concatenate(found)

    def _of_piece(self, piece: LineStretch) -> WindowSamples:
        source, positions, copy = self._drawn.places(piece.part, 0, piece.start, piece.stop)
        per_item, sizes, left_out, measured = self._read(source, positions)
        items = self._drawn.indices(source, positions)
        counts: Counter[str] = Counter({"drawn": len(positions)})
        self._reasons.add(left_out, counts)
        parts = None
        if per_item is not None:
            items = np.repeat(items, per_item)
            firsts = np.repeat(np.cumsum(per_item) - per_item, per_item)
            parts = (np.arange(len(items)) - firsts).astype(np.int32)
            if not parts.any():
                parts = None
        return WindowSamples(
            sizes,
            np.full(len(items), source, np.int16),
            items,
            np.full(len(items), copy, np.int32),
            parts,
            counts,
            measured,
        )

    def _read(self, source: int, positions: Integers) -> _OfPositions:
        if not len(positions):
            measures = len(self._sources[source].counted)
            measured = np.empty((0, measures), np.int64) if measures else None
            return _OfPositions(None, np.empty(0, np.int64), Counter(), measured)
        first, last = int(positions.min()), int(positions.max())
        found = self._sources[source].read(first, last + 1)
        wanted = positions - first
        is_stretch = len(wanted) == last + 1 - first and bool((np.diff(wanted) == 1).all())
        left_out = found.left_out
        assert isinstance(left_out, LeftOut)
        if is_stretch:
            per_item = None if found.counts is None else found.counts.astype(np.int64)
            return _OfPositions(per_item, found.sizes, left_out.tally(), found.measured)
        reasons = left_out.among(positions).tally()
        if found.counts is None:
            return _OfPositions(None, found.sizes[wanted], reasons, _some(found.measured, wanted))
        every = found.counts.astype(np.int64)
        starts = (np.cumsum(every) - every)[wanted]
        per_item = every[wanted]
        inner = np.arange(per_item.sum()) - np.repeat(np.cumsum(per_item) - per_item, per_item)
        some = np.repeat(starts, per_item) + inner
        return _OfPositions(per_item, found.sizes[some], reasons, _some(found.measured, some))


def _taken(samples: WindowSamples, order: Integers) -> WindowSamples:
    return WindowSamples(
        samples.sizes[order],
        samples.sources[order],
        samples.items[order],
        samples.copies[order],
        None if samples.parts is None else samples.parts[order],
        samples.counts,
        _some(samples.measured, order),
    )


def _some(measured: Integers | None, places: Integers) -> Integers | None:
    return None if measured is None else measured[places]


def _measured(parts: Sequence[Integers | None]) -> Integers | None:
    some = [part for part in parts if part is not None]
    return np.concatenate(some) if some else None


def kinds_of(samples: WindowSamples, places: Sequence[int], media: Sequence[int]) -> Any:
    """Return numbers, int (n,), that are the same for samples that may take each other's places.

    Those of the same size, and of the same counts of what is told apart; and samples with pictures
    in none of others, which may be cut. As small integers as hold them: NumPy sorts these by radix.

    Args:
        samples: The samples.
        places: Which of their counts are told apart.
        media: Which are of more than tokens.
    """
    kinds = samples.sizes
    if samples.measured is not None:
        has_media = samples.measured[:, media].any(axis=1)
        vectors = np.column_stack([kinds, has_media, samples.measured[:, places]])
        kinds = np.unique(vectors, axis=0, return_inverse=True)[1].reshape(-1)
    return kinds.astype(np.uint16) if len(kinds) and kinds.max() < 1 << 16 else kinds


def pieces_of(drawn: Drawn, seed: int | None, run: int | None) -> list[list[LineStretch]]:
    """Return the pieces of the line in the order that windows are cut from, by their copy.

    Args:
        drawn: The line.
        seed: The job's seed; None = in the line's order.
        run: How many items a piece has; None = a piece is a storage block.

    Returns:
        Those of the first copies of items, then those of the second, and so on.
    """
    found: dict[int, list[LineStretch]] = {}
    for part, items in enumerate(drawn.parts(0)):
        own = found.setdefault(drawn.places(part, 0, 0, 0).copy, [])
        step = run or max(1, items)
        own += (LineStretch(part, at, min(at + step, items)) for at in range(0, items, step))
    for copy, own in found.items() if seed is not None else ():
        order = Permutation(len(own), seed or 0, 0, f"pieces of the plan, copy {copy}")
        found[copy] = [own[place] for place in order.take(np.arange(len(own))).tolist()]
    return [found[copy] for copy in sorted(found)]


def run_of(window: int) -> int:
    """Return how many items a piece has, where windows are of so many samples."""
    return max(1, min(RUN, window // RUNS))


def cut(
    pieces: Sequence[LineStretch], length: int, align: int = 1, *, whole: bool = False
) -> list[list[LineStretch]]:
    """Return pieces as windows of about `length` items, of equal length to within `align`.

    Args:
        pieces: The pieces, in order; one may be cut in two.
        length: How many items a window shall have.
        align: All windows but the last have a multiple of so many items.
        whole: Cut no piece, but where the nearest one ends: a storage block that is in two windows
            is decoded twice.
    """
    ends = np.cumsum([piece.stop - piece.start for piece in pieces], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    number = max(1, (total + length // 2) // length)
    steps = -(-total // align)
    bounds = [min(total, steps * window // number * align) for window in range(number + 1)]
    if whole and total:
        between = (ends[1:] + ends[:-1]) // 2
        bounds = [0, *ends[np.searchsorted(between, bounds[1:-1])].tolist(), total]
    found: list[list[LineStretch]] = []
    for begin, end in pairwise(sorted({*bounds})):
        window = []
        first = int(np.searchsorted(ends, begin, "right"))
        for place in range(first, int(np.searchsorted(ends, end, "left")) + 1):
            part, start, stop = pieces[place]
            before = int(ends[place]) - (stop - start)
            window.append(
                LineStretch(
                    part, start + max(0, begin - before), start + min(stop - start, end - before)
                )
            )
        found.append(window)
    return found
