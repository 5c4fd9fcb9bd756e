"""Draws that come together: a lane's next items with their sizes, for a batcher to take at once.

Where lengths that sources tell decide what batches are made of, and nothing else does, each draw
needs no call of its own. It only saves time: what a lane plans, and every snapshot of the way, are
the same as if its draws came one by one, and so they come wherever one of them may be unusual: a
verdict is about some item, an item has no size, a role of a user decides what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.core.refs import ItemRef, SampleRef
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.draws_ahead import SIZES_AHEAD, LookAhead
from penstock.server.pipeline.items import Items
from penstock.server.roles.draws import LaneDraws


class Runs:
    """What comes next in one lane, as far as its draws may be taken together.

    Args:
        items: Tells sizes.
        draws: The lane's draws.
        roles: What makes batches of them.
        ahead: Looks at those after the last one.

    Attributes:
        may_come: The roles are such that draws may be taken together.
    """

    def __init__(self, items: Items, draws: LaneDraws, roles: RoleSet, ahead: LookAhead) -> None:
        self._items, self._ahead = items, ahead
        told = roles.plans_from_refs and roles.needs_sizes and bool(roles.sized_sources)
        keeps = roles.batcher_facts.sizes_kept is not None and not roles.batcher.needs_content
        self.may_come = told and keeps and type(draws).run is not LaneDraws.run
        self._samples: list[SampleRef] = []
        self._at = 0  # how many of these are drawn

    def next(self) -> Sequence[SampleRef]:
        """Return the samples of the coming draws; none where the next is to be drawn alone.

        Raises:
            SourceUnavailable: A read failed to the deadline.
        """
        if not self.may_come or self._items.careful or not self._items.verdicts.is_empty:
            self.forget()
            return ()
        if self._at == len(self._samples):
            self._samples, self._at = self._ask(), 0
        return self._samples[self._at :] if self._at else self._samples

    def took(self, count: int) -> None:
        """Note that so many of them are drawn."""
        self._at += count

    def size(self, item: ItemRef) -> int | None:
        """Return the size of an item that was drawn alone and came next; None = it is not known."""
        if self._at < len(self._samples) and self._samples[self._at].item == item:
            self._at += 1
            return self._samples[self._at - 1].size
        self.forget()
        return None

    def forget(self) -> None:
        """Forget what comes: the lane goes on elsewhere, or draw by draw."""
        self._samples, self._at = [], 0

    def _ask(self) -> list[SampleRef]:
        coming = self._ahead.run(SIZES_AHEAD)
        if not coming:
            return []
        later = self._ahead.peek(SIZES_AHEAD, SIZES_AHEAD) if self._items.warms_ahead else []
        sizes: list[int] = []
        for size in self._items.sizes(coming):
            if not isinstance(size, int):
                break  # it is judged when it is drawn, alone
            sizes.append(size)
        self._items.read_ahead(later)
        return SampleRef.whole(coming, sizes)
