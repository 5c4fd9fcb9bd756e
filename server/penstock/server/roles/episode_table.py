"""Which items of a source belong together as an episode, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """The episodes of an indexed source: each is a run of items, none is in two, none in no one.

    Attributes:
        starts: int64 (n + 1,): the item where each of the n episodes begins, then the number of
            items. Episode `e` has the items `[starts[e], starts[e + 1])`, at least one, in the
            order of time.
        numbers: int64 (n,): what the data call each episode; none occurs twice.
        tasks: The tasks of each episode, n tuples of texts; an episode may have none or several.

    Glossary:
        episode: A run of items that follow one another in time, as the frames of one recording.
    """

    starts: NDArray[np.int64]
    numbers: NDArray[np.int64]
    tasks: Sequence[tuple[str, ...]]

    def __len__(self) -> int:
        """Return how many episodes there are."""
        return len(self.numbers)

    def of_items(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the episode of each item, from 0 on: int64, in the shape of `indices`."""
        return np.searchsorted(self.starts, indices, side="right") - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return how many items each episode has: int64 (n,)."""
        return np.diff(self.starts)
