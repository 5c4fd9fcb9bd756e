"""Where a Loader stands, as one value."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.loop.stats import GivenCounts
from penstock.client.loop.steps import BatchInfo
from penstock.client.reading.feed import Feed
from penstock.client.session.session import Session, StartPoint
from penstock.wire.order import Share


class LoopState(NamedTuple):
    """Where a Loader stands. It is replaced as a whole, by one assignment, never changed.

    So a change that a signal handler interrupts has either happened or not.

    Attributes:
        start: Where the session is to begin; None = a state must be loaded first.
        moves: How many times it was moved, by `seek` or a state.
        session: What is known since reading began; None = it has not begun.
        is_opening: Opening the session was tried.
        feed: Delivers batches from a position at or below `next` on; None = not open.
        next: The own position that is given next.
        marked: The own position that `mark` has named last.
        pass_first: The own position that the last iter() began with.
        is_over: The end was reached, and the caller knows.
        last: The last batch.
        tally: Counts of what was given.
    """

    start: StartPoint | None
    moves: int = 0
    session: Session | None = None
    is_opening: bool = False
    feed: Feed | None = None
    next: int = 0
    marked: int | None = None
    pass_first: int = 0
    is_over: bool = False
    last: BatchInfo | None = None
    tally: GivenCounts = GivenCounts()

    def counted(self, share: Share) -> int:
        """Return the first own position that is not counted as trained on."""
        return self.next if self.marked is None else share.nth_after(self.marked, 1)

    def parted(self) -> LoopState:
        """Return this without its feed, and what belongs to it."""
        tally = self.tally
        if self.feed is not None:
            tally = tally.with_feed(self.feed)
        return self._replace(feed=None, marked=None, is_over=False, tally=tally)
