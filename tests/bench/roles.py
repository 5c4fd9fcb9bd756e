"""Roles whose batches cost nothing: the way from a worker to the trainer is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.server.roles import BatchCollator
from penstock.server.roles.base import Sample
from penstock.server.roles.context import CollateContext


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
