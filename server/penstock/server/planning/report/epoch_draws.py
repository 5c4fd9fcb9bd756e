"""Draws that stop after some epochs, in the midst of a lane that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.job import Job, LaneRoles
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planned_planner import PlannedPlanner
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.roles.draws import LaneDraws
from penstock.wire.errors import PenstockError


class EpochDrawn(PenstockError):
    """A lane has drawn its part of the epochs that are planned."""


class DrawsOfEpochs(LaneDraws):
    """The draws of a lane up to the end of an epoch, where the planner stops without having ended.

    Its batcher keeps what it holds, as it does where the lane goes on.

    Args:
        draws: The lane's draws.
        most: How many of them there are in these epochs.
    """

    def __init__(self, draws: LaneDraws, most: int) -> None:
        self._draws, self._left = draws, most

    def next(self) -> ItemRef | None:
        """Return the next item.

        Raises:
            EpochDrawn: The epochs are over.
        """
        if not self._left:
            raise EpochDrawn("the lane has drawn its part of the epochs")
        item = self._draws.next()
        self._left -= item is not None
        return item

    def took(self, item: ItemRef, size: int) -> None:
        """Pass on what became of an item."""
        self._draws.took(item, size)

    def counts(self) -> dict[str, int]:
        """Return what was drawn of each part."""
        return self._draws.counts()

    def peek(self, count: int) -> list[ItemRef]:
        """Return coming items, beyond the epoch too."""
        return self._draws.peek(count)

    def run(self, count: int) -> list[ItemRef]:
        """Return the next draws up to the end of the epochs."""
        return self._draws.run(min(count, self._left)) if self._left else []

    def step(self, items: Sequence[ItemRef], sizes: Sequence[int]) -> None:
        """Take draws of `run`."""
        self._draws.step(items, sizes)
        self._left -= len(items)

    def state(self) -> Any:
        """Return the draws' state, and how many are left."""
        return [self._left, self._draws.state()]

    @override
    def restore(self, state: Any) -> None:
        self._left = state[0]
        self._draws.restore(state[1])


class PlannedOfEpochs(PlannedPlanner):
    """The planner of a planned set of a joint job, up to the end of an epoch of its own.

    Args:
        job, lane, items, part: As for `PlannedPlanner`.
        epochs: After how many it stops.
    """

    def __init__(self, job: Job, lane: int, items: Items, part: LaneRoles, epochs: int) -> None:
        super().__init__(job, lane, items, part)
        self._most = planned_log(part.roles).batches_of(part.lane, epochs)

    def next(self) -> BatchPlan | None:
        """Return the plan of the batch at `offset` and step over it.

        Raises:
            EpochDrawn: The epochs are over.
        """
        if self.offset >= self._most:
            raise EpochDrawn("the set has given its batches of the epochs")
        return super().next()
