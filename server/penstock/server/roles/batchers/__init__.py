"""The batchers: how samples become batches of rows.

`SimpleBatcher` counts samples, `PoolPackingBatcher` makes padded batches of like lengths, and the
others fill rows of tokens: `docs/batchers.md` says which suits what. Your own is a subclass of
`SampleBatcher` with one method, `add`.

Glossary:
    pool, window, open row: What a batcher holds until it fits: a pool of samples from which each
        row is chosen, a window of samples that are packed at once, or rows that still have room.
"""

from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers.best_fit_batcher import BestFitPackingBatcher
from penstock.server.roles.batchers.bounded import (
    BalancedPackingBatcher,
    FirstFitPackingBatcher,
    NextFitPackingBatcher,
    OpenBestFitPackingBatcher,
)
from penstock.server.roles.batchers.concat import ConcatPackingBatcher
from penstock.server.roles.batchers.pool_batcher import PoolPackingBatcher
from penstock.server.roles.batchers.sequential_batcher import SequentialPackingBatcher
from penstock.server.roles.batchers.simple import SimpleBatcher
from penstock.server.roles.batchers.window_batchers import (
    BestFitDecreasingPackingBatcher,
    KnapsackPackingBatcher,
    WindowPackingBatcher,
)

BUILTIN_BATCHERS: dict[str, type[SampleBatcher]] = {
    batcher.type_name: batcher
    for batcher in (
        SimpleBatcher,
        SequentialPackingBatcher,
        PoolPackingBatcher,
        BestFitPackingBatcher,
        FirstFitPackingBatcher,
        NextFitPackingBatcher,
        OpenBestFitPackingBatcher,
        BalancedPackingBatcher,
        KnapsackPackingBatcher,
        BestFitDecreasingPackingBatcher,
        WindowPackingBatcher,
        ConcatPackingBatcher,
    )
}
"""The built-in names that `type:` of a batcher in a job file knows."""

__all__ = [
    "BUILTIN_BATCHERS",
    "BalancedPackingBatcher",
    "BestFitDecreasingPackingBatcher",
    "BestFitPackingBatcher",
    "ConcatPackingBatcher",
    "FirstFitPackingBatcher",
    "KnapsackPackingBatcher",
    "NextFitPackingBatcher",
    "OpenBestFitPackingBatcher",
    "PoolPackingBatcher",
    "SequentialPackingBatcher",
    "SimpleBatcher",
    "WindowPackingBatcher",
]
