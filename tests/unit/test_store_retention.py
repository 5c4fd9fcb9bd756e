"""Which snapshots stay."""

from __future__ import annotations

import itertools
import random

import pytest

from penstock.server.store.rules.retention import ARCHIVE, archive, keep


def test_few_snapshots_all_stay() -> None:
    """Up to 256 nothing is thinned, wherever they are."""
    offsets = [offset * offset for offset in range(ARCHIVE)]

    assert keep(offsets, [], []) == set(offsets)


@pytest.mark.parametrize("interval", [1, 3, 64, 1000])
def test_the_archive_is_bounded_and_spread(interval: int) -> None:
    """At most 256 of any number, from the first on, with gaps of at most 1/128 of the whole."""
    for count in (257, 1000, 4097, 50_000):
        offsets = list(range(0, count * interval, interval))

        kept = archive(offsets)

        assert len(kept) <= ARCHIVE
        assert kept[0] == 0
        gaps = [after - before for before, after in itertools.pairwise([*kept, offsets[-1]])]
        assert max(gaps) <= max(2 * offsets[-1] / ARCHIVE + interval, interval)


def test_thinning_often_loses_nothing_that_thinning_once_keeps() -> None:
    """Thinned on the way at any moments: the archive of everything is still there."""
    for seed in range(20):
        rng = random.Random(seed)
        offsets = sorted(rng.sample(range(100_000), 5_000))
        held: list[int] = []
        for offset in offsets:
            held.append(offset)
            if rng.random() < 0.01:
                held = archive(held)

        kept = archive(held)
        assert len(kept) <= ARCHIVE
        assert set(archive(offsets)) <= set(kept), f"seed {seed}"


def test_every_cursor_keeps_its_last_four() -> None:
    """For cursors at, between and beyond snapshots, also where others thin them out."""
    offsets = list(range(0, 40_000, 10))
    for cursor in (0, 9, 10, 25_005, 39_990, 10**9):
        kept = keep(offsets, [cursor], [])

        below = [offset for offset in offsets if offset <= cursor]
        assert set(below[-4:]) <= kept
        assert len(kept) <= ARCHIVE + 8


def test_every_checkpoint_keeps_the_last_below_it() -> None:
    """So restoring any checkpoint replays less than one snapshot interval."""
    offsets = list(range(0, 40_000, 10))
    checkpoints = [3, 777, 12_340, 12_349, 39_999]

    kept = keep(offsets, [], checkpoints)

    assert {0, 770, 12_340, 39_990} <= kept


def test_the_newest_four_stay() -> None:
    """Readers without a group stand near the newest."""
    offsets = list(range(10_000))

    assert {9_996, 9_997, 9_998, 9_999} <= keep(offsets, [], [])


def test_only_what_is_there_is_kept_and_order_is_nothing() -> None:
    """The result is a subset, the same for any order and with repeats."""
    rng = random.Random(5)
    offsets = rng.sample(range(50_000), 2_000)

    kept = keep(offsets, [40_000], [7])

    assert kept <= set(offsets)
    assert keep(sorted(offsets) + offsets[:50], [40_000], [7]) == kept
    assert keep(kept, [40_000], [7]) == kept


def test_no_snapshots_no_keeping() -> None:
    """An empty lane is fine."""
    assert keep([], [5], [5]) == set()
