"""Several sources, drawn from as one: their items, and their storage blocks, one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.permutation import MAX_ITEMS
from penstock.server.core.refs import ItemRef
from penstock.server.roles.reading import Blocks
from penstock.server.roles.role import asked
from penstock.server.roles.source import IndexedSource
from penstock.wire.errors import InvalidJob


class Places(NamedTuple):
    """Where rows of the line lie: consecutive ones, of one source.

    Attributes:
        source: The number of the source, in the order of `Drawn.names`.
        positions: int64 (rows,): which of the items of the source that can be drawn each row is,
            counted from 0; `Drawn.indices` gives the items' indices.
        copy: Which pass of the epoch over the source it is, from 0.
    """

    source: int
    positions: NDArray[np.int64]
    copy: int


class Drawn(Protocol):
    """What an epoch draws from, in a line that a shuffle reorders.

    Row r of a part of the line, which begins at `first`, can be had in both ways: with `source,
    [position], copy = places(part, epoch, r, r + 1)` and `[index] = indices(source, [position])`,
    `ref(first + r, epoch)` is `ItemRef(names[source], index, epoch * passes(source) + copy)`.

    Attributes:
        names: The names of the sources, in their order.
        items: How many draws an epoch has.
        blocks: The line cut into storage blocks: those of the first epoch.
        blocked: The names of the sources that have blocks of their own.
    """

    names: list[str]
    items: int
    blocks: Blocks
    blocked: tuple[str, ...]

    def sizes(self, epoch: int) -> Sequence[int]:
        """Return how many items each block has in an epoch, in the order of `blocks`."""
        ...

    def ref(self, index: int, epoch: int) -> ItemRef:
        """Return what stands in the line at `index`."""
        ...

    def refs(self, indices: Sequence[int], epoch: int) -> list[ItemRef]:
        """Return what stands at many places of the line: `[ref(index, epoch) for index in ...]`."""
        ...

    def parts(self, epoch: int) -> Sequence[int]:
        """Return how many items each part of the line has, in its order.

        Each part is of one source. They are the blocks with `sizes(epoch)`; only where none of
        several sources has blocks of its own, so that `blocks` may be one over all of them, each
        source is a part.
        """
        ...

    def places(self, part: int, epoch: int, start: int, stop: int) -> Places:
        """Return where rows [start, stop) of a part of the line lie.

        Raises:
            IndexError: The part does not have these rows.
        """
        ...

    def indices(self, source: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of items of a source, by number, from their positions.

        Args:
            source: The number of the source.
            positions: int64 (n,), as `places` gives them, in any order.

        Returns:
            int64 (n,).

        Raises:
            IndexError: The source does not have such a position.
        """
        ...

    def passes(self, source: int) -> int:
        """Return how many passes over a source an epoch has, by the source's number."""
        ...


class JoinedSources:
    """Sources as one: the items of the second follow those of the first.

    Args:
        sources: The sources by name, in their order.

    Attributes:
        names: Their names.
        items: How many items they hold in all.
        blocks: The storage blocks of all.
        blocked: The names of those that have blocks of their own.

    Raises:
        InvalidJob: One of them is empty or too long, or its blocks do not add up to its length.
    """

    def __init__(self, sources: Mapping[str, IndexedSource]) -> None:
        self.names = list(sources)
        lengths = lengths_of(sources)
        self._ends = list(accumulate(lengths.values()))
        self.items = self._ends[-1]
        stored = {name: blocks_of(name, source) for name, source in sources.items()}
        self.blocked = tuple(name for name, blocks in stored.items() if blocks is not None)
        self._parts = [stored[name] or lengths[name] for name in self.names]
        self.blocks = laid_together(self._parts)
        self._only = self.names[0] if len(self.names) == 1 else None

    def sizes(self, epoch: int) -> Sequence[int]:
        """Return how many items each block has: in every epoch alike."""
        return self.blocks.items

    def ref(self, index: int, epoch: int) -> ItemRef:
        """Return an item of all of them."""
        if self._only is not None:
            return ItemRef(self._only, index, epoch)
        part = bisect_right(self._ends, index)
        return ItemRef(self.names[part], index - (self._ends[part - 1] if part else 0), epoch)

    def refs(self, indices: Sequence[int], epoch: int) -> list[ItemRef]:
        """Return items of all of them."""
        if self._only is not None:
            return ItemRef.many(self._only, indices, epoch)
        return [self.ref(index, epoch) for index in indices]

    def parts(self, epoch: int) -> Sequence[int]:
        """Return how many items each part of the line has: in every epoch alike."""
        return self._line.sizes

    def places(self, part: int, epoch: int, start: int, stop: int) -> Places:
        """Return where rows [start, stop) of a part of the line lie."""
        line = self._line
        check_rows(part, line.sizes, start, stop)
        first = int(line.firsts[part])
        source = bisect_right(line.ends, part)
        return Places(source, np.arange(first + start, first + stop), 0)

    def indices(self, source: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions: all items can be drawn."""
        length = self._ends[source] - (self._ends[source - 1] if source else 0)
        check_positions(positions, length)
        return positions

    def passes(self, source: int) -> int:
        """Return 1: an epoch has each item once."""
        return 1

    @cached_property
    def _line(self) -> _Line:
        # Made when it is first asked for: only planned jobs need it, and there may be many blocks.
        every = each_in_blocks(self._parts)
        sizes = [items for blocks in every for items in blocks.items]
        firsts = [np.cumsum([0, *blocks.items])[:-1] for blocks in every]
        return _Line(sizes, np.concatenate(firsts), list(accumulate(map(len, every))))


class _Line(NamedTuple):
    """The parts of the line of sources that are drawn from as one.

    Attributes:
        sizes: How many items each part has.
        firsts: int64 (parts,): the first item of each, in its source.
        ends: For each source, how many parts there are up to its end.
    """

    sizes: list[int]
    firsts: NDArray[np.int64]
    ends: list[int]


def check_rows(part: int, sizes: Sequence[int], start: int, stop: int) -> None:
    """Refuse rows that a part of the line does not have.

    Raises:
        IndexError: Says which it has.
    """
    if not 0 <= part < len(sizes):
        raise IndexError(f"part {part} of the line: it has {len(sizes)}")
    if not 0 <= start <= stop <= sizes[part]:
        raise IndexError(
            f"rows {start} to {stop} of part {part} of the line: it has {sizes[part]} rows"
        )


def check_positions(positions: NDArray[np.int64], length: int) -> None:
    """Refuse positions that a source does not have.

    Raises:
        IndexError: Says how many it has.
    """
    if len(positions) and (positions.min() < 0 or positions.max() >= length):
        raise IndexError(
            f"positions {positions.min()} to {positions.max()} are not in [0, {length})"
        )


def lengths_of(sources: Mapping[str, IndexedSource]) -> dict[str, int]:
    """Return how many items each source holds.

    Raises:
        InvalidJob: One is empty, or they hold more than can be permuted.
    """
    lengths = {name: len(source) for name, source in sources.items()}
    for name, length in lengths.items():
        if not 0 < length <= MAX_ITEMS or sum(lengths.values()) > MAX_ITEMS:
            raise InvalidJob(
                f"source {name!r} holds {length} items: a job needs 1 to {MAX_ITEMS}", key="source"
            )
    return lengths


def blocks_of(name: str, source: IndexedSource) -> Blocks | None:
    """Return the storage blocks of a source; None = it has none.

    Raises:
        InvalidJob: They are not blocks, or do not add up to its length.
    """
    blocks = asked(source, "blocks")
    if blocks is None:
        return None
    if not isinstance(blocks, Blocks):
        raise InvalidJob(
            f"blocks() of source {name!r} gives a {type(blocks).__name__}: return "
            "Blocks(items=[...]) of penstock.server.roles",
            key="source",
        )
    if sum(blocks.items) != len(source):
        raise InvalidJob(
            f"the blocks of source {name!r} hold {sum(blocks.items)} items, its length "
            f"is {len(source)}: blocks() and __len__ must agree",
            key="source",
        )
    return blocks


def laid_together(parts: Sequence[Blocks | int]) -> Blocks:
    """Return the blocks of several sources, one after another; see `each_in_blocks`.

    Where no source has blocks, all items are one.
    """
    if not any(isinstance(part, Blocks) for part in parts):
        return Blocks([sum(part for part in parts if isinstance(part, int))])
    every = each_in_blocks(parts)
    return Blocks(
        [items for blocks in every for items in blocks.items],
        _joined([blocks.nbytes for blocks in every]),
        _joined([blocks.stored for blocks in every]),
        all(blocks.items_are_apart for blocks in every),
        sum(blocks.decoded for blocks in every),
    )


def each_in_blocks(parts: Sequence[Blocks | int]) -> list[Blocks]:
    """Return the blocks of each of several sources.

    Items without blocks, among others that have some, are cut into blocks of the others' mean
    length, which cost nothing to decode: so they are mixed with the others, as far as a window is.
    Where no source has blocks, the items of each are one.

    Args:
        parts: The blocks of each source; of one that has none, its length.
    """
    known = [part for part in parts if isinstance(part, Blocks)]
    lengths = [items for blocks in known for items in blocks.items if items]
    mean = -(-sum(lengths) // len(lengths)) if lengths else 0
    return [part if isinstance(part, Blocks) else _cut(part, mean or part) for part in parts]


def _cut(length: int, block: int) -> Blocks:
    items = [min(block, length - start) for start in range(0, length, block)]
    return Blocks(items, [0] * len(items), [0] * len(items), items_are_apart=True)


def _joined(parts: Sequence[Sequence[int] | None]) -> list[int] | None:
    if any(part is None for part in parts):
        return None
    return [number for part in parts if part is not None for number in part]
