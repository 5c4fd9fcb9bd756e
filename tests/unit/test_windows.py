"""Default reading groups and windows: by lanes, and by the number and the size of blocks."""

from __future__ import annotations

import pytest

from penstock.server.roles.distributors.default_windows import (
    MOST_BYTES,
    ROOMY_BYTES,
    blocks_needed,
    default_groups,
    default_window,
    divisors,
)

MIB = 1 << 20


def settled(lanes: int, blocks: int, mib: float) -> tuple[int, int]:
    groups = default_groups(lanes, blocks, mib * MIB, None)
    return groups, default_window(groups, blocks, mib * MIB)


@pytest.mark.parametrize(
    ("lanes", "blocks", "mib", "groups", "window"),
    [
        (48, 5000, 0.25, 48, 16),
        (48, 5000, 2, 48, 16),
        (48, 5000, 4, 48, 9),
        (48, 5000, 8, 24, 9),
        (48, 5000, 14, 16, 8),
        (48, 5000, 30, 16, 3),
        (48, 5000, 128, 16, 2),
        (48, 5000, 400, 6, 2),
        (48, 5000, 1000, 2, 2),
        (48, 5000, 9000, 1, 2),
        (1024, 50_000, 1, 64, 16),
        (7, 5000, 4, 7, 16),
        (67, 5000, 4, 67, 6),
        (1, 5000, 4, 1, 16),
        # Two blocks for each group, where there are enough; small sources as a whole.
        (48, 40, 4, 16, 16),
        (48, 30, 4, 1, 30),
        (48, 1, 4000, 1, 1),
    ],
)
def test_the_defaults_of_a_corpus(
    lanes: int, blocks: int, mib: float, groups: int, window: int
) -> None:
    """These are part of the log id: where one changes, the distributor's version must rise."""
    assert settled(lanes, blocks, mib) == (groups, window)


@pytest.mark.parametrize("lanes", [1, 7, 12, 48, 64, 67, 96, 1000])
def test_groups_divide_the_lanes_and_windows_stay_within_memory(lanes: int) -> None:
    """For any size of blocks: at most 2 GiB, or 8 for windows of two blocks; 2 to 16 blocks."""
    for mib in (0.01, 0.5, 1, 3, 7, 20, 50, 150, 600, 2000):
        groups, window = settled(lanes, 20_000, mib)
        held = groups * (window + 1) * mib * MIB
        assert groups in divisors(lanes)
        assert 2 <= window <= 16
        assert held <= (MOST_BYTES if window == 2 else ROOMY_BYTES)


def test_a_group_needs_more_blocks_where_they_are_small() -> None:
    """One where two windows meet; with few rows in a block, as many as lanes may be apart."""
    assert blocks_needed(4, 3, 1000) == 5
    assert blocks_needed(4, 3, 192) == 5
    assert blocks_needed(4, 3, 100) == 6
    assert blocks_needed(4, 1, 1) == 68
