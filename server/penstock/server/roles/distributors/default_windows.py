"""Default reading groups and windows: what suits a source's blocks, from their number and bytes.

Everything here is part of the order, so it knows the content and the lanes, and never a machine. A
changed rule raises `MapDistributor.version`.
"""

from __future__ import annotations

import math

SMALL_BYTES = 128 << 20
"""A source that takes no more than this when it is decoded is shuffled as a whole: every worker
holds all of it, 2 GiB for 16 workers, and reads it once per run."""

ROOMY_BYTES, MOST_BYTES = 2 << 30, 8 << 30
"""What all groups of a job may hold: the first where the blocks allow it, up to the second where
there would else be fewer than `ENOUGH_GROUPS`."""

ENOUGH_GROUPS, MANY_GROUPS = 16, 64
"""Workers of a usual node, and of a large one: with fewer groups than workers some have no work."""

LEAST_WINDOW, ROOMY_WINDOW, MOST_WINDOW = 2, 8, 16
"""Blocks that a lane's draws are mixed from: at least, with many groups, and at most."""

LAG_DRAWS = 64
"""How many draws lanes of a group may be apart: what a planner looks ahead, and its pool holds."""

UNKNOWN_BYTES = 8 << 20
"""The assumed size of a block whose size is not known."""


def divisors(lanes: int) -> list[int]:
    """Return the numbers that divide the lanes, in rising order."""
    low = [n for n in range(1, int(lanes**0.5) + 1) if lanes % n == 0]
    return sorted({*low, *(lanes // n for n in low)})


def is_small(blocks: int, block_bytes: float) -> bool:
    """Tell whether a source is so small that it is shuffled as a whole."""
    return blocks <= 1 or blocks * block_bytes <= SMALL_BYTES


def default_groups(lanes: int, blocks: int, block_bytes: float, window: int | None) -> int:
    """Return into how many groups the lanes are dealt.

    As many as `ROOMY_BYTES` allow with windows of eight blocks, at most 64, and with two blocks
    each; if these are fewer than 16, up to 16 with windows of two blocks, if `MOST_BYTES` hold
    them. One for a small source.

    Args:
        lanes: The job's lanes: groups divide them.
        blocks: How many blocks the source has, without empty ones.
        block_bytes: Bytes of a decoded block, in the mean.
        window: The window that the job asks for; None = the default one.
    """

    def held(groups: int, blocks_mixed: int) -> float:
        return groups * ((window or blocks_mixed) + 1) * block_bytes

    if blocks <= 1 or (is_small(blocks, block_bytes) and (window is None or window >= blocks)):
        return 1
    all_groups = divisors(lanes)
    limit = min(MANY_GROUPS, max(ENOUGH_GROUPS, blocks // 2))
    roomy = [n for n in all_groups if n <= limit and held(n, ROOMY_WINDOW) <= ROOMY_BYTES]
    groups = max(roomy, default=1)
    if groups >= ENOUGH_GROUPS:
        return groups
    more = [n for n in all_groups if n > groups and held(n, LEAST_WINDOW) <= MOST_BYTES]
    enough = [n for n in more if n >= ENOUGH_GROUPS]
    return min(enough) if enough else max(more, default=groups)


def default_window(groups: int, blocks: int, block_bytes: float) -> int:
    """Return how many blocks a window has: as many as `ROOMY_BYTES` allow, 2 to 16.

    All of them if the source is small and read by one group.
    """
    if groups == 1 and is_small(blocks, block_bytes):
        return max(1, blocks)
    room = int(ROOMY_BYTES / (groups * block_bytes)) - 1
    return max(LEAST_WINDOW, min(MOST_WINDOW, room))


def blocks_needed(window: int, lanes_of_group: int, block_items: float) -> int:
    """Return how many decoded blocks a group needs at a time.

    One more than its window, where two of them meet; more where blocks are so small that lanes of
    the group are several blocks apart.
    """
    return window + max(1, math.ceil(LAG_DRAWS * lanes_of_group / block_items))
