"""Decoded blocks: the least recently used are dropped first, above bounds in number and bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Value = TypeVar("Value")

CACHE_BYTES = 512 << 20
"""Blocks that a process keeps if `keep_blocks` was not called."""

FREE_BYTES = 16 << 20
"""Blocks are kept up to this size whatever their number: small ones are read
in less order than large ones, since a batch then draws from many."""


def most_cached(held: float, block_bytes: float, all_bytes: float, bound: int | None) -> float:
    """Return the bytes of decoded blocks that a process keeps for one way to read them, at most.

    Args:
        held: How many blocks are read from at a time, in this process.
        block_bytes: What a decoded block takes.
        all_bytes: What all blocks of the sources take together.
        bound: What the sources keep at most; None = as many as are needed.
    """
    each = min(all_bytes, max(held * block_bytes, FREE_BYTES))
    return each if bound is None else min(each, bound)


class BlockCache(Generic[Value]):
    """Keeps the blocks that were used last, up to its bounds, and always the last one.

    Args:
        max_bytes: The bound in bytes; one block larger than it is kept alone.

    Attributes:
        max_blocks: The bound in blocks, above `FREE_BYTES`; None = there is none.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_blocks: int | None = None
        self.bytes = 0
        self._blocks: OrderedDict[int, tuple[Value, int]] = OrderedDict()

    def get(self, block: int) -> Value | None:
        """Return a block and count it as used; None = it is not in the cache."""
        kept = self._blocks.get(block)
        if kept is None:
            return None
        self._blocks.move_to_end(block)
        return kept[0]

    def bound(self, max_blocks: int) -> None:
        """Set the bound in blocks, and release the oldest ones above it; 0 = all."""
        self.max_blocks = max_blocks
        self._shrink(max_blocks)
        if max_blocks == 0:
            self.clear()

    def make_room(self) -> None:
        """Release the oldest block if there is no room for another: before that is read."""
        if self.max_blocks is not None:
            self._shrink(self.max_blocks - 1)

    def put(self, block: int, value: Value, nbytes: int) -> None:
        """Keep a block that was just read, and release the oldest ones above the bounds."""
        self.make_room()
        while self._blocks and self.bytes + nbytes > self.max_bytes:
            self._let_go()
        self._blocks[block] = (value, nbytes)
        self.bytes += nbytes

    def _shrink(self, blocks: int) -> None:
        while len(self._blocks) > blocks and self._blocks and self.bytes > FREE_BYTES:
            self._let_go()

    def _let_go(self) -> None:
        _, (_, freed) = self._blocks.popitem(last=False)
        self.bytes -= freed

    def clear(self) -> None:
        """Drop everything."""
        self._blocks.clear()
        self.bytes = 0


class BlockRows(Protocol):
    """A block that was read: it makes items of those of its rows that are wanted."""

    def items(self, rows: Sequence[int], /) -> list[Any]:
        """Return the items at `rows`, each made anew."""
        ...


class EachRow(NamedTuple):
    """Rows whose items are made one by one.

    Attributes:
        item: Makes the item of a row.
    """

    item: Callable[[int], Any]

    def items(self, rows: Sequence[int]) -> list[Any]:
        """Return the items at `rows`."""
        return [self.item(row) for row in rows]


def gathered(
    indices: Sequence[int], starts: Sequence[int], rows_of: Callable[[int, int], BlockRows]
) -> list[Any]:
    """Return the items at `indices`, in that order, with each block asked for once.

    Args:
        indices: Which items; all of them exist.
        starts: The first item of each block, in index order.
        rows_of: `(block, an index in it) -> its rows`.
    """
    wanted: dict[int, list[int]] = {}
    for number, index in enumerate(indices):
        wanted.setdefault(bisect_right(starts, index) - 1, []).append(number)
    items: list[Any] = [None] * len(indices)
    for block in sorted(wanted):
        numbers, start = wanted[block], starts[block]
        rows = rows_of(block, indices[numbers[0]])
        found = rows.items([indices[number] - start for number in numbers])
        for number, item in zip(numbers, found, strict=True):
            items[number] = item
    return items
