"""What a job asks of its plan, and of the batches that the plan gives: `planned` has both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock.server.core.refs import BatchPlan
from penstock.server.roles.reading import Reading

if TYPE_CHECKING:
    from penstock.server.role_set import RoleSet


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


class JobPlan(Protocol):
    """How a job is planned.

    Attributes:
        index: The path or the URL of the index of sizes.
        storage_options: Options of fsspec for it.
        balance: The cost by which batches of a step are put together; None = by no cost.
    """

    index: str
    storage_options: dict[str, Any]
    balance: Any

    def open(
        self, roles: RoleSet, seed: int, batches_per_step: int | None, may_fail: int
    ) -> PlannedBatches:
        """Return the batches of some roles.

        Args:
            roles: The roles, opened.
            seed: The job's seed.
            batches_per_step: The job's; None = it says none.
            may_fail: How many items that fail an index may have left out.

        Raises:
            InvalidJob: They cannot be planned so.
            SourceUnavailable: What the plan is made of cannot be read.
        """


def in_words(counts: Mapping[str, int]) -> str:
    """Return counts by name as people read them."""
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()) if count)


__all__ = ["JobPlan", "PlannedBatches", "in_words"]
