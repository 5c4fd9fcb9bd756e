"""Items by rank: the first is found at once, however many there are and however many have gone."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
_Place: TypeAlias = tuple[tuple[int, ...], int, T]
"""A rank, a number that no other has, and an item."""

SLACK = 32
"""So many items that have gone are kept beside as many as there are, before all are sorted out."""


class Ranked(Generic[T]):
    """Holds items by rank, the lowest first; what has gone is sorted out later, many at once."""

    def __init__(self) -> None:
        self._heap: list[_Place[T]] = []
        self._places: dict[T, _Place[T]] = {}  # where in the heap each item stands
        self._next = 0  # so that items are never compared

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """Yield the items, in no order."""
        return iter(self._places)

    def add(self, item: T, *rank: int) -> None:
        """Add an item, or give it another rank."""
        self._next += 1
        place = self._places[item] = rank, self._next, item
        heapq.heappush(self._heap, place)

    def discard(self, item: T) -> None:
        """Remove an item, if it is here."""
        if self._places.pop(item, None) is None:
            return
        if len(self._heap) > 2 * len(self._places) + SLACK:
            # Most of what is held has gone: a new list and a new dict, of what there is. An
            # iterator goes on in the old one.
            self._places = dict(self._places)
            self._heap = list(self._places.values())
            heapq.heapify(self._heap)

    def first(self) -> T | None:
        """Return the item of the lowest rank; None = there is none."""
        heap = self._heap
        while heap:
            place = heap[0]
            if self._places.get(place[2]) is place:
                return place[2]
            heapq.heappop(heap)
        return None

    def ascending(self) -> Iterator[T]:
        """Yield the items from the lowest rank on: each costs what it takes to find that one.

        Items may be discarded meanwhile.
        """
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            place, at = heapq.heappop(frontier)
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(heap):
                    heapq.heappush(frontier, (heap[below], below))
            if self._places.get(place[2]) is place:
                yield place[2]
