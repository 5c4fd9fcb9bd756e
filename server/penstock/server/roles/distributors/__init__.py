"""Which item a lane draws next.

| `type:` | Class | Order |
|---|---|---|
| `map` | `MapDistributor` | every item once per epoch; shuffled by `full`, `blocks` or `none` |

A distributor of your own is a subclass of `DataDistributor` with `draw(lane, lanes, k)`, a pure
function: it is told no rank, worker or node, and its whole state is `k`.
"""

from penstock.server.roles.base import DataDistributor
from penstock.server.roles.distributors.map import SHUFFLES, MapDistributor

BUILTIN_DISTRIBUTORS: dict[str, type[DataDistributor]] = {"map": MapDistributor}
"""The built-in names that `type:` in a job file knows."""

__all__ = ["BUILTIN_DISTRIBUTORS", "SHUFFLES", "MapDistributor"]
