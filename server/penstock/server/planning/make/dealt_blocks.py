"""The blocks of an index that are still to be made, and which process makes which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.server.planning.index.block import block_items


class BlockTask(NamedTuple):
    """A block of positions.

    Attributes:
        source: The name of the source.
        place: The number of the source in the job.
        number: The number of the block in the source.
        start: Its first position.
        stop: The one after the last.
    """

    source: str
    place: int
    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Return the name of the file that it is kept in."""
        return f"{self.place}-{self.number:08d}"


def all_blocks(positions: Mapping[str, int]) -> Iterator[BlockTask]:
    """Yield the blocks of an index in their order.

    Args:
        positions: How many positions each source has, by name, in the job's order.
    """
    for place, (source, items) in enumerate(positions.items()):
        step = block_items(items)
        for number, start in enumerate(range(0, items, step)):
            yield BlockTask(source, place, number, start, min(start + step, items))


class Stretches:
    """Deals blocks so that each process gets neighbours: it decodes what they share just once.

    Each begins at a part of its own. Whoever has finished its part takes the second half of the
    longest that is left.

    Args:
        blocks: The blocks, in order.
        processes: How many processes there are.
    """

    def __init__(self, blocks: Sequence[BlockTask], processes: int) -> None:
        self._blocks, count = blocks, len(blocks)
        self._parts = [
            [count * number // processes, count * (number + 1) // processes]
            for number in range(processes)
        ]

    def take(self, process: int) -> BlockTask | None:
        """Return the next block of a process; None = there is none left."""
        mine = self._parts[process]
        if mine[0] == mine[1]:
            longest = max(self._parts, key=lambda part: part[1] - part[0])
            # Half of one block, rounded up, is that block.
            middle = longest[1] - (longest[1] - longest[0] + 1) // 2
            mine[:], longest[1] = [middle, longest[1]], middle
        if mine[0] == mine[1]:
            return None
        mine[0] += 1
        return self._blocks[mine[0] - 1]
