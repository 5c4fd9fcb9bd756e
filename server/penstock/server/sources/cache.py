"""Decoded blocks, least recently used first out, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BlockCache(Generic[Value]):
    """Keeps the blocks that were used last, up to `max_bytes`, and always the last one.

    Args:
        max_bytes: The bound; one block larger than it is kept alone.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._blocks: OrderedDict[int, tuple[Value, int]] = OrderedDict()

    def get(self, block: int) -> Value | None:
        """Return a block and count it as used; None = it is not here."""
        kept = self._blocks.get(block)
        if kept is None:
            return None
        self._blocks.move_to_end(block)
        return kept[0]

    def put(self, block: int, value: Value, nbytes: int) -> None:
        """Keep a block that was just read, and let go of the oldest ones above the bound."""
        while self._blocks and self.bytes + nbytes > self.max_bytes:
            _, (_, freed) = self._blocks.popitem(last=False)
            self.bytes -= freed
        self._blocks[block] = (value, nbytes)
        self.bytes += nbytes

    def clear(self) -> None:
        """Let go of everything."""
        self._blocks.clear()
        self.bytes = 0


__all__ = ["BlockCache"]
