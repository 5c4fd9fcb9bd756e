"""Which item a lane draws next.

| `type:` | Class | Order |
|---|---|---|
| `map` | `MapDistributor` | every item once per epoch; shuffled by `full`, `blocks` or `none` |
| `mixture` | `MixtureDistributor` | parts by their weights, in items or tokens, in every lane |
| `rank_partitioned` | `RankPartitionedDistributor` | parts by weights, each in lanes of its own |
| `iterable` | `IterableDistributor` | every row of a stream once per epoch, by shards |
| `episodes` | `EpisodesDistributor` | every frame once per epoch, from a pool of whole episodes |

A distributor of your own is a subclass of `DataDistributor` with `draw(lane, lanes, k)`, a pure
function: it knows no rank, worker or node, and its whole state is `k`. If draw k cannot be computed
from its number, it has `open(lane, lanes)`, which returns `LaneDraws` with a state of their own.
"""

from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors.episodes import EpisodesDistributor
from penstock.server.roles.distributors.iterable import IterableDistributor
from penstock.server.roles.distributors.map import MapDistributor
from penstock.server.roles.distributors.mixture import MixtureDistributor
from penstock.server.roles.distributors.rank_partitioned import RankPartitionedDistributor
from penstock.server.roles.distributors.shuffle import SHUFFLES

BUILTIN_DISTRIBUTORS: dict[str, type[DataDistributor]] = {
    cls.type_name: cls
    for cls in (
        EpisodesDistributor,
        IterableDistributor,
        MapDistributor,
        MixtureDistributor,
        RankPartitionedDistributor,
    )
}
"""The built-in names that `type:` in a job file knows."""

WITH_EPOCHS = (EpisodesDistributor, MapDistributor)
"""Those that know how many draws an epoch has, which may be other than there are items."""

__all__ = [
    "BUILTIN_DISTRIBUTORS",
    "SHUFFLES",
    "WITH_EPOCHS",
    "EpisodesDistributor",
    "IterableDistributor",
    "MapDistributor",
    "MixtureDistributor",
    "RankPartitionedDistributor",
]
