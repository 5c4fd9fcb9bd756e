"""What is left out of a log: verdicts about items, and what an item is that failed.

A verdict is durable before anything that depends on it is released, and everybody obeys it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict, budget_spent
from penstock.wire.errors import BadItem

MAX_KIND_CHARACTERS = 40


class Bad(NamedTuple):
    """An item failed twice, and nobody has judged it yet.

    Attributes:
        error: What is wrong with it.
        digest: SHA-256 of its raw bytes, hex.
        every_epoch: Nothing random was drawn before it failed: it fails in every epoch.
    """

    error: BadItem
    digest: str
    every_epoch: bool


class Quarantined(NamedTuple):
    """A verdict removes an item."""

    verdict: Verdict


class VerdictBook:
    """The verdicts that hold for one log.

    Args:
        known: What the store had when the line started.
        insert: Makes a verdict durable, if none holds at its place, and returns the one that does.
            None keeps verdicts in this process: for a reader that has no store, which finds the
            same ones again.
        limit: How many items may be left out, where there is no store to count them.

    Attributes:
        left_out: How many items are left out, by source, stage and kind of reason.
        is_empty: It has no verdict, not even a released one: then `find` finds none.
    """

    def __init__(
        self,
        known: Iterable[Verdict] = (),
        insert: Callable[[Verdict], Verdict] | None = None,
        limit: int | None = None,
    ) -> None:
        self._known: dict[tuple[str, str, int], list[Verdict]] = {}
        self._insert, self._limit = insert, limit
        self.left_out: Counter[tuple[str, str, str]] = Counter()
        self.is_empty = True  # asked for every batch
        self.learn(known)

    def __iter__(self) -> Iterator[Verdict]:
        """Yield every verdict, released ones too."""
        for verdicts in self._known.values():
            yield from verdicts

    def __contains__(self, verdict: object) -> bool:
        """Tell whether this very verdict is known."""
        return isinstance(verdict, Verdict) and verdict in self._known.get(_place(verdict), ())

    def find(self, stage: str, item: ItemRef, lane: int = 0, offset: int = 0) -> Verdict | None:
        """Return the verdict that leaves an item out of the batch at `offset` of `lane`."""
        for verdict in self._known.get((stage, item.source, item.index), ()):
            if verdict.holds(item, lane, offset):
                return verdict
        return None

    def add(self, verdict: Verdict) -> Verdict:
        """Make a verdict durable and return the one that holds.

        Raises:
            BadItem: As many items as may be are left out already.
            LogDiverged: It would move what readers were given.
        """
        if self._insert is not None:
            held = self._insert(verdict)
        elif self._limit is not None and self.left_out.total() >= self._limit:
            raise budget_spent(self._limit, verdict, self)
        else:
            held = verdict
        self.learn([held])
        return held

    def learn(self, verdicts: Iterable[Verdict]) -> None:
        """Take over verdicts that are durable already; of one number the later change holds."""
        for verdict in verdicts:
            place = _place(verdict)
            before = self._known.get(place, [])
            after = [
                known for known in before if not known.number or known.number != verdict.number
            ]
            self._known[place] = [*after, verdict]
            self.is_empty = False
            self.left_out.subtract(_counted(before))
            self.left_out.update(_counted(self._known[place]))


def _place(verdict: Verdict) -> tuple[str, str, int]:
    return verdict.stage, verdict.item.source, verdict.item.index


def _counted(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, str, str]]:
    """Yield (source, stage, kind of reason) for each that counts, once for all lanes."""
    seen: set[int | None] = set()
    for verdict in verdicts:
        epoch = None if verdict.every_epoch else verdict.item.epoch
        if verdict.released is None and epoch not in seen:
            seen.add(epoch)
            yield verdict.item.source, verdict.stage, kind_of(verdict.reason)


def kind_of(reason: str) -> str:
    """Return the class of error that a reason begins with, or `other`: few, for metrics."""
    kind = reason.partition(":")[0]
    return kind if kind.isidentifier() and len(kind) <= MAX_KIND_CHARACTERS else "other"


def content_hash(raw: Any) -> str:
    """Return the SHA-256 of a raw item, hex; arrays by their bytes, dicts in sorted order."""
    digest = hashlib.sha256()

    def feed(value: Any) -> None:
        digest.update(type(value).__name__.encode() + b"\0")
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                feed(str(key))
                feed(value[key])
        elif isinstance(value, list | tuple):
            for inner in value:
                feed(inner)
        elif isinstance(value, bytes | bytearray | memoryview):
            digest.update(value)
        elif hasattr(value, "__array__"):
            array = np.ascontiguousarray(value)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        elif isinstance(value, str | int | float | bool) or value is None:
            # JSON has texts with half a surrogate pair, and the tokenizer refuses just these.
            digest.update(str(value).encode("utf-8", "surrogatepass"))
        # anything else is known by its type alone: its repr may hold an address of this process
        digest.update(b"\1")

    feed(raw)
    return digest.hexdigest()
