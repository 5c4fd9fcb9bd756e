"""What a plan says, as numbers: exact sums over batches that are given by the sizes in them.

Both kinds of jobs give their batches so: planned ones window by window, as arrays that their index
makes; others as their planners plan them. Nothing here knows which.

Glossary:
    packing efficiency: Tokens divided by tokens and padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.server.planning.report.histograms import NumberCounts
from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.filling import (
    BatchColumns,
    BatchSizes,
    Filling,
    Misfit,
    Numbers,
    misfit,
    sums,
)

MEASURED = "measured."
"""How the arrays of what batches count are called, before the measure."""


class BatchTotals:
    """Adds up batches.

    Attributes:
        batches, rows, samples, tokens: How many there were; a piece of a split sample is one.
        lengths: The sizes of samples.
        of_rows: How many samples a row has.
        of_batches: How many samples a batch has.
        row_tokens: How many tokens a row has.
        of_episodes: From how many episodes a batch comes, where it comes from any.
        measured: By measure, what a batch counts of it.
    """

    def __init__(self) -> None:
        self._fills, self._places, self._filled, self._padded = True, 0, 0, 0
        self.lengths, self.row_tokens = NumberCounts(), NumberCounts()
        self.of_rows, self.of_batches = NumberCounts(), NumberCounts()
        self.of_episodes = NumberCounts()
        self.measured: dict[str, NumberCounts] = {}

    @property
    def batches(self) -> int:
        """Return how many batches there were."""
        return self.of_batches.count

    @property
    def rows(self) -> int:
        """Return how many rows there were."""
        return self.of_rows.count

    @property
    def samples(self) -> int:
        """Return how many samples there were."""
        return self.lengths.count

    @property
    def tokens(self) -> int:
        """Return the sum of all sizes."""
        return self.lengths.total

    @property
    def filled(self) -> tuple[int, int] | None:
        """Return the tokens and the places of all values; None = the collator does not tell."""
        return (self._filled, self._places) if self._fills else None

    @property
    def padded(self) -> int:
        """Return the places of all rows, padded to the longest of their batch."""
        return self._padded

    def add(
        self, batches: BatchSizes, collator: BatchCollator | None
    ) -> tuple[BatchColumns, Misfit | None]:
        """Count some batches, and return what their cost may depend on.

        Args:
            batches: Their sizes.
            collator: What makes values of them; None = how full these are is not known.

        Returns:
            It, and those of them that the collator cannot make.
        """
        self.lengths.add(batches.sizes)
        self.of_rows.add(np.diff(batches.rows))
        self.of_batches.add(np.diff(batches.slots))
        self.row_tokens.add(sums(batches.sizes, batches.rows))
        found: Misfit | None = None
        if len(batches.batches) > 1:
            found = self._fill(None if collator is None else collator.filling(batches))
        columns = BatchColumns.of(batches)
        self._padded += int(columns.padded.sum())
        return columns, found

    def add_measured(self, batches: BatchSizes, names: Sequence[str], counts: Numbers) -> None:
        """Count what some batches count beside their sizes.

        Args:
            batches: Their sizes.
            names: The measures.
            counts: int64 (samples, measures): of each sample in them.
        """
        for name, column in zip(names, counts.T, strict=True):
            before = np.concatenate([[0], np.cumsum(column)])
            own = self.measured.setdefault(name, NumberCounts())
            own.add(np.diff(before[batches.slots]))

    def merge(self, other: BatchTotals) -> None:
        """Take in what another has counted."""
        for mine, theirs in zip(self._numbers(), other._numbers(), strict=True):
            mine.merge(theirs)
        for name, theirs in other.measured.items():
            self.measured.setdefault(name, NumberCounts()).merge(theirs)
        self._fills &= other._fills
        self._places += other._places
        self._filled += other._filled
        self._padded += other._padded

    def repeated(self, times: int) -> BatchTotals:
        """Return what so many times the same batches would have counted."""
        found = BatchTotals()
        for mine, theirs in zip(found._numbers(), self._numbers(), strict=True):
            mine.merge(theirs, times)
        for name, theirs in self.measured.items():
            found.measured.setdefault(name, NumberCounts()).merge(theirs, times)
        found._fills = self._fills
        found._places, found._filled = self._places * times, self._filled * times
        found._padded = self._padded * times
        return found

    def to_arrays(self) -> dict[str, Numbers]:
        """Return it as arrays by name, for another process."""
        sums = [int(self._fills), self._places, self._filled, self._padded]
        found = {"sums": np.array(sums, np.int64)}
        for number, counts in enumerate(self._numbers()):
            found[f"values.{number}"], found[f"counts.{number}"] = counts.to_arrays()
        for name, counts in self.measured.items():
            found[f"{MEASURED}{name}.values"], found[f"{MEASURED}{name}.counts"] = (
                counts.to_arrays()
            )
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Numbers]) -> BatchTotals:
        """Return what `to_arrays` gave."""
        found = cls()
        fills, found._places, found._filled, found._padded = arrays["sums"].tolist()
        found._fills = bool(fills)
        for number, counts in enumerate(found._numbers()):
            counts.add_counted(arrays[f"values.{number}"], arrays[f"counts.{number}"])
        for key, values in arrays.items():
            if key.startswith(MEASURED) and key.endswith(".values"):
                name = key.removeprefix(MEASURED).removesuffix(".values")
                own = found.measured.setdefault(name, NumberCounts())
                own.add_counted(values, arrays[f"{MEASURED}{name}.counts"])
        return found

    def _numbers(self) -> tuple[NumberCounts, ...]:
        return self.lengths, self.row_tokens, self.of_rows, self.of_batches, self.of_episodes

    def _fill(self, filling: Filling | None) -> Misfit | None:
        if filling is None:
            self._fills = False
            return None
        self._filled += int(filling.tokens.sum())
        self._places += int(filling.places.sum())
        return misfit(filling)
