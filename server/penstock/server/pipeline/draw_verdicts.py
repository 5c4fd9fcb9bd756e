"""Verdicts about the draws of a lane, each asked for at the place where it takes effect."""

from __future__ import annotations

from collections import Counter

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.wire.errors import BadItem


class DrawVerdicts:
    """Leaves out draws of one lane, and counts them.

    Args:
        items: Knows the verdicts, and asks for new ones.
        lane: The lane.
        counters: Where a draw that is left out is counted.

    Attributes:
        last: The highest number of a verdict that has removed a draw.
    """

    def __init__(self, items: Items, lane: int, counters: Counter[str]) -> None:
        self._items, self._lane, self._counters = items, lane, counters
        self.last = 0

    def removes(self, item: ItemRef, place: int) -> bool:
        """Tell whether a verdict removes a draw that is made for the batch at `place`."""
        verdict = self._items.verdicts.find("draw", item, self._lane, place)
        if verdict is not None:
            self._count(verdict)
        return verdict is not None

    def refuse(self, item: ItemRef, error: BadItem, place: int) -> None:
        """Have an item judged that the batcher refuses.

        Raises:
            BadItem: The policy is to stop.
        """
        self._count(self._items.refuse("draw", item, error, self._lane, place).verdict)

    def quarantine(self, item: ItemRef, bad: Bad, place: int) -> None:
        """Have an item judged that cannot be processed.

        Raises:
            BadItem: The policy is to stop.
        """
        self._count(self._items.judge("draw", item, bad, self._lane, place).verdict)

    def _count(self, verdict: Verdict) -> None:
        self._counters["quarantined:draw"] += 1
        self.last = max(self.last, verdict.number)
