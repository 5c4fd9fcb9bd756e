"""What a node knows of each log: who needs which batch, and what is ready. Books alone.

Demand is the union of what open readers may still take, their own positions below their horizon,
and a few positions beyond it: these are made but not sent, so that a worker stays busy while
another one makes the batch that holds up the horizon. A batch that is wanted becomes an
`WantedBatch`; the node gives the most urgent of the `candidates`, by (position minus the reader's
next), to a worker that has room. What is ready and not yet taken is bounded in bytes, and the batch
that some reader is owed next is always admitted: else another lane's batches could fill the bound
while everybody waits for this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.server.job.job import Job
from penstock.server.node.demand.batch_spans import BodySpan
from penstock.server.node.demand.cached import CachedBatches
from penstock.server.node.demand.dropped import Dropped
from penstock.server.node.demand.halted import Withheld
from penstock.server.node.demand.lane_assignment import LaneAssignment
from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.made import MadeOffsets
from penstock.server.node.demand.made_ahead import made_ahead
from penstock.server.node.demand.peers import Peers
from penstock.server.node.demand.pending import PendingPlans
from penstock.server.node.demand.wanted import BatchState, Demand, Key, WantedBatch
from penstock.wire.errors import PenstockError
from penstock.wire.numbering import two_ends
from penstock.wire.order import Cut

MAX_CUTS = 64
"""Ways to cut a log into steps of which it is remembered what they drop: readers choose them."""


class Log:
    """Everything that this node does for one job's log.

    Where a finite job ends may become known only as its lanes are planned. Until then batches are
    wanted, and made, at the positions that they have if no further lane ends before them; none is
    given to a reader before its position is known, and as a lane ends those after it move up. What
    nobody wants, but a position depends on, is asked for: it is planned, and not made.

    Args:
        job: The job.
        bound_bytes: The node's bound on bytes that are ready or being made; shared by its logs.
        ahead: How many positions beyond its horizon a reader's batches are made.
        ahead_bytes: As long as these take no more than this, several times as many are.

    Attributes:
        numbering: What is known of the log's order.

    Glossary:
        log: All batches of a job, in order; computed on demand, stored nowhere. What a process
            writes about itself is its **output**, one **message** at a time.
    """

    def __init__(self, job: Job, bound_bytes: int, ahead: int = 0, ahead_bytes: int = 0) -> None:
        self.job, self.bound_bytes = job, bound_bytes
        self._ahead, self._ahead_bytes = ahead, ahead_bytes
        self.numbering = job.numbering()
        self.lanes = [LaneState(n, end=self.numbering.end_of(n)) for n in range(job.lanes)]
        self.pending_plans = PendingPlans(self.numbering, self.lanes)
        self._dropped: dict[Cut, Dropped] = {}  # of finite logs whose order is known
        self.active: set[int] = set()  # lanes with something wanted
        self.entries: dict[Key, WantedBatch] = {}
        self.cached = CachedBatches(bound_bytes)
        self.readers: set[Demand] = set()
        self.peers, self.turn = Peers(), 0.0
        self.ready_bytes = 0  # ready, for somebody
        self.making = 0
        # Before one is made: what is known of it, so that those that are made first have room, too.
        self.largest_bytes, self.largest_body_bytes = job.least_batch_bytes, 0
        self.produced = self.recomputed = self.cache_hits = 0
        self.ticket_s = 0.0  # how long a ticket of this job usually takes
        self.tickets_per_s = 0.0  # a mean of the rates of each: short ones count for more
        self.decodes_videos = job.decodes_videos
        self.takes_media = any(roles.media is not None for roles in job.role_sets)
        self.made = MadeOffsets()
        self.assignment = LaneAssignment(job.reading_groups, job.readings())
        self.begun_change = self.known_change = 0  # of the store's: when the node began, and now
        self.withheld = Withheld(self.numbering, self.lanes, self.readers)
        self.awaited_verdicts = 0  # asked for by workers, and not durable yet
        self.deciding = 0  # verdicts under way: nothing new is planned before workers know them

    def figures(self) -> dict[str, int]:
        """Return how many batches were made, and what is in memory, for the node's status."""
        return {
            "ready_batches": sum(1 for entry in self.entries.values() if entry.span is not None),
            "ready_bytes": self.ready_bytes,
            "kept_bytes": self.cached.nbytes,
            "produced": self.produced,
            "recomputed": self.recomputed,
            "unread": self.cached.unread,
            "cache_hits": self.cache_hits,
            "refused": int(self.withheld.refused is not None),
        }

    def latest(self, most_bytes: int) -> WantedBatch | None:
        """Return the batch that is whole in memory, and stands last; None = there is none.

        Args:
            most_bytes: Larger ones do not count.
        """
        held = [*self.entries.values(), *self.cached.batches.values()]
        ready = [each for each in held if each.is_whole and each.nbytes <= most_bytes]
        return max(ready, key=lambda each: each.key.position, default=None)

    # --- demand ---

    @property
    def ahead(self) -> int:
        """Return how many positions beyond its horizon a reader's batches are made."""
        return made_ahead(self._ahead, self._ahead_bytes, self.largest_bytes, self.ticket_s)

    def key(self, position: int, cut: Cut | None) -> Key:
        """Return what stands at a position, for a reader, if no further lane ends before it."""
        return Key(position, *self.numbering.assume(position, cut))

    def want(self, key: Key, reader: Demand) -> WantedBatch:
        """Return the entry of a batch, wanted by this reader from now on."""
        entry = self.entries.get(key)
        if entry is None:
            entry = self.cached.take(key)
            if entry is not None:
                self.ready_bytes += entry.nbytes
                self.cache_hits += 1
            else:
                entry = WantedBatch(key)
                lane = self.lanes[key.lane]
                if lane.error is not None:
                    entry.state, entry.error = BatchState.FAILED, lane.error
                else:
                    self._queue(entry)
            self.entries[key] = entry
        entry.readers.add(reader)
        if entry.state is BatchState.READY and entry.holder is None:
            entry.hold()
        return entry

    def leave(self, entry: WantedBatch, reader: Demand) -> None:
        """A reader has taken an entry, or wants it no more."""
        entry.readers.discard(reader)
        if entry.holder is reader:
            entry.hold()
        if entry.readers or self.entries.get(entry.key) is not entry:
            return
        if entry.state is BatchState.MAKING:
            return  # it will be kept, or found unwanted, when it is done
        del self.entries[entry.key]
        if entry.state is BatchState.READY:
            self.ready_bytes -= entry.nbytes
            self.cached.keep(entry)
        self.lanes[entry.key.lane].wanted.discard(entry)

    def _queue(self, entry: WantedBatch) -> None:
        entry.state = BatchState.WANTED
        key = entry.key
        self.lanes[key.lane].wanted.add(entry, key.offset, key.position)
        self.active.add(key.lane)

    # --- supply ---

    def push_out(self, entry: WantedBatch) -> None:
        """Free what is ready for later: it is made again when its readers come to it."""
        fresh = self.entries[entry.key] = WantedBatch(entry.key, readers=entry.readers)
        entry.readers = set()
        entry.hold()
        self.ready_bytes -= entry.nbytes
        self.cached.free(entry)
        for reader in fresh.readers:
            reader.replaced(entry, fresh)
        self._queue(fresh)

    @property
    def busy_bytes(self) -> int:
        """Return the bytes that are ready or lent, plus what is reserved for batches being made."""
        held = self.ready_bytes + self.cached.nbytes + self.cached.lent_bytes
        return held + self.making * self.largest_bytes

    def started(self, entry: WantedBatch) -> None:
        """A worker makes this entry now."""
        entry.state = BatchState.MAKING
        self.making += 1

    def ready(
        self, entry: WantedBatch, header: bytes, nbytes: int, body_bytes: int, span: BodySpan | None
    ) -> None:
        """A batch exists: `nbytes` bytes travel, and its reader makes a body of `body_bytes`."""
        if entry.state is not BatchState.MAKING:  # its lane was stopped meanwhile
            if span is not None:
                span.free()
            return
        self.making -= 1
        entry.state, entry.header, entry.span = BatchState.READY, header, span
        # Strings and JSON lie in the header: it takes memory and a place in a message, too.
        entry.nbytes, entry.body_bytes = nbytes + len(header), body_bytes
        self.largest_bytes = max(self.largest_bytes, entry.nbytes)
        self.largest_body_bytes = max(self.largest_body_bytes, body_bytes)
        lane = self.lanes[entry.key.lane]
        lane.deaths.pop(entry.key.offset, None)
        self.produced += 1
        # Not by the highest offset: workers finish the batches of a lane in any order.
        self.recomputed += self.made.add(*entry.key[1:3], blank=entry.key.blank)
        if entry.readers:
            self.ready_bytes += entry.nbytes
            entry.hold()
            for reader in entry.readers:
                reader.settled(entry)
        else:
            self._forget(entry)
            self.cached.keep(entry)

    def _forget(self, entry: WantedBatch) -> None:
        """Take an entry out; another one may stand there for the same batch."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]

    def failed(self, entry: WantedBatch, error: PenstockError) -> None:
        """A batch cannot be made: whoever waits for it is told; who asks later tries again."""
        if entry.state is BatchState.FAILED:
            return  # its lane was stopped meanwhile, and why says more than what comes of it
        if entry.state is BatchState.MAKING:
            self.making -= 1
        self._forget(entry)
        entry.fail(error)

    def back(self, entry: WantedBatch) -> None:
        """The worker that made this entry is gone: somebody else shall make it."""
        if entry.state is not BatchState.MAKING:  # its lane was stopped meanwhile
            return
        self.making -= 1
        if entry.readers:
            self._queue(entry)
        else:
            self._forget(entry)

    # --- where lanes end ---

    def counted_ends(self) -> list[tuple[int, int]]:
        """Return the lanes whose ends were found out, where no arithmetic says them."""
        if not self.job.needs_counting:
            return []
        ends = ((lane, self.numbering.end_of(lane)) for lane in range(self.job.lanes))
        return [(lane, end) for lane, end in ends if end is not None]

    def reached(self, lane: int, batches: int) -> None:
        """Note that a lane holds at least so many batches: that may say where others stand.

        Raises:
            LogDiverged: It was known to hold fewer, be that recorded yet or not.
        """
        if self.numbering.is_complete and not self.numbering.is_finite:
            return
        end = self.lanes[lane].end
        if end is not None and batches > end:
            raise two_ends(lane, end, f"at least {batches}")
        self.numbering.reach(lane, batches)
        for reader in self.readers:
            reader.learned()

    def ends_at(self, lane: int, batches: int) -> None:
        """Note where a lane ends: nothing after that is made. No position depends on it yet.

        Raises:
            LogDiverged: It was found to end elsewhere, or holds more.
        """
        known = self.lanes[lane].end
        if known is None:
            self.numbering.check_end(lane, batches)
            self.lanes[lane].end = batches
        elif known != batches:
            raise two_ends(lane, known, batches)

    def ended(self, ends: Mapping[int, int]) -> None:
        """Note that ends of lanes are recorded, by lane: what comes after them moves up."""
        first = self.numbering.known()
        self.numbering.end_all(ends)
        for entries in (self.entries, self.cached.batches):
            for entry in [each for each in entries.values() if each.key.position >= first]:
                del entries[entry.key]
                self._move(entry, entries)
        for reader in list(self.readers):
            reader.renumber(first)

    def _move(self, entry: WantedBatch, entries: dict[Key, WantedBatch]) -> None:
        """Put an entry to where it stands now, unless it turned out that it stands nowhere."""
        _, lane, offset, _ = entry.key
        if self.lanes[lane].has_ended(offset):
            return
        entry.key = entry.key._replace(position=self.numbering.order.position(lane, offset))
        entries[entry.key] = entry
        if entry.state is BatchState.WANTED:
            self._queue(entry)
        elif entry.holder is not None:
            entry.hold()

    def dropped(self, cut: Cut) -> Dropped:
        """Return what counts the samples that fill no step; only where all ends are known."""
        if cut not in self._dropped:
            if len(self._dropped) >= MAX_CUTS:
                self._dropped.clear()
            self._dropped[cut] = Dropped(self.numbering, cut, self.lanes)
        return self._dropped[cut]

    # --- what is not made any more ---

    def wants(self, entry: WantedBatch) -> bool:
        """Tell whether somebody still waits for this entry to be made."""
        if entry.state is not BatchState.WANTED:
            return False
        if entry.is_asked:
            return self.pending_plans.holds(entry)
        return self.entries.get(entry.key) is entry

    def stop_lane(self, lane: LaneState, error: PenstockError) -> None:
        """Stop a lane by name: nothing of it is made until the node starts again."""
        lane.error = error
        for entry in [e for e in self.entries.values() if e.key.lane == lane.lane]:
            if entry.state in (BatchState.WANTED, BatchState.MAKING):
                self.failed(entry, error)

    def withhold(self, lane: LaneState, error: PenstockError) -> None:
        """Stop a lane whose content is in doubt: what is ready and not sent goes to nobody."""
        self.stop_lane(lane, error)
        self.cached.shed_lane(lane.lane)
        doubted = [e for e in self.entries.values() if e.key.lane == lane.lane]
        # First all of them: a reader that is told of one leaves others, which would then be kept.
        for entry in doubted:
            self._forget(entry)
            self.ready_bytes -= entry.nbytes
            self.cached.free(entry)
        for entry in doubted:
            self.failed(entry, error)
        lane.withhold()

    # --- lines ---

    def lines_of(self, worker: int) -> int:
        """Return how many lines a worker holds for this log."""
        return sum(1 for lane in self.lanes for line in lane.lines if line.worker == worker)

    def drop_lines(self, worker: int) -> None:
        """Forget the lines of a worker that is gone."""
        for lane in self.lanes:
            lane.lines = [line for line in lane.lines if line.worker != worker]
