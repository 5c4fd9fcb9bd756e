"""A verdict: what it says, where it holds, and the form in which it is stored and sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, get_args

from penstock.server.core.refs import ItemRef
from penstock.wire.errors import BadItem
from penstock.wire.order import MAX_POSITION

STAGES = ("draw", "exit", "size")
"""Where an item may be left out."""

MAX_NAMED = 3
"""How many of the items that are left out an error names."""


class Verdict(NamedTuple):
    """An entry of the quarantine: this item is left out, for this reason, by every node.

    It holds from an offset on, never below: what was given before it was made stays what it was.
    That offset is above all that was given or planned by then in any lane; and the batch that
    it was met for, with all behind it in its lane at stage `draw`.

    Attributes:
        stage: `draw` (removed before batching), `exit` (removed from its own batch only) or `size`
            (a sample or piece was left out of a batch, for its size was not the planned one).
        item: The item, in the epoch in which it was met.
        content_hash: SHA-256 of its raw bytes, hex.
        reason: One line.
        every_epoch: It is about the raw bytes: nothing random was drawn before the failure, so it
            holds in every epoch. Else it may be the chance of that epoch's augmentation.
        lane: The lane that met it.
        offset: The offset that was being planned, or made, there.
        above: It holds in every lane from this offset on.
        released: It holds in no lane from this offset on; None = it was not released.
        number: 1, 2, ... in the order of its log's store; 0 = kept in one process only.

    Glossary:
        verdict: An entry of the quarantine: an item that failed twice in the same way, why, and
            from which offset on it is left out.
    """

    stage: str
    item: ItemRef
    content_hash: str
    reason: str
    every_epoch: bool = False
    lane: int = 0
    offset: int = 0
    above: int = 0
    released: int | None = None
    number: int = 0

    def holds(self, item: ItemRef, lane: int, offset: int) -> bool:
        """Tell whether it is about an item and holds for the batch at `offset` of `lane`."""
        if item != self.item and not (self.every_epoch and item[:2] == self.item[:2]):
            return False
        if self.released is not None and offset >= self.released:
            return False
        if offset >= self.above:
            return True
        # Behind a draw nothing was given. Makers go in any order: behind an exit it may have been.
        here = offset >= self.offset if self.stage == "draw" else offset == self.offset
        return lane == self.lane and here

    def encode(self) -> Encoded:
        """Return the one form in which a verdict is stored and sent: texts and whole numbers.

        Number, stage, source, index, epoch, every epoch (0 or 1), lane, offset, above, released (-1
        = not), content hash, reason: the columns of a store's row, and a list in JSON.
        """
        every, released = int(self.every_epoch), -1 if self.released is None else self.released
        since = (self.lane, self.offset, self.above, released)
        return self.number, self.stage, *self.item, every, *since, self.content_hash, self.reason

    @classmethod
    def decode(cls, values: Sequence[Any]) -> Verdict:
        """Return the verdict that `encode` gave.

        Raises:
            ValueError: It gave something else.
        """
        if len(values) != len(_FORM) or not all(
            type(value) is kind and (kind is str or -1 <= value <= MAX_POSITION)
            for value, kind in zip(values, _FORM, strict=True)
        ):
            raise ValueError("a verdict is seven whole numbers and four texts of a known form")
        number, stage, source, index, epoch, every, *since, content_hash, reason = values
        lane, offset, above, released = since
        if stage not in STAGES or min(number, index, epoch, lane, offset, above) < 0:
            raise ValueError("a verdict has a stage and an offset")
        return cls(
            stage,
            ItemRef(source, index, epoch),
            content_hash,
            reason,
            bool(every),
            lane,
            offset,
            above,
            None if released < 0 else released,
            number,
        )


Encoded = tuple[int, str, str, int, int, int, int, int, int, int, str, str]
"""A verdict as `Verdict.encode` gives it."""

_FORM = get_args(Encoded)


def budget_spent(limit: int, verdict: Verdict, known: Iterable[Verdict] = ()) -> BadItem:
    """Return the error for an item that would be left out beyond `max_quarantined`.

    Args:
        limit: `max_quarantined` of the job.
        verdict: About the item.
        known: What is left out already, where no store has it for `penstock quarantine` to list.
    """
    named = ", ".join(f"{left.item} ({left.reason})" for left in islice(known, MAX_NAMED))
    look = f"the first are {named}" if named else "`penstock quarantine` lists them, and why"
    return BadItem(
        f"item {verdict.item} fails ({verdict.reason}), and max_quarantined = {limit} items of the "
        f"job are left out already; look at the data ({look}), or raise max_quarantined",
        item=list(verdict.item),
        stage=verdict.stage,
        lane=verdict.lane,
        offset=verdict.offset,
        reason="quarantine budget spent",
    )
