"""What `penstockd check` says of lanes that have few items to draw from."""

from __future__ import annotations

from penstock.server.job.role_set import RoleSet
from penstock.server.roles.batcher import SampleBatcher

POOLS_PER_LANE = 4
"""In a lane with fewer items than this many pools, epochs mix in its pool."""


def _pool_parameter(batcher: SampleBatcher) -> str:
    """Return which parameter of a batcher makes its pool smaller."""
    names = ("pool_size", "open_rows", "sort_over" if getattr(batcher, "sort", False) else "window")
    return next((name for name in names if name in vars(batcher)), "pool")


def warnings_of_lanes(roles: RoleSet) -> list[str]:
    """Return what is to be said of the number of items for the lanes that draw from them."""
    drawn = roles.distributor.epoch_draws(1)
    if roles.items is None or drawn is None or roles.planned is not None:
        return []  # the length of a stream is unknown, and planned lanes have no pools
    what = f"{drawn:,} {'items' if drawn == roles.items else 'draws of an epoch'}"
    pool, lanes, of = roles.batcher_facts.pool, roles.lanes, ""
    if roles.name:
        of = f" of {roles.name!r}"
    # Of a single epoch nothing mixes: a small validation set may have as many lanes as it likes.
    if pool is not None and roles.epochs != 1 and drawn / lanes < POOLS_PER_LANE * pool:
        fewer = max(1, drawn // (POOLS_PER_LANE * pool))
        return [
            f"{what} over {lanes} lanes{of} are {drawn / lanes:.1f} per lane, fewer than "
            f"{POOLS_PER_LANE} pools of {pool}: epochs mix in a pool; lanes: {fewer} or a smaller "
            f"{_pool_parameter(roles.batcher)} suits this data"
        ]
    if drawn < lanes:
        return [
            f"{what} over {lanes} lanes{of}: some lanes have none in an epoch; "
            f"lanes: {max(1, drawn // 4)} suits this data"
        ]
    return []
