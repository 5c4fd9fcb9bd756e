"""One open stream's demand: which positions it may still take, and what is given to it next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from penstock.server.job.job import Job
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.ranked import Ranked
from penstock.server.node.demand.unknown import Unknown
from penstock.server.node.demand.wanted import BatchState, Key, Reads, WantedBatch
from penstock.wire.order import Cut, LaneOffset, Share

LOOK_POSITIONS = 1000
"""Positions that a reader of some lanes passes over in one turn: others are served in between."""


COMING = (BatchState.READY, BatchState.MAKING)


class StreamDemand:
    """One open stream's demand.

    Args:
        log: The log it reads.
        share: Which positions are its own.
        cut: How a finite log is cut into steps; None = endless.
        start: No position below this is wanted.
        lanes: Lanes wanted from this node; None = all.
        wake: Called when something may be taken, or has failed.
        job: The job by whose name it reads, as another name of the log may have other policies;
            None = the log's own.
        host: Whose reader it is: it shares its bounds with the others of that host.

    Attributes:
        next: The position that its consumer needs next; it is given in any case.
        bytes_limit: What the bodies that it is given may have in sum; 0 = no such limit.
        taken_bytes: What it was given of these: its consumer counts no headers either.
        is_full: What is ready for it would go beyond the limit: it waits for its consumer.
        moved_at: When it last took a batch, or found its next one ready, on the monotonic clock.
        gave_way: What was ready for it was freed, as others needed the memory.
        unknown: What it waits to know.
        ready: What is ready for it, and for no reader that needs it sooner; the farthest first.

    Glossary:
        horizon: The position up to which a reader accepts batches: the client's side of
            backpressure.
    """

    def __init__(
        self,
        log: Log,
        share: Share,
        cut: Cut | None,
        start: int,
        lanes: frozenset[int] | None,
        wake: Callable[[], None],
        job: Job | None = None,
        host: str = "",
    ) -> None:
        self.job, self.peer = job or log.job, log.peers.join(host)
        self.log, self.share, self.cut, self.lanes, self.wake = log, share, cut, lanes, wake
        tail = None if cut is None else log.numbering.tail(cut)
        self.end = None if tail is None else tail.end
        self.pending: dict[int, WantedBatch] = {}
        self._ahead: dict[int, WantedBatch] = {}  # own positions from the horizon on
        self.horizon = 0
        self.next = self.bytes_limit = self.taken_bytes = 0
        self.is_full = self.gave_way = False
        self.moved_at = time.monotonic()
        self.closed = False
        self.sent_batches = self.sent_bytes = self.sent_tokens = 0
        self._start = self._next_wanted = self._next_ahead = share.at_or_after(start)
        self.unknown = Unknown(self)
        self.ready: Ranked[WantedBatch] = Ranked()
        log.readers.add(self)

    @property
    def head(self) -> int:
        """Return the lowest own position that was not taken yet."""
        # Positions are added in rising order, and a dict keeps it.
        return next(iter(self.pending), self._next_wanted)

    @property
    def next_pending(self) -> WantedBatch | None:
        """Return what its consumer is owed next; None where it accepts nothing more."""
        return next(iter(self.pending.values()), None)

    def urgency(self, entry: WantedBatch) -> int:
        """Return how many positions after the owed batch an entry lies; only the owed one has 0.

        For the node makes what is owed even above its bound, and would look no further at what
        stood before it and may not be made.
        """
        return 0 if self.next_pending is entry else max(1, entry.key.position - self.head)

    @property
    def finished(self) -> bool:
        """Tell whether everything up to the log's end was taken."""
        return self.end is not None and not self.pending and self._next_wanted >= self.end

    @property
    def is_coming(self) -> bool:
        """Tell whether it will be given anything though no worker is given anything to make.

        What is ready beyond its horizon is given as its consumer comes nearer, unless that waits
        for what nobody makes.
        """
        blocked: set[int] = set()
        for entry in self.pending.values():
            lane = entry.key.lane
            if entry.state not in COMING:
                blocked.add(lane)
            elif lane not in blocked:
                return True
        return not blocked and any(entry.state in COMING for entry in self._ahead.values())

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
        while self._next_wanted < limit and len(self.pending) < self.peer.pending_each:
            position = self._next_wanted
            self._next_wanted = self.share.nth_after(position, 1)
            key = self._key(position)
            if self.lanes is None or key.lane in self.lanes:
                entry = self._ahead.pop(position, None)
                if entry is None or entry.state is BatchState.FAILED:  # then it is tried again
                    entry = self.log.want(key, self)
                self.pending[position] = entry
                missed = 0
                continue
            missed += 1
            if missed > max(self.log.job.lanes, LOOK_POSITIONS):
                # In an endless log its own positions meet none of its lanes, ever; in a finite one
                # they may continue past the ends of others: later, so that nobody else waits.
                if self.cut is not None:
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
            key = self._key(position)
            if self.lanes is None or key.lane in self.lanes:
                self._ahead[position] = self.log.want(key, self)

    def _key(self, position: int) -> Key:
        """Return what stands for this reader at one of its positions."""
        key = self.log.key(position, self.cut)
        return key._replace(blank=True) if self.share.is_filler(position) else key

    def _at_most(self, position: int) -> int:
        return position if self.end is None else min(position, self.end)

    # --- where positions are not known yet ---

    def unknown_batches(self) -> Iterable[LaneOffset]:
        """Return the batches of which it must be known more, for the next one or for the end."""
        return self.unknown.needed()

    def reads(self) -> Reads:
        """Return which lanes it may want batches of: positions of one residue by W lie on these."""
        is_even = self.share.is_even and self.cut is None
        modulus = math.gcd(self.log.job.lanes, self.share.world_size) if is_even else 1
        return self.lanes, modulus, self.share.rank % modulus

    def learned(self) -> None:
        """Note that more is known of where batches stand, or of what they hold."""
        self.unknown.learned()

    @property
    def lacks(self) -> int | None:
        """Return up to which position it must be known what stands where, for the next batch.

        None = that is known, as far as its consumer accepts batches.
        """
        if self.cut is None:
            return None
        known = self.log.numbering.known(self.cut)
        # A reader of some lanes that wants nothing has passed over positions of other lanes: if one
        # of these has ended before them, they are its own, and nobody else would find that out.
        head = next(iter(self.pending), self.share.at_or_after(max(known, self._start)))
        if head < known or head >= self._next_wanted:
            return None
        size = self.cut.batches_per_step
        return head if self.cut.pad else (head // size + 1) * size - 1

    def renumber(self, first: int) -> None:
        """Want anew what it wanted from a position on: a lane has ended, and others moved up."""
        tail = self.log.numbering.tail(self.cut)
        self.end = None if tail is None else tail.end
        # A step that turns out not to be full may hold positions that were known.
        moved = first if self.end is None else min(first, self.end)
        before: list[WantedBatch] = []
        for wanted in (self.pending, self._ahead):
            before += [wanted.pop(at) for at in [at for at in wanted if at >= moved]]
        start = max(self._start, self.share.at_or_after(first))
        self._next_wanted = min(self._next_wanted, start)
        self._next_ahead = min(self._next_ahead, start)
        self._fill()
        held = {*self.pending.values(), *self._ahead.values()}
        for entry in before:
            if entry not in held:
                self.log.leave(entry, self)
        self.wake()

    # --- giving ---

    def replaced(self, entry: WantedBatch, fresh: WantedBatch) -> None:
        """Want a fresh entry in place of one whose bytes were freed."""
        for wanted in (self.pending, self._ahead):
            if wanted.get(entry.key.position) is entry:
                wanted[entry.key.position] = fresh

    def settled(self, entry: WantedBatch) -> None:
        """Note that an entry that it wants is ready, or has failed."""
        if entry is self.next_pending:
            self.moved_at = time.monotonic()
        if entry.is_asked:
            self.unknown.failed(entry.error)
        elif entry.key.position < self.horizon:
            self.wake()
        elif entry.state is BatchState.FAILED:
            # What comes after it may fail as slowly as storage that is away, and what is owed
            # would wait for a worker meanwhile.
            for position in [at for at in self._ahead if at > entry.key.position]:
                self.log.leave(self._ahead.pop(position), self)

    def take(self, fits: Callable[[WantedBatch], bool] | None = None) -> WantedBatch | None:
        """Return the next batch to send and pin it: in order per lane, the lowest that is ready.

        Args:
            fits: Take it only if this says so; None = whatever it is.

        Raises:
            PenstockError: What is owed next cannot be made, or not be known; not with `fits`.
        """
        if not (self.pending and self._ahead) or self._next_wanted < self.horizon:
            self._fill()  # else it has what it may want
        self.is_full = False
        withheld = self.log.withheld
        if withheld and withheld.stops(self.share, self.head, raises=fits is None):
            return None
        blocked: set[int] = set()
        known = self.log.numbering.known(self.cut)
        self.unknown.position = None
        for position, entry in self.pending.items():
            if position >= known:
                self.unknown.position = position
                if fits is None and position == self.head:
                    self.unknown.check(entry)
                return None
            if entry.state is BatchState.READY and entry.key.lane not in blocked:
                if not self._has_room(position, entry.body_bytes):
                    # Nor what is smaller and comes later: it would take this one's room.
                    self.is_full = True
                    return None
                if fits is not None and not fits(entry):
                    return None
                del self.pending[position]
                self.moved_at = time.monotonic()
                entry.pins += 1
                entry.is_given = True
                self.taken_bytes += entry.body_bytes
                return entry
            if entry.state is BatchState.FAILED and not blocked and fits is None:
                assert entry.error is not None
                raise entry.error
            blocked.add(entry.key.lane)
        if not self.pending:
            self.unknown.position = self.lacks
            if self.unknown.position is not None and fits is None:
                self.unknown.check(None)
        return None

    def sent(self, entry: WantedBatch) -> None:
        """The entry that `take` gave has been written to the network."""
        self.sent_batches += 1
        self.sent_bytes += entry.nbytes
        self.sent_tokens += entry.tokens
        entry.unpin()
        self.log.leave(entry, self)

    def close(self) -> None:
        """Stop wanting anything; idempotent."""
        if not self.closed:
            self.log.peers.leave(self.peer)
        self.closed = True
        for entry in (*self.pending.values(), *self._ahead.values()):
            self.log.leave(entry, self)
        self.pending.clear()
        self._ahead.clear()
        self.log.readers.discard(self)
