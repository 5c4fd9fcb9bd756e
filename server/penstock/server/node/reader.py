"""One open stream's demand: which positions it may still take, and what is given to it next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.server.node.entry import Entry, State
from penstock.wire.order import Share, Tail

if TYPE_CHECKING:
    from penstock.server.node.books import Log

MAX_PENDING = 1024
"""Batches that one reader wants at once, wherever its horizon lies: that is only a number."""

LOOK_POSITIONS = 1000
"""Positions that a reader of some lanes passes over in one turn: others are served in between."""


class Reader:
    """One open stream's demand.

    Args:
        log: The log it reads.
        share: Which positions are its own.
        tail: The end of a finite log; None = endless.
        start: No position below this is wanted.
        lanes: Lanes wanted from this node; None = all.
        wake: Called when something may be taken, or has failed.

    Attributes:
        next: The position that its consumer needs next; it is given in any case.
        bytes_limit: What the bodies that it is given may have in sum; 0 = no such limit.
        taken_bytes: What it was given of these: its consumer counts no headers either.
        is_full: What is ready for it would go beyond the limit: it waits for its consumer.
    """

    def __init__(
        self,
        log: Log,
        share: Share,
        tail: Tail | None,
        start: int,
        lanes: frozenset[int] | None,
        wake: Callable[[], None],
    ) -> None:
        self.log, self.share, self.tail, self.lanes, self.wake = log, share, tail, lanes, wake
        self.pending: dict[int, Entry] = {}
        self._ahead: dict[int, Entry] = {}  # own positions from the horizon on
        self.horizon = 0
        self.next = self.bytes_limit = self.taken_bytes = 0
        self.is_full = False
        self.closed = False
        self.sent_batches = self.sent_bytes = self.sent_tokens = 0
        self._next_wanted = self._next_ahead = share.at_or_after(start)

    @property
    def head(self) -> int:
        """Return the lowest own position that was not taken yet."""
        # Positions are added in rising order, and a dict keeps it.
        return next(iter(self.pending), self._next_wanted)

    @property
    def owed(self) -> Entry | None:
        """Return what its consumer is owed next; None where it accepts nothing more."""
        return next(iter(self.pending.values()), None)

    def urgency(self, entry: Entry) -> int:
        """Return how many positions after the owed batch an entry lies; only the owed one has 0.

        For the node makes what is owed even above its bound, and would look no further at what
        stood before it and may not be made.
        """
        return 0 if self.owed is entry else max(1, entry.key.position - self.head)

    @property
    def finished(self) -> bool:
        """Tell whether everything up to the log's end was taken."""
        return self.tail is not None and not self.pending and self._next_wanted >= self.tail.end

    def extend(self, horizon: int) -> None:
        """Move the horizon; a lower one changes nothing, nor does any after `close`."""
        if self.closed:
            return
        self.horizon = max(self.horizon, horizon)
        self._fill()

    def grant(self, position: int, bytes_limit: int) -> None:
        """Move what the consumer needs next, and what it has room for; lower ones change nothing.

        Counts since the stream began, not bytes to be added: so a message that comes twice, or
        late, grants nothing twice. And the next position is always given, by whichever node has its
        lane: so no split of the room over nodes or lanes can leave everybody waiting.
        """
        self.next = max(self.next, position)
        self.bytes_limit = max(self.bytes_limit, bytes_limit)

    def _has_room(self, position: int, nbytes: int) -> bool:
        return (
            not self.bytes_limit
            or position <= self.next
            or self.taken_bytes + nbytes <= self.bytes_limit
        )

    def _fill(self) -> None:
        """Want what lies below the horizon, a bounded number at once: more when these are taken."""
        limit = self._at_most(self.horizon)
        missed = 0
        while self._next_wanted < limit and len(self.pending) < MAX_PENDING:
            position = self._next_wanted
            self._next_wanted = self.share.nth_after(position, 1)
            key = self.log.key(position, self.tail)
            if self.lanes is None or key.lane in self.lanes:
                entry = self._ahead.pop(position, None)
                if entry is None or entry.state is State.FAILED:  # then it is tried again
                    entry = self.log.want(key, self)
                self.pending[position] = entry
                missed = 0
                continue
            missed += 1
            if missed > max(self.log.job.lanes, LOOK_POSITIONS):
                # In an endless log its own positions meet none of its lanes, ever; in a finite one
                # they may continue past the ends of others: later, so that nobody else waits.
                if self.tail is not None:
                    self.wake()
                return
        if self._next_wanted >= limit:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Want what lies a little beyond the horizon: it is sent when the horizon has passed it.

        Not before it is known how large a batch is: it must not go above the node's bound.
        """
        if not self.log.largest_bytes:
            return
        limit = self._at_most(self.horizon + self.log.ahead)
        self._next_ahead = max(self._next_ahead, self._next_wanted)
        while self._next_ahead < limit:
            position = self._next_ahead
            self._next_ahead = self.share.nth_after(position, 1)
            key = self.log.key(position, self.tail)
            if self.lanes is None or key.lane in self.lanes:
                self._ahead[position] = self.log.want(key, self)

    def _at_most(self, position: int) -> int:
        return position if self.tail is None else min(position, self.tail.end)

    def settled(self, entry: Entry) -> None:
        """Note that an entry that it wants is ready, or has failed."""
        if entry.key.position < self.horizon:
            self.wake()
        elif entry.state is State.FAILED:
            # What comes after it may fail as slowly as storage that is away, and what is owed
            # would wait for a worker meanwhile.
            for position in [at for at in self._ahead if at > entry.key.position]:
                self.log.leave(self._ahead.pop(position), self)

    def take(self, fits: Callable[[Entry], bool] | None = None) -> Entry | None:
        """Return the next batch to send and pin it: in order per lane, the lowest that is ready.

        Args:
            fits: Take it only if this says so; None = whatever it is.

        Raises:
            PenstockError: The batch that is owed next cannot be made; not with `fits`.
        """
        self._fill()
        self.is_full = False
        blocked: set[int] = set()
        for position, entry in self.pending.items():
            if entry.state is State.READY and entry.key.lane not in blocked:
                if not self._has_room(position, entry.body_bytes):
                    # Nor what is smaller and comes later: it would take this one's room.
                    self.is_full = True
                    return None
                if fits is not None and not fits(entry):
                    return None
                del self.pending[position]
                entry.pins += 1
                self.taken_bytes += entry.body_bytes
                return entry
            if entry.state is State.FAILED and not blocked and fits is None:
                assert entry.error is not None
                raise entry.error
            blocked.add(entry.key.lane)
        return None

    def sent(self, entry: Entry) -> None:
        """The entry that `take` gave has been written to the network."""
        self.sent_batches += 1
        self.sent_bytes += entry.nbytes
        self.sent_tokens += entry.tokens
        entry.unpin()
        self.log.leave(entry, self)

    def close(self) -> None:
        """Stop wanting anything; idempotent."""
        self.closed = True
        for entry in (*self.pending.values(), *self._ahead.values()):
            self.log.leave(entry, self)
        self.pending.clear()
        self._ahead.clear()
        self.log.readers.discard(self)


__all__ = ["Reader"]
