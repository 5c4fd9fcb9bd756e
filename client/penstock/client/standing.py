"""Where a Loader stands, as one value."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.reading.feed import Feed
from penstock.client.run.session import Session, Start
from penstock.client.stats import Tally
from penstock.client.steps import BatchInfo


class Standing(NamedTuple):
    """Where a Loader stands. It is replaced as a whole, by one assignment, never changed.

    So whatever is broken off, by a signal handler that raises, has happened or has not.

    Attributes:
        start: Where the session is to begin; None = a state is waited for.
        moves: How often it went elsewhere.
        session: What was settled; None = nothing yet.
        is_opening: It was tried to settle it.
        feed: What delivers, from a position at or below `next` on; None = not open.
        next: The own position that is given next.
        marked: The own position that `mark` has named last.
        pass_first: The own position that the last iter() began with.
        is_over: The end was reached, and told.
        last: What was given last.
        tally: What was given.
    """

    start: Start | None
    moves: int = 0
    session: Session | None = None
    is_opening: bool = False
    feed: Feed | None = None
    next: int = 0
    marked: int | None = None
    pass_first: int = 0
    is_over: bool = False
    last: BatchInfo | None = None
    tally: Tally = Tally()


__all__ = ["Standing"]
