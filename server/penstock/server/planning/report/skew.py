"""What ranks wait for one another: how unlike the batches cost that they train on at the same time.

Ranks that shard a model meet at every micro batch (FSDP); those that only share gradients meet once
a step (DDP).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class Skew(NamedTuple):
    """By how much the most expensive of the batches that meet exceeds their mean; 0 = all alike.

    Attributes:
        mean: The mean.
        p95: The smallest that is not exceeded in 95 of 100 cases.
        most: The largest.
    """

    mean: float
    p95: float
    most: float

    @classmethod
    def of(cls, costs: npt.NDArray[Any]) -> Skew:
        """Return that of costs (cases, ranks)."""
        means = costs.mean(axis=1)
        over = costs.max(axis=1) - means
        found = np.divide(over, means, out=np.zeros_like(means), where=means > 0)
        p95 = np.percentile(found, 95, method="inverted_cdf")
        return cls(float(found.mean()), float(p95), float(found.max()))

    def to_json(self) -> dict[str, float]:
        """Return it as plain values."""
        return {
            "mean": round(self.mean, 6),
            "p95": round(self.p95, 6),
            "max": round(self.most, 6),
        }


class RankSkew(NamedTuple):
    """The skews of one cost among so many ranks.

    Attributes:
        micro: Of the batches of one micro index: what ranks wait for at each micro batch.
        step: Of the ranks' sums over a step.
    """

    micro: Skew
    step: Skew


def skew(costs: Costs, batches_per_step: int, world_size: int) -> RankSkew | None:
    """Return how unlike the batches are that meet; None where there is no whole step.

    Args:
        costs: Of each batch, by its position from 0 on; what is left after the last whole step is
            not looked at.
        batches_per_step: G.
        world_size: W, which divides G.
    """
    steps = len(costs) // batches_per_step
    if not steps:
        return None
    micros = batches_per_step // world_size
    by_rank = costs[: steps * batches_per_step].reshape(steps, micros, world_size)
    return RankSkew(Skew.of(by_rank.reshape(-1, world_size)), Skew.of(by_rank.sum(axis=1)))
