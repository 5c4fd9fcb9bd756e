"""The draws of one lane, as a stream with a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from typing_extensions import override

from penstock.server.core.refs import ItemRef


class NumberedDrawer(Protocol):
    """What decides draws by their numbers: see `DataDistributor`."""

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return draw k of a lane; None after its last one."""

    def draw_many(self, lane: int, lanes: int, k: int, count: int) -> list[ItemRef]:
        """Return draws k, k + 1, ... of a lane, at most `count`."""

    def is_of_user(self) -> bool:
        """Tell whether a user wrote it."""


class LaneDraws(ABC):
    """The draws of one lane, one after another.

    A planner calls `next`, and then `took` for the item that it got; `state` between two draws.
    What `next` gives is decided by the state alone, so a lane that is restored draws the same.

    Glossary:
        draw: One pick of an item by a lane. Within an epoch every item is drawn once, over all
            lanes, unless a condition or a ratio says otherwise.
    """

    @abstractmethod
    def next(self) -> ItemRef | None:
        """Return the next item, or None when the lane is over.

        If it raises, the state is unchanged: the call can be repeated.

        Raises:
            SourceUnavailable: What the draw depends on cannot be read at this moment.
        """

    def took(self, item: ItemRef, size: int) -> None:  # noqa: B027 - most draw without it
        """Be told what became of the item that `next` gave last, before the next draw.

        Args:
            item: The item.
            size: The size of all its samples, as the batcher counts it; 0 if none was kept, and if
                neither the batcher nor the distributor needs sizes.
        """

    def peek(self, count: int) -> list[ItemRef]:
        """Return coming items without taking them: what to fetch ahead.

        At most `count`, and fewer if no more are known yet, or if `took` decides them. Where `took`
        decides only their order, they may come in another one, with others between them.
        """
        return []

    def run(self, count: int) -> list[ItemRef]:
        """Return the next draws, as far as they can be taken together; [] = one by one, by `next`.

        At most `count`. No size that `took` would be told decides one of them.
        """
        return []

    def step(self, items: Sequence[ItemRef], sizes: Sequence[int]) -> None:
        """Take the first of the draws that `run` gave, as calls of `next` and `took` do.

        Args:
            items: These, at least one.
            sizes: What `took` is told of each.
        """
        for item, size in zip(items, sizes, strict=True):
            self.next()
            self.took(item, size)

    def counts(self) -> dict[str, int]:
        """Return what was drawn of each part since the lane's beginning, if there are parts.

        `items:PART`, and `tokens:PART` as far as `took` was told sizes: metrics show both. It
        follows from the state.
        """
        return {}

    @abstractmethod
    def state(self) -> Any:
        """Return a small JSON-able state: the same wherever this draw was reached from."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Go on where `state` was taken."""

    def can_seek(self) -> bool:
        """Tell whether `seek` leads to any draw."""
        return False

    def seek(self, k: int) -> None:
        """Go on with the k-th draw of the lane; only where `can_seek`."""
        raise TypeError(f"{type(self).__name__} draws one item after another")


class NumberedDraws(LaneDraws):
    """Draws that are decided by their number; the whole state is the integer `k`.

    Derive from `LaneDraws` if more than `k` decides: this class can seek.
    """

    def __init__(self, distributor: NumberedDrawer, lane: int, lanes: int) -> None:
        self.distributor, self.lane, self.lanes = distributor, lane, lanes
        self.k = 0
        self._peeked: dict[int, ItemRef] = {}  # by k: draws that were peeked at, computed once

    @override
    def next(self) -> ItemRef | None:
        item = self._peeked.pop(self.k, None)
        if item is None:
            item = self.distributor.draw(self.lane, self.lanes, self.k)
        if item is not None:
            self.k += 1
        return item

    def peek(self, count: int) -> list[ItemRef]:
        """Return `count` coming items, fewer only where the lane ends."""
        known = self.k
        while known in self._peeked:
            known += 1
        if (missing := self.k + count - known) > 0:
            found = self.distributor.draw_many(self.lane, self.lanes, known, missing)
            self._peeked.update(enumerate(found, known))
        coming = [self._peeked.get(k) for k in range(self.k, self.k + count)]
        return [item for item in coming if item is not None]

    def run(self, count: int) -> list[ItemRef]:
        """Return `count` coming items, fewer where the lane ends; [] if a user's class draws."""
        if type(self) is not NumberedDraws or self.distributor.is_of_user():
            return []
        if self._peeked:
            return self.peek(count)
        return self.distributor.draw_many(self.lane, self.lanes, self.k, count)

    def step(self, items: Sequence[ItemRef], sizes: Sequence[int]) -> None:
        """Take draws of `run`."""
        self.restore({"k": self.k + len(items)})

    def state(self) -> Any:
        """Return the number of the next draw."""
        return {"k": self.k}

    @override
    def restore(self, state: Any) -> None:
        self.k = int(state["k"])
        if self._peeked:
            self._peeked = {k: item for k, item in self._peeked.items() if k >= self.k}

    def can_seek(self) -> bool:
        """Return True: `k` decides every draw."""
        return True

    def seek(self, k: int) -> None:
        """Go on with the k-th draw of the lane."""
        self.restore({"k": k})
