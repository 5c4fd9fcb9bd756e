"""The draws of one lane, as a stream with a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.server.core.refs import ItemRef

if TYPE_CHECKING:
    from penstock.server.roles.base import DataDistributor


class LaneDraws:
    """The draws of one lane, one after another; its whole state is the integer `k`."""

    def __init__(self, distributor: DataDistributor, lane: int, lanes: int) -> None:
        self.distributor, self.lane, self.lanes = distributor, lane, lanes
        self.k = 0
        self._peeked: dict[int, ItemRef] = {}  # by k: what was looked at is drawn once

    def next(self) -> ItemRef | None:
        """Return the next item, or None when the lane is over."""
        item = self._peeked.pop(self.k, None)
        if item is None:
            item = self.distributor.draw(self.lane, self.lanes, self.k)
        if item is not None:
            self.k += 1
        return item

    def peek(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming items without taking them: what to fetch ahead."""
        items: dict[int, ItemRef] = {}
        for k in range(self.k, self.k + count):
            item = self._peeked.get(k)
            if item is None:
                item = self.distributor.draw(self.lane, self.lanes, k)
            if item is None:
                break
            items[k] = item
        self._peeked = items
        return list(items.values())

    def state(self) -> Any:
        """Return a JSON-able state of a few integers."""
        return {"k": self.k}

    def restore(self, state: Any) -> None:
        """Go on where `state` was taken."""
        self.k = int(state["k"])

    def can_seek(self) -> bool:
        """Tell whether `seek` leads to any draw: `k` decides all, as far as this class knows.

        A subclass that draws by more than `k`, and can still seek, overrides both.
        """
        return type(self) is LaneDraws

    def seek(self, k: int) -> None:
        """Go on with the k-th draw of the lane; only where `can_seek`."""
        self.restore({"k": k})


__all__ = ["LaneDraws"]
