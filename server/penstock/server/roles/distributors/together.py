"""Several sources, drawn from as one: their items, and their storage blocks, one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from penstock.server.core.permutation import MAX_ITEMS
from penstock.server.core.refs import ItemRef
from penstock.server.roles.base import IndexedSource
from penstock.server.roles.reading import Blocks
from penstock.server.roles.role import asked
from penstock.wire.errors import InvalidJob


class Drawn(Protocol):
    """What an epoch draws from, in a line that a shuffle reorders.

    Attributes:
        items: How many draws an epoch has.
        blocks: The line cut into storage blocks: those of the first epoch.
        blocked: The names of the sources that have blocks of their own.
    """

    items: int
    blocks: Blocks
    blocked: tuple[str, ...]

    def sizes(self, epoch: int) -> Sequence[int]:
        """Return how many items each block has in an epoch, in the order of `blocks`."""
        ...

    def ref(self, index: int, epoch: int) -> ItemRef:
        """Return what stands in the line at `index`."""
        ...


class Together:
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
        self.blocks = laid_together([stored[name] or lengths[name] for name in self.names])

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


__all__ = ["Drawn", "Together", "blocks_of", "each_in_blocks", "laid_together", "lengths_of"]
