"""What `tail="drop"` costs: how many samples lie in the batches that fill no step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from penstock.server.core.refs import BatchPlan
from penstock.server.node.demand.lane_state import LaneState
from penstock.wire.numbering import Numbering
from penstock.wire.order import Cut, LaneOffset


class Dropped:
    """Counts the samples of a log's last batches, once it is known which these are.

    They are in plans, and a plan that nobody kept is made again: fewer than a step's.

    Args:
        numbering: The log's order, wholly known.
        cut: How it is cut into steps.
        lanes: The log's lanes, which keep plans.
    """

    def __init__(self, numbering: Numbering, cut: Cut, lanes: Sequence[LaneState]) -> None:
        tail = numbering.tail(cut)
        assert tail is not None
        self._lanes, self._samples = lanes, 0
        self._unknown = [numbering.order.lane_offset(p) for p in range(tail.end, tail.batches)]

    @property
    def samples(self) -> int | None:
        """How many samples they hold, a piece of a split one counted as one; None = not known."""
        left = []
        for lane, offset in self._unknown:
            plan = self._lanes[lane].plans.get(offset)
            if plan is None:
                left.append(LaneOffset(lane, offset))
            else:
                self._samples += BatchPlan.from_json(json.loads(plan)).samples
        self._unknown = left
        return None if left else self._samples

    def missing(self) -> Iterator[LaneOffset]:
        """Yield the batches that must be planned for it."""
        if self.samples is None:
            yield from self._unknown
