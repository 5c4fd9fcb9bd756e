"""Which item a lane draws next.

| `type:` | Class | Order |
|---|---|---|
| `map` | `MapDistributor` | every item once per epoch; shuffled by `full`, `blocks` or `none` |
| `mixture` | `MixtureDistributor` | parts by their weights, in items or tokens, in every lane |
| `rank_partitioned` | `RankPartitionedDistributor` | parts by weights, each in lanes of its own |
| `shards` | `ShardsDistributor` | every row of a stream once per epoch; shards dealt to lanes |

A distributor of your own is a subclass of `DataDistributor` with `draw(lane, lanes, k)`, a pure
function: it knows no rank, worker or node, and its whole state is `k`. If draw k cannot be computed
from its number, it has `open(lane, lanes)`, which returns `LaneDraws` with a state of their own.
"""

from penstock.server.roles.base import DataDistributor
from penstock.server.roles.distributors.map import SHUFFLES, MapDistributor
from penstock.server.roles.distributors.mixture import MixtureDistributor
from penstock.server.roles.distributors.rank_partitioned import RankPartitionedDistributor
from penstock.server.roles.distributors.shards import ShardsDistributor

BUILTIN_DISTRIBUTORS: dict[str, type[DataDistributor]] = {
    "map": MapDistributor,
    "mixture": MixtureDistributor,
    "rank_partitioned": RankPartitionedDistributor,
    "shards": ShardsDistributor,
}
"""The built-in names that `type:` in a job file knows."""

__all__ = [
    "BUILTIN_DISTRIBUTORS",
    "SHUFFLES",
    "MapDistributor",
    "MixtureDistributor",
    "RankPartitionedDistributor",
    "ShardsDistributor",
]
