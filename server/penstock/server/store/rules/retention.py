"""Which snapshots of one lane are worth keeping: a pure function of offsets.

Snapshots only save time, so dropping one costs time, never data. Three kinds of readers come
back: those that run (near a cursor), those that go to a named step (a checkpoint), and those that
look at any past step (the archive).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

ARCHIVE = 256
"""The most archived snapshots per lane."""

NEAR_CURSOR = 4
"""This many at or below each cursor, and this many newest: ranks are at different steps."""


def keep(
    offsets: Iterable[int],
    cursor_offsets: Iterable[int],
    checkpoint_offsets: Iterable[int],
) -> set[int]:
    """Return the offsets of the snapshots of one lane that stay.

    They are the last 4 at or below each cursor, the last at or below each checkpoint, the newest 4,
    and the archive (see `archive`).

    Args:
        offsets: Where the lane has snapshots now, in any order.
        cursor_offsets: The lane's offsets at the groups' cursors.
        checkpoint_offsets: The lane's offsets at their checkpoints.
    """
    ordered = sorted(set(offsets))
    kept = set(archive(ordered)) | set(ordered[-NEAR_CURSOR:])
    for cursor in cursor_offsets:
        below = bisect_right(ordered, cursor)
        kept.update(ordered[max(0, below - NEAR_CURSOR) : below])
    for checkpoint in checkpoint_offsets:
        below = bisect_right(ordered, checkpoint)
        kept.update(ordered[max(0, below - 1) : below])
    return kept


def archive(ordered: list[int]) -> list[int]:
    """Return at most 256 offsets that are spread over all of them.

    The spacing is the smallest power of two for which the offsets fall into at most 256 cells
    `[i * spacing, (i + 1) * spacing)`; the first of each cell stays. The first of a cell is the
    first of one of its halves, so thinning again and again loses nothing that thinning once would
    keep: gaps stay below 1/128 of the lane, plus the interval between snapshots.

    Args:
        ordered: Offsets, ascending, without repeats.
    """
    spacing = 1
    while True:
        firsts: list[int] = []
        cell = -1
        for offset in ordered:
            if offset // spacing != cell:
                cell = offset // spacing
                firsts.append(offset)
        if len(firsts) <= ARCHIVE:
            return firsts
        spacing *= 2
