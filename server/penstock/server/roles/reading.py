"""How a source is stored, and how the draws of a job read it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Blocks:
    """The storage blocks of a source: what is read and decoded as one, such as a row group.

    Attributes:
        items: How many items each block holds, in index order; blocks of none are allowed.
        nbytes: About how many bytes each takes in memory when it is decoded. From content alone,
            never measured: default windows are chosen by it, and they are part of the log id.
            None = not known.
        stored: How many bytes of each lie in storage, of the columns that are read; None = not
            known.
        items_are_apart: Whether an item can be read without the rest of its block, so that
            `shuffle: full` is no waste.
        whole: How many storage blocks they are parts or copies of that must be decoded whole; None
            = each is one of its own.

    Glossary:
        block: Consecutive items that a source reads and decodes together: a row group, some
            megabytes of lines.
    """

    items: Sequence[int]
    nbytes: Sequence[int] | None = None
    stored: Sequence[int] | None = None
    items_are_apart: bool = False
    whole: int | None = None

    @property
    def decoded(self) -> int:
        """Return how many storage blocks must be decoded whole for an item in them."""
        if self.whole is not None:
            return self.whole
        return 0 if self.items_are_apart else sum(items > 0 for items in self.items)

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self.items)


MOST_AMPLIFICATION = 1.15
"""What is read in an epoch by default, as a multiple of what is drawn, at most: the promise of
docs/operate.md, with its exceptions."""


class Reading(NamedTuple):
    """How the draws of a job read storage blocks: it decides which worker has which lanes.

    Attributes:
        sources: The names of the sources that have blocks; their blocks are counted together.
        groups: Lane l of the set of roles draws from the blocks of reading group `l mod groups`;
            lanes of a group belong to one worker, so that no other decodes their blocks. None = all
            lanes draw from the same blocks, and any worker may have any lane.
        blocks: How many decoded blocks a group draws from at a time, or all lanes if there are no
            groups; None = not known.
        all_blocks: How many blocks the sources have.
        block_bytes: About how many bytes a decoded block takes; 0 = not known.
        stored_bytes: Bytes of a block in storage, in the mean; 0 = not known.
        item_bytes: Bytes of an item in storage, in the mean; 0 = not known.
        lanes: The lanes of the set that draw from these blocks, where others do not; None = all.
            Then `groups` deals their numbers among these lanes.
        share: About which part of the draws of these lanes is read so.
        reads: About how often an epoch reads a block where lanes are dealt to groups, beside what
            the borders between workers add.
    """

    sources: tuple[str, ...]
    groups: int | None
    blocks: int | None
    all_blocks: int
    block_bytes: float
    stored_bytes: float
    item_bytes: float
    lanes: tuple[int, ...] | None = None
    share: float = 1.0
    reads: float = 1.0

    def group(self, lane: int) -> int | None:
        """Return the reading group of a lane of the set; None = it is in none of these."""
        if self.groups is None or not self.draws(lane):
            return None
        return (lane if self.lanes is None else bisect_left(self.lanes, lane)) % self.groups

    def draws(self, lane: int) -> bool:
        """Tell whether a lane draws from these blocks."""
        if self.lanes is None:
            return True
        place = bisect_left(self.lanes, lane)
        return place < len(self.lanes) and self.lanes[place] == lane

    @property
    def held(self) -> int:
        """Return how many decoded blocks all lanes together draw from at a time."""
        if self.blocks is None:
            return self.all_blocks
        return min(self.all_blocks, (self.groups or 1) * self.blocks)

    def amplification(self, workers: int) -> float | None:
        """Return how often an epoch reads a block in the mean; None = it depends on the items.

        Each border between two workers falls into a block, which both of them read. Where lanes are
        not dealt to groups every worker reads all blocks: each epoch anew, or once where it keeps
        them all.

        Args:
            workers: The workers of a node.
        """
        if self.blocks is None:
            return None
        if self.groups is None:
            return float(workers)
        taking = min(workers, self.groups)
        found = self.reads + (taking - 1) / self.all_blocks
        # Where a worker keeps all blocks for its groups, it reads each once.
        keeps_all = -(-self.groups // taking) * self.blocks >= self.all_blocks
        return min(found, float(taking)) if keeps_all else found

    @property
    def is_read_by_all(self) -> bool:
        """Tell whether all workers read all blocks in each epoch."""
        return self.groups is None and self.blocks is not None and self.blocks < self.all_blocks
