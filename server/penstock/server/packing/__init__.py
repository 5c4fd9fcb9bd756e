"""Pure packing functions on lengths.

Each is called `(lengths, capacity, ...)` and gives packs, lists of indices into `lengths`.

| Function | Order of the samples | Where a sample goes | Fits when |
|---|---|---|---|
| `next_fit` | as given | the newest pack | sum `<=` capacity |
| `first_fit` | as given | the oldest pack with room | sum `<=` capacity |
| `best_fit_decreasing` | longest first | the tightest pack with room | sum `<=` capacity |
| `knapsack` | longest first | the emptiest pack | sum `<=` capacity |
| `window` | as given, or longest first | the pack that a window fills | sum `<=` capacity |
| `sequential` | as given, a few overtaken | the pack being filled | sum `<` capacity |
| `pool` | oldest of a pool, then cheapest | the batch being filled | longest * count `<=` it |

What is longer than the capacity gets a pack of its own, but `knapsack` and `sequential` leave it
out, as do the systems that they come from. Equal choices always fall to the lower index, so the
same lengths give the same packs on every machine. `count_best_fit_decreasing` and `count_knapsack`
say how many packs there will be from a histogram of the lengths.

These functions plan a whole list at once and suit offline work and experiments. What packs an
endless stream lies in `penstock.server.roles.batchers`.
"""

from penstock.server.packing.best_fit import best_fit_decreasing, count_best_fit_decreasing
from penstock.server.packing.first_fit import first_fit
from penstock.server.packing.knapsack import count_knapsack, knapsack
from penstock.server.packing.next_fit import next_fit
from penstock.server.packing.pool import pool
from penstock.server.packing.sequential import sequential
from penstock.server.packing.window import window

__all__ = [
    "best_fit_decreasing",
    "count_best_fit_decreasing",
    "count_knapsack",
    "first_fit",
    "knapsack",
    "next_fit",
    "pool",
    "sequential",
    "window",
]
