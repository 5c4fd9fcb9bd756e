"""How the cost of a step changes along a run: warm pools, sorted windows and tails show there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy.typing as npt

from penstock.server.planning.report.skew import Costs

PARTS = 60
"""Points of the plot: as many as a phone shows apart."""


class Along(NamedTuple):
    """The cost of a step over parts of a run that are equally long, in shares of its mean.

    Attributes:
        firsts: The first step of each part.
        mean: The mean of its steps.
        least: The cheapest of them.
        most: The most expensive.
    """

    firsts: list[int]
    mean: list[float]
    least: list[float]
    most: list[float]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        shares = {"mean": self.mean, "min": self.least, "max": self.most}
        return {
            "first_steps": self.firsts,
            **{name: [round(share, 4) for share in found] for name, found in shares.items()},
        }


def along(costs: Costs, batches_per_step: int, parts: int = PARTS) -> Along | None:
    """Return the cost along a run; None where there are not two whole steps, or they cost nothing.

    Args:
        costs: Of each batch, by its position from 0 on, of shape (batches,); what is left after the
            last whole step is not looked at.
        batches_per_step: G.
        parts: The most points.
    """
    steps = len(costs) // batches_per_step
    if steps < 2:
        return None
    sums: npt.NDArray[Any] = costs[: steps * batches_per_step].reshape(steps, -1).sum(axis=1)
    if not (mean := float(sums.mean())) > 0:
        return None
    cuts = [steps * part // min(parts, steps) for part in range(min(parts, steps) + 1)]
    pieces = [sums[begin:end] / mean for begin, end in pairwise(cuts)]
    return Along(
        cuts[:-1],
        [float(piece.mean()) for piece in pieces],
        [float(piece.min()) for piece in pieces],
        [float(piece.max()) for piece in pieces],
    )
