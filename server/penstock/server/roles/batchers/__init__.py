"""The batchers: how samples become batches of rows.

`SimpleBatcher` counts samples, the others pack: `BestFitPackingBatcher` fills rows of tokens from a
pool, `SequentialPackingBatcher` keeps nearly the order of the draws, `PoolPackingBatcher` makes
padded batches of like lengths. Your own is a subclass of `SampleBatcher` with one method, `add`.
"""

from penstock.server.roles.base import SampleBatcher
from penstock.server.roles.batchers.best_fit import BestFitPackingBatcher
from penstock.server.roles.batchers.pool import PoolPackingBatcher
from penstock.server.roles.batchers.sequential import SequentialPackingBatcher
from penstock.server.roles.batchers.simple import SimpleBatcher

BUILTIN_BATCHERS: dict[str, type[SampleBatcher]] = {
    batcher.type_name: batcher
    for batcher in (
        SimpleBatcher,
        SequentialPackingBatcher,
        PoolPackingBatcher,
        BestFitPackingBatcher,
    )
}
"""The built-in names that `type:` of a batcher in a job file knows."""

__all__ = [
    "BUILTIN_BATCHERS",
    "BestFitPackingBatcher",
    "PoolPackingBatcher",
    "SequentialPackingBatcher",
    "SimpleBatcher",
]
