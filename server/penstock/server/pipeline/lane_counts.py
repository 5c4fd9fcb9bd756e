"""What a lane counts, each name with its kind; few names, whatever a role makes of its reasons."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from penstock.server.roles.batcher import SampleBatcher
from penstock.wire.plain import clean_text

MAX_REASONS, MAX_REASON_CHARACTERS = 32, 80
"""A reason that a role makes of each item anew (`too short: 17`) must not let snapshots and metrics
grow with the run: what comes after so many of them is counted together."""


def count_filtered(counters: Counter[str], reason: str) -> None:
    """Count an item that the processor gave no sample for."""
    name = f"filtered:{_cut(reason)}"
    if name not in counters and len(counters) >= MAX_REASONS:
        name = "filtered:other reasons"
    counters[name] += 1


def all_counts(counters: Mapping[str, int], batcher: SampleBatcher) -> dict[str, int]:
    """Return all that was counted of a lane since its beginning, each name with its kind.

    `drawn`; `filtered:REASON` and `quarantined:STAGE`, of items; `dropped:REASON`, of samples
    that the batcher has left out; `batcher:NAME`, what else it counts.
    """
    return {
        **counters,
        **{f"dropped:{_cut(reason)}": n for reason, n in batcher.dropped().items()},
        **{f"batcher:{_cut(name)}": n for name, n in batcher.counters().items()},
    }


Mark = tuple[int, ...]
"""What changes whenever something was counted, in whatever way."""

Accounting = tuple[tuple[str, int], ...]
"""Names and numbers, sorted by name, none of them 0."""


class LaneAccounts:
    """What was counted between the batches of a lane: each batch bears what it took to finish it.

    So the sum over a lane's batches is all that it has counted up to the last of them, wherever
    somebody begins to read, and whatever was planned ahead.

    Glossary:
        accounting: What was drawn, filtered, dropped, cut and left out on the way to a batch; it
            comes with the batch.
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._mark: Mark | None = None  # that `_before` was taken at; None = not known
        self._ready: deque[Accounting] = deque()

    def begin(self, counts: Mapping[str, int]) -> None:
        """Go on from these counts, with no batch ready."""
        self._before, self._mark = dict(counts), None
        self._ready.clear()

    def finished(
        self, batches: int, mark: Mark, drawn: int, counts: Callable[[], dict[str, int]]
    ) -> None:
        """Note that some batches are finished: the first of them bears all since the one before.

        Args:
            batches: How many, at least one.
            mark: What changes whenever anything was counted, draws aside.
            drawn: How many items were drawn since the lane's beginning.
            counts: Gives all that was counted since then.
        """
        if mark == self._mark:  # as after most batches
            drawn_before, self._before["drawn"] = self._before.get("drawn", 0), drawn
            self._ready.append(_drawn(drawn - drawn_before))
        else:
            self._mark = mark
            self._ready.append(self._changed(counts))
        if batches > 1:
            self._ready.extend(() for _ in range(batches - 1))

    def _changed(self, counts: Callable[[], dict[str, int]]) -> Accounting:
        before, self._before = self._before, counts()
        changed = [
            (name, int(count - before.get(name, 0)))
            for name, count in self._before.items()
            if count != before.get(name, 0)
        ]
        changed.sort()
        return tuple(changed)

    def next(self) -> Accounting:
        """Return what the next ready batch bears."""
        return self._ready.popleft()

    def state(self) -> list[Any]:
        """Return the state, for snapshots."""
        before = {name: int(count) for name, count in self._before.items() if count}
        return [before, [list(map(list, bears)) for bears in self._ready]]

    def restore(self, state: list[Any]) -> None:
        """Take back what `state` gave."""
        before, ready = state
        self._before = {str(name): int(count) for name, count in before.items()}
        self._mark = None
        self._ready = deque(tuple((str(n), int(count)) for n, count in bears) for bears in ready)


@lru_cache(1024)  # the same few numbers, most often
def _drawn(items: int) -> Accounting:
    return (("drawn", items),) if items else ()


@lru_cache(1024)  # the same few words at every batch
def _cut(reason: str) -> str:
    return clean_text(reason[:MAX_REASON_CHARACTERS], MAX_REASON_CHARACTERS)
