"""Which items an epoch draws from, and how often: those that a condition keeps, by a ratio.

The line that a shuffle reorders holds the kept items of the first source, as many times as its
ratio has whole parts, block by block; then a part of each of its blocks for the fraction; then the
second source. A copy is a block of its own, so copies of an item lie as far apart as any two items.

The part is exact over the source, `floor(items * fraction)`, and as even over its blocks as whole
items allow; within a block it is the beginning of a permutation. So nothing is stored of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.common.nearest import nearest
from penstock.server.core.permutation import MAX_ITEMS, Permutation
from penstock.server.core.refs import ItemRef
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.distributors.joined_sources import (
    Places,
    blocks_of,
    check_positions,
    check_rows,
    each_in_blocks,
    lengths_of,
)
from penstock.server.roles.reading import Blocks
from penstock.server.roles.source import IndexedSource
from penstock.wire.errors import InvalidJob

MAX_COPIES = 1 << 20
"""Copies of blocks that ratios of 2 and more may make; each has an entry in the line of an epoch,
in the memory of every worker."""

_LAYOUTS = 4
"""Epochs whose line is kept where `resample` gives each its own: lanes may be in different ones."""

_PERMUTATIONS = 1024
"""Blocks of which a part is drawn, kept for draws to come: as many as groups draw from at once."""


class _StorageBlock(NamedTuple):
    """A storage block of one of the sources.

    Attributes:
        source: The number of its source.
        first: The first item in it that is kept, among the kept ones of its source.
        items: How many are kept.
        nbytes, stored: As in `Blocks`, of the whole block; None = not known.
    """

    source: int
    first: int
    items: int
    nbytes: int | None
    stored: int | None


class _Layout(NamedTuple):
    """The line of an epoch.

    Attributes:
        parts: Number of a block, and which copy of it stands here.
        sizes: How many items each of them has.
        ends: Where each ends.
    """

    parts: list[tuple[int, int]]
    sizes: list[int]
    ends: list[int]


class Selection:
    """Items of sources by a condition and by ratios; see `Drawn`.

    Args:
        sources: The sources by name, in their order.
        where: Which items are kept; None = all.
        ratios: How many draws an epoch has for each item of a source, in the order of the sources.
        resample: Every epoch chooses another part of the items for the fraction of a ratio.
        seed: The job's seed.

    Attributes:
        names, items, blocks, blocked: As of `Drawn`.
        kept: Which items of each source are kept; None = all.

    Raises:
        InvalidJob: A source has no such column, or nothing is left of one.
    """

    def __init__(
        self,
        sources: Mapping[str, IndexedSource],
        where: Condition | None,
        ratios: Sequence[Fraction],
        resample: bool,
        seed: int,
    ) -> None:
        self.names, self._ratios = list(sources), list(ratios)
        self._resample, self._seed = resample, seed
        lengths = lengths_of(sources)
        self.kept: dict[str, Kept | None] = {
            name: None if where is None else _kept(name, source, where)
            for name, source in sources.items()
        }
        stored = {name: blocks_of(name, source) for name, source in sources.items()}
        self.blocked = tuple(name for name, blocks in stored.items() if blocks is not None)
        self._blocks: list[_StorageBlock] = []
        every = each_in_blocks([stored[name] or lengths[name] for name in self.names])
        for number, (name, blocks) in enumerate(zip(self.names, every, strict=True)):
            self._blocks += _blocks_of_source(number, blocks, self.kept[name])
        self._of_source = [list[int]() for _ in self.names]
        for place, block in enumerate(self._blocks):
            self._of_source[block.source].append(place)
        self._items_of = [sum(self._blocks[n].items for n in own) for own in self._of_source]
        self._check_size()
        self._layout = lru_cache(_LAYOUTS if resample else 1)(self._make_layout)
        self._rows = lru_cache(_PERMUTATIONS)(self._make_rows)
        first = self._layout(0)
        self.items = first.ends[-1]
        of = [self._blocks[block] for block, _ in first.parts]
        self.blocks = Blocks(
            first.sizes,
            None if any(b.nbytes is None for b in of) else [b.nbytes or 0 for b in of],
            None if any(b.stored is None for b in of) else [b.stored or 0 for b in of],
            all(blocks is None or blocks.items_are_apart for blocks in stored.values()),
            sum(blocks.decoded for blocks in every),
        )

    def sizes(self, epoch: int) -> Sequence[int]:
        """Return how many items each block has in an epoch."""
        return self._layout(epoch if self._resample else 0).sizes

    def ref(self, index: int, epoch: int) -> ItemRef:
        """Return what stands in the line of an epoch.

        Its `epoch` counts the passes over the source: with a ratio of 1.5 each epoch has two, so
        that a copy is processed with random numbers of its own.
        """
        drawn_in = epoch if self._resample else 0
        layout = self._layout(drawn_in)
        place = bisect_right(layout.ends, index)
        number, copy = layout.parts[place]
        row = index - (layout.ends[place - 1] if place else 0)
        block = self._blocks[number]
        if layout.sizes[place] < block.items:
            row = self._rows(number, drawn_in)[row]
        row += block.first
        name = self.names[block.source]
        kept = self.kept[name]
        passes = self.passes(block.source)
        return ItemRef(name, row if kept is None else kept[row], epoch * passes + copy)

    def refs(self, indices: Sequence[int], epoch: int) -> list[ItemRef]:
        """Return what stands at many places of the line of an epoch."""
        return [self.ref(index, epoch) for index in indices]

    def parts(self, epoch: int) -> Sequence[int]:
        """Return how many items each part of the line has: the blocks, of one source each."""
        return self.sizes(epoch)

    def places(self, part: int, epoch: int, start: int, stop: int) -> Places:
        """Return where rows [start, stop) of a part of the line lie."""
        drawn_in = epoch if self._resample else 0
        layout = self._layout(drawn_in)
        check_rows(part, layout.sizes, start, stop)
        number, copy = layout.parts[part]
        block = self._blocks[number]
        if layout.sizes[part] < block.items:
            rows = self._rows(number, drawn_in).take(np.arange(start, stop)) + block.first
        else:
            rows = np.arange(block.first + start, block.first + stop)
        return Places(block.source, rows, copy)

    def indices(self, source: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of items of a source, by number, from their positions."""
        kept = self.kept[self.names[source]]
        if kept is not None:
            return kept.take(positions)
        check_positions(positions, self._items_of[source])
        return positions

    def passes(self, source: int) -> int:
        """Return how many passes over a source an epoch has, by the source's number."""
        ratio = self._ratios[source]
        return -(-ratio.numerator // ratio.denominator)

    def _draws_of(self, source: int) -> int:
        """Return how many draws an epoch has of a source: at least one."""
        return max(1, int(self._items_of[source] * self._ratios[source]))

    def _check_size(self) -> None:
        """Refuse an epoch whose line cannot be numbered, or kept in memory.

        Raises:
            InvalidJob: Says how much it would have.
        """
        draws = sum(self._draws_of(source) for source in range(len(self.names)))
        if draws > MAX_ITEMS:
            raise InvalidJob(
                f"the sample_ratio makes {draws} draws of an epoch: at most {MAX_ITEMS} are "
                "possible",
                key="distributor.sample_ratio",
            )
        copies = sum(
            len(own) * int(ratio)
            for own, ratio in zip(self._of_source, self._ratios, strict=True)
            if ratio >= 2
        )
        if copies > MAX_COPIES:
            raise InvalidJob(
                f"the sample_ratio makes {copies:,} copies of storage blocks, and at most "
                f"{MAX_COPIES:,} are possible: give a smaller ratio, or a source with larger "
                "blocks",
                key="distributor.sample_ratio",
            )

    def _make_layout(self, epoch: int) -> _Layout:
        parts: list[tuple[int, int]] = []
        sizes: list[int] = []
        for source, ratio in enumerate(self._ratios):
            own = self._of_source[source]
            copies = int(ratio)
            for copy in range(copies):
                parts += [(number, copy) for number in own]
                sizes += [self._blocks[number].items for number in own]
            some = self._draws_of(source) - copies * self._items_of[source]
            if some:
                parts += [(number, copies) for number in own]
                sizes += self._shares(source, own, some, epoch)
        return _Layout(parts, sizes, list(accumulate(sizes)))

    def _shares(self, source: int, own: Sequence[int], some: int, epoch: int) -> list[int]:
        """Return how many of some items of a source each of its blocks gives.

        Systematic sampling, from a random start over the blocks in random order: each gives its
        share, rounded up or down with the right chance.
        """
        total, purpose = self._items_of[source], f"blocks of a sample of {self.names[source]}"
        order = Permutation(len(own), self._seed, epoch, purpose)
        place = Permutation(total, self._seed, epoch, f"start in {purpose}")[0]
        found = [0] * len(own)
        for turn in order.take(np.arange(len(own))).tolist():
            after = place + self._blocks[own[turn]].items * some
            found[turn] = after // total - place // total
            place = after
        return found

    def _make_rows(self, number: int, epoch: int) -> Permutation:
        block = self._blocks[number]
        purpose = f"sample {block.first} of {self.names[block.source]}"
        return Permutation(block.items, self._seed, epoch, purpose)


def _blocks_of_source(number: int, blocks: Blocks, kept: Kept | None) -> list[_StorageBlock]:
    ends = list(accumulate(blocks.items))
    firsts = [0, *(ends if kept is None else map(kept.before, ends))]
    return [
        _StorageBlock(
            number,
            firsts[at],
            firsts[at + 1] - firsts[at],
            None if blocks.nbytes is None else blocks.nbytes[at],
            None if blocks.stored is None else blocks.stored[at],
        )
        for at in range(len(blocks))
    ]


def _without(name: str, source: IndexedSource, column: str) -> str:
    """Return the sentence about a source that does not tell a column of its items."""
    known = source.columns_of_items() or {}
    if known and column not in known:
        near = nearest(column, known)
        meant = f"did you mean {' or '.join(map(repr, near))}? It" if near else "it"
        return (
            f"where asks for column {column!r}, which source {name!r} ({source.type_name}) does "
            f"not give: {meant} has {', '.join(known)}; one that the source's `columns` leave out "
            "has to be among them"
        )
    return (
        f"where needs column {column!r} of every item before anything is drawn, and source "
        f"{name!r} ({source.type_name}) has none of this name, or cannot read it alone: correct "
        "the name, or let the processor return None for such items"
    )


def _kept(name: str, source: IndexedSource, where: Condition) -> Kept:
    """Return which items of a source a condition keeps.

    Raises:
        InvalidJob: The source lacks a column, cannot read it alone, or nothing is kept.
    """
    missing = [column for column in where.columns if not source.has_column(column)]
    if missing:
        raise InvalidJob(_without(name, source, missing[0]), key="distributor.where")
    kept = source.matching(where)
    if not len(kept):
        raise InvalidJob(
            f"where keeps none of the {len(source)} items of source {name!r}: loosen it, or leave "
            "the source out",
            key="distributor.where",
        )
    return kept
