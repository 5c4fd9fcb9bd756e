"""Jobs of several sets of roles, on tiny data; a node serves them as `joint.py:jobs`."""

from __future__ import annotations

from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.roles import (
    BestFitPackingBatcher,
    MapDistributor,
    PackedCollator,
    PaddedCollator,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from resume.plans import BlockedSource, ChoosyProcessor, SizedProcessor, raw_items


def packed_set(ratio: float = 3, **more: str) -> RoleSet:
    """Return a set that reads storage blocks by groups, filters, splits and packs."""
    return RoleSet(
        BlockedSource(raw_items()),
        MapDistributor(shuffle="blocks", window_blocks=1),
        ChoosyProcessor(),
        BestFitPackingBatcher(32, pool_size=6, rows=2, overlong="split"),
        PackedCollator(ids_dtype="int64"),
        ratio=ratio,
        **more,
    )


def padded_set(ratio: float = 2, **more: str) -> RoleSet:
    """Return a set that draws from two sources, and whose plans arithmetic gives."""
    items = raw_items()
    return RoleSet(
        {"short": ItemsSource(items[:9]), "long": ItemsSource(items[9:])},
        MapDistributor(shuffle="full"),
        SizedProcessor(),
        SimpleBatcher(3),
        PaddedCollator(),
        ratio=ratio,
        **more,
    )


def endless() -> JointJob:
    """Return an endless job: three lanes of the one set, two of the other."""
    return JointJob(
        {"packed": packed_set(), "padded": padded_set()},
        choice="lane",
        lanes=5,
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
        ratio=3,
    )
    return JointJob(
        {"known": padded_set(), "found": choosy},
        choice="lane",
        lanes=5,
        seed=5,
        epochs=2,
        on_item_error="quarantine",
    )


def stepwise(choice: str = "step", lanes: int = 4) -> JointJob:
    """Return an endless job of which each step, of six batches, has one of two sets."""
    return JointJob(
        {"packed": packed_set(3), "padded": padded_set(2)},
        choice=choice,
        lanes=lanes,
        seed=5,
        batches_per_step=6,
        on_item_error="quarantine",
        snapshot_every=4,
    )


def ending(exhausted: str = "repeat") -> JointJob:
    """Return a job that ends after two epochs of a set; the other one is repeated, or ends it."""
    return JointJob(
        {"packed": packed_set(3), "padded": padded_set(2, exhausted=exhausted)},
        lanes=4,
        seed=5,
        epochs=2,
        batches_per_step=6,
        on_item_error="quarantine",
        snapshot_every=4,
    )


jobs = {"endless": endless, "counted": counted, "stepwise": stepwise, "ending": ending}

__all__ = ["counted", "ending", "endless", "jobs", "packed_set", "padded_set", "stepwise"]
