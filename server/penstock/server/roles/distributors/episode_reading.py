"""How lanes that draw from pools of episodes read storage blocks, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock.server.roles.distributors.default_windows import (
    ROOMY_BYTES,
    SMALL_BYTES,
    UNKNOWN_BYTES,
    blocks_needed,
)
from penstock.server.roles.distributors.joined_sources import blocks_of
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.reading import Blocks, Reading
from penstock.server.roles.source import IndexedSource

MUCH_READ = 2.0
"""Reads of a block in an epoch from which a job is told what to do about it."""


class PoolReading(NamedTuple):
    """How pools of episodes read blocks.

    Attributes:
        reading: What a node needs to know of it.
        needed: How many decoded blocks a lane draws from at a time.
        episodes_of_block: How many episodes a block holds rows of, in the mean.
    """

    reading: Reading
    needed: int
    episodes_of_block: float

    @classmethod
    def of(
        cls,
        sources: Mapping[str, IndexedSource],
        tables: Mapping[str, EpisodeTable],
        lanes: int,
        pool: int | None,
        frames: int,
    ) -> PoolReading | None:
        """Return how some sources are read; None = none of them has blocks.

        A lane keeps the blocks of the episodes in its pool, all lanes together at most
        `ROOMY_BYTES` of them. What is above that is read again.

        Args:
            sources: The sources.
            tables: Their episodes.
            lanes: How many lanes draw from them.
            pool: How many episodes each lane draws from at a time; None = frames are drawn in
                order.
            frames: How many draws an epoch has.
        """
        stored = {name: blocks_of(name, source) for name, source in sources.items()}
        blocked = {name: blocks for name, blocks in stored.items() if blocks is not None}
        if not blocked:
            return None
        held = sum(items > 0 for blocks in blocked.values() for items in blocks.items)
        episodes = sum(len(tables[name]) for name in blocked)
        touched = sum(_touched(blocks, tables[name]) for name, blocks in blocked.items())
        decoded = [_total(blocks.nbytes) for blocks in blocked.values()]
        known = [nbytes for nbytes in decoded if nbytes is not None]
        is_known = len(known) == len(decoded)
        block_bytes = max(1.0, sum(known) / held) if is_known else float(UNKNOWN_BYTES)
        items = sum(int(tables[name].starts[-1]) for name in blocked)
        means = (
            held,
            block_bytes if is_known else 0.0,
            sum(_total(blocks.stored) or 0 for blocks in blocked.values()) / held,
            sum(_total(blocks.stored) or 0 for blocks in blocked.values()) / items,
        )
        names = tuple(blocked)
        if held * block_bytes <= SMALL_BYTES:
            return cls(Reading(names, None, held, *means), held, touched / held)
        if pool is None:
            needed = min(held, blocks_needed(1, lanes, items / held))
            return cls(Reading(names, None, needed, *means), needed, touched / held)
        slots = min(pool, -(-episodes // lanes) + 1)
        needed = min(held, math.ceil(slots * touched / episodes) + 1)
        kept = max(1, min(needed, int(ROOMY_BYTES / (lanes * block_bytes))))
        # Each episode's stay in a pool reads what it touches; then what is not kept, at each draw.
        reads = touched / held + (1 - kept / needed) * frames / held
        return cls(Reading(names, lanes, kept, *means, reads=reads), needed, touched / held)

    def remarks(self) -> list[str]:
        """Return sentences about what reading costs that it need not."""
        reading, found = self.reading, []
        name = ", ".join(map(repr, reading.sources))
        if reading.blocks is not None and reading.blocks < self.needed:
            found.append(
                f"the pools of all lanes draw from {self.needed * (reading.groups or 1):,} storage "
                f"blocks of source {name} at a time, about "
                f"{self.needed * (reading.groups or 1) * reading.block_bytes / 2**30:.1f} GiB "
                f"decoded, and {ROOMY_BYTES / 2**30:.0f} GiB of them are kept, so a block is read "
                f"about {reading.reads:.1f} times in an epoch: give a smaller pool or fewer lanes"
            )
        elif reading.groups is not None and reading.reads > MUCH_READ:
            found.append(
                f"a storage block of source {name} holds rows of {self.episodes_of_block:.1f} "
                f"episodes, and is read up to {reading.reads:.1f} times in an epoch, for an "
                "episode each: write the data with one row group per episode"
            )
        return found


def _touched(blocks: Blocks, table: EpisodeTable) -> int:
    """Return how many blocks each episode has rows in, over all of them."""
    ends = np.cumsum(np.asarray(blocks.items, np.int64))
    first = np.searchsorted(ends, table.starts[:-1], side="right")
    last = np.searchsorted(ends, table.starts[1:] - 1, side="right")
    return int((last - first + 1).sum())


def _total(each: object) -> int | None:
    return None if each is None else int(np.sum(each))  # type: ignore[call-overload]
