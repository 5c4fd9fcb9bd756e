"""Jobs of several sets of roles, on tiny data; a node serves them as `joint.py:jobs`."""

from __future__ import annotations

from penstock.server.job import JointJob
from penstock.server.role_set import RoleSet
from penstock.server.roles import (
    BestFitPackingBatcher,
    MapDistributor,
    PackedCollator,
    PaddedCollator,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from resume.plans import BlockedSource, ChoosyProcessor, SizedProcessor, raw_items


def packed_set(lanes: int = 3) -> RoleSet:
    """Return a set that reads storage blocks by groups, filters, splits and packs."""
    return RoleSet(
        BlockedSource(raw_items()),
        MapDistributor(shuffle="blocks", window_blocks=1),
        ChoosyProcessor(),
        BestFitPackingBatcher(32, pool_size=6, rows=2, overlong="split"),
        PackedCollator(ids_dtype="int64"),
        lanes=lanes,
    )


def padded_set(lanes: int = 2) -> RoleSet:
    """Return a set that draws from two sources, and whose plans arithmetic gives."""
    items = raw_items()
    return RoleSet(
        {"short": ItemsSource(items[:9]), "long": ItemsSource(items[9:])},
        MapDistributor(shuffle="full"),
        SizedProcessor(),
        SimpleBatcher(3),
        PaddedCollator(),
        lanes=lanes,
    )


def endless() -> JointJob:
    """Return an endless job: three lanes of the one set, two of the other."""
    return JointJob(
        {"packed": packed_set(), "padded": padded_set()},
        seed=5,
        on_item_error="quarantine",
        snapshot_every=4,
    )


def counted() -> JointJob:
    """Return a finite job: the ends of some lanes are arithmetic, those of the others are found."""
    choosy = RoleSet(
        ItemsSource(raw_items()),
        None,
        ChoosyProcessor(),
        SimpleBatcher(3),
        PaddedCollator(),
        lanes=3,
    )
    return JointJob(
        {"known": padded_set(), "found": choosy},
        seed=5,
        epochs=2,
        on_item_error="quarantine",
    )


jobs = {"endless": endless, "counted": counted}

__all__ = ["counted", "endless", "jobs", "packed_set", "padded_set"]
