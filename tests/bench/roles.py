"""Roles that cost nothing, so that something else is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.server.roles import BatchCollator, IndexedSource
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample


class Numbers(IndexedSource):
    """Items that are their numbers.

    Args:
        length: How many there are.
    """

    version = 1

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers."""
        return list(indices)

    def fingerprint(self) -> int:
        """Return the length."""
        return self.length


class Constant(BatchCollator):
    """Gives the same array for every batch.

    Args:
        nbytes: How large it is; uint8 of shape (nbytes,).
    """

    version = 1
    uses_global_rng = False

    def __init__(self, nbytes: int) -> None:
        self.array = np.arange(nbytes, dtype=np.uint8)

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the array under the name `data`."""
        return {"data": self.array}
