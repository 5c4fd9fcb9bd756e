"""How often the samples of a window are processed, and what lanes keep of them meanwhile."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.server.planning.log.arranged import Arranged
from penstock.server.planning.log.index_windows import Integers
from penstock.server.planning.log.packed_window import PackedWindow


class Processed(NamedTuple):
    """Tokens of the samples that have pieces in the batches of a window, in an epoch.

    Attributes:
        once: All of each, once.
        times: All of each, as often as it is processed: once for the batches with a piece of it in
            one lane, which keeps it from the first of them to the last, and once for each batch
            that is made by itself.
        kept: What lanes keep so, at most: of all lanes together, where they stand at the same
            place.
    """

    once: int
    times: int
    kept: int


def processed_in(
    packed: PackedWindow, arranged: Arranged | None, lanes: int, whole: Integers
) -> Processed:
    """Return it for a window.

    Args:
        packed: The window.
        arranged: How its batches are arranged; None = no two of them share a sample.
        lanes: How many lanes take them in turn.
        whole: int64 (n,): the sizes of its samples.
    """
    once = int(whole[np.bincount(packed.slots, minlength=len(whole)) > 0].sum())
    if arranged is None or packed.shared is None:
        return Processed(once, once, 0)
    slots, batches = packed.shared
    places = arranged.places[batches]
    # The lane of each batch, or a number of its own where it is made by itself.
    makers = np.where(places < 0, lanes + batches, places % lanes)
    order = np.lexsort((places, makers, slots))
    slots, makers, places = slots[order], makers[order], places[order]
    is_first = np.append(True, (np.diff(slots) != 0) | (np.diff(makers) != 0))
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(slots)) - 1
    sizes = whole[slots[firsts]]
    again = int(sizes.sum() - whole[np.unique(slots)].sum())
    # By offset: kept after the batch there that was the first with a piece, up to the last.
    begins, ends = places[firsts] // lanes, places[lasts] // lanes
    lies = ends > begins
    change = np.zeros(int(ends.max(initial=0)) + 2, np.int64)
    np.add.at(change, begins[lies], sizes[lies])
    np.add.at(change, ends[lies], -sizes[lies])
    return Processed(once, once + again, int(np.cumsum(change).max()))
