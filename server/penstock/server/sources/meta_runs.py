"""Which items of its data sets a meta file takes: blocks of them, as often as their ratios say."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from penstock.server.core.permutation import Permutation
from penstock.server.roles.condition import Kept
from penstock.server.roles.reading import Blocks
from penstock.server.roles.source import IndexedSource
from penstock.server.sources.meta_file import DataSetEntry

_CHOICES = 1024
"""Blocks of which a part is read, kept for draws to come: as many as groups draw from at once."""


class DataSetRun(NamedTuple):
    """Items of a data set that follow one another: a block of it, or some of the items of one.

    Attributes:
        part: The number of the data set.
        first: The index of the block's first item.
        length: How many items the block has.
        chosen: How many of them are in the run; fewer than `length` are chosen by a permutation.
    """

    part: int
    first: int
    length: int
    chosen: int


class DataSetRuns:
    """The items of several data sets, one after another.

    Args:
        sources: The data sets.
        entries: What the meta file says of each.
        seed: Decides which items a ratio takes.

    Attributes:
        runs: The runs, in order.
        starts: The first item of each, and the number of all items.
    """

    def __init__(
        self, sources: Sequence[IndexedSource], entries: Sequence[DataSetEntry], seed: int
    ) -> None:
        self._sources, self._entries, self._seed = sources, entries, seed
        self.runs = [run for number in range(len(sources)) for run in self._runs_of(number)]
        self.starts = [0, *accumulate(run.chosen for run in self.runs)]
        self.chosen = lru_cache(_CHOICES)(self._chosen_of)

    def firsts(self) -> list[int]:
        """Return the first item of each data set that has any."""
        found: dict[int, int] = {}
        for start, run in zip(self.starts, self.runs, strict=False):
            if run.chosen:
                found.setdefault(run.part, start)
        return sorted(found.values())

    def blocks(self) -> Blocks | None:
        """Return the blocks of all data sets, those of a ratio above 1 several times."""
        stored = [source.blocks() for source in self._sources]
        if all(blocks is None for blocks in stored):
            return None
        return Blocks(
            [run.chosen for run in self.runs],
            self._of_blocks(stored, "nbytes"),
            self._of_blocks(stored, "stored"),
            all(blocks is None or blocks.items_are_apart for blocks in stored),
            sum(blocks.decoded for blocks in stored if blocks is not None),
        )

    def by_part(self, indices: Sequence[int]) -> list[tuple[int, list[int], list[int]]]:
        """Return for each data set the places in `indices`, and the items' own indices there."""
        found: dict[int, tuple[list[int], list[int]]] = {}
        for place, index in enumerate(indices):
            number = bisect_right(self.starts, index) - 1
            run = self.runs[number]
            within = index - self.starts[number]
            if run.chosen < run.length:
                within = self.chosen(run)[within]
            places, wanted = found.setdefault(run.part, ([], []))
            places.append(place)
            wanted.append(run.first + within)
        return [(part, places, wanted) for part, (places, wanted) in found.items()]

    def _runs_of(self, number: int) -> list[DataSetRun]:
        """Return the runs of a data set: all of its blocks, as often as its ratio says."""
        entry, source = self._entries[number], self._sources[number]
        blocks = source.blocks()
        lengths = [len(source)] if blocks is None else list(blocks.items)
        starts = [0, *accumulate(lengths)]
        copies, part = divmod(entry.ratio, 1)
        whole = [
            DataSetRun(number, start, length, length)
            for start, length in zip(starts, lengths, strict=False)
        ]
        some = []
        wanted = int(len(source) * part) or (1 if part and not copies else 0)
        for start, length in zip(starts, lengths, strict=False):
            # As many of each block as its share says, so that all blocks together have `wanted`.
            stop = start + length
            chosen = stop * wanted // len(source) - start * wanted // len(source)
            some.append(DataSetRun(number, start, length, chosen))
        return [*(whole * copies), *(some if wanted else [])]

    def _of_blocks(self, stored: Sequence[Blocks | None], what: str) -> list[int] | None:
        """Return a number of each run's block; None = a data set does not know it."""
        known: list[dict[int, int]] = []
        for blocks in stored:
            if blocks is None:
                known.append({0: 0})
                continue
            numbers = getattr(blocks, what)
            if numbers is None:
                return None
            known.append(dict(zip([0, *accumulate(blocks.items)], numbers, strict=False)))
        return [known[run.part][run.first] for run in self.runs]

    def _chosen_of(self, run: DataSetRun) -> Kept:
        """Return which items of its block a run has: a bit for each, as a block may be large."""
        name = self._entries[run.part].name
        order = Permutation(run.length, self._seed, run.first, f"ratio of {name}")
        chosen = np.zeros(run.length, dtype=bool)
        chosen[order.take(np.arange(run.chosen))] = True
        return Kept.of(chosen)
