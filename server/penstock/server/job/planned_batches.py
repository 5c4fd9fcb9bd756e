"""What a job asks of the batches that its plan gives: see `penstock.server.planning.log`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from penstock.server.core.refs import BatchPlan
from penstock.server.roles.reading import Reading


class PlannedBatches(Protocol):
    """What the batches of a set of roles are made of, known before anything is read."""

    @property
    def groups(self) -> int:
        """Return how many reading groups its lanes are dealt to."""

    def identity(self) -> dict[str, Any]:
        """Return what of the plan decides bytes, JSON-able."""

    def reading(self, found: Reading) -> Reading:
        """Return how storage blocks are read by the plan, from how the distributor reads them."""

    def known_end(self, lane: int) -> int | None:
        """Return how many batches a lane holds; None = endless."""

    def plan(self, lane: int, offset: int) -> BatchPlan | None:
        """Return what a batch is made of; None = no item of the lane comes to one."""

    def counts(self, lane: int, offset: int) -> Counter[str]:
        """Return what the batches of a lane before an offset bear, added up."""

    def counts_of_epoch(self, lane: int | None = None) -> Counter[str]:
        """Return what is counted in an epoch, of what a lane draws from or of all lanes."""


def in_words(counts: Mapping[str, int]) -> str:
    """Return counts by name as people read them."""
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()) if count)
