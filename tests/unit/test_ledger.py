"""A log's ledger: what is pending for whom, what may be made, what is kept; no processes here."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.server.job.job import Job
from penstock.server.media.media_files import MediaFiles
from penstock.server.node.demand.batch_spans import ArenaReader, BodySpan
from penstock.server.node.demand.cached import CACHED_BATCHES, CACHED_SHARE
from penstock.server.node.demand.candidates import candidates
from penstock.server.node.demand.lane_state import KEPT_PLANS
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.peers import MAX_PENDING
from penstock.server.node.demand.room import find_room, has_stalled, is_urgent, lacks, spare
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.node.demand.wanted import BatchState, WantedBatch
from penstock.server.processes.shared_memory import sealed_memory
from penstock.server.roles.processors import FunctionProcessor, VideoProcessor
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadItem, LogDiverged
from penstock.wire.order import Cut, Share

SIZE = 100
ARENA = ArenaReader(sealed_memory("ledger", 4096), 4096)


def make_job(lanes: int = 8, epochs: int | None = None) -> Job:
    return Job(ItemsSource(list(range(30))), batch_size=1, lanes=lanes, epochs=epochs)


def make_counted_job() -> Job:
    """Return a finite job of two lanes, of which nobody knows where they end."""
    processor = FunctionProcessor(lambda raw: [{"x": raw}])
    return Job(ItemsSource(list(range(30))), processor=processor, batch_size=1, lanes=2, epochs=1)


def whole(
    log: Log, horizon: int, start: int = 0, lanes: frozenset[int] | None = None
) -> StreamDemand:
    """Return a reader of every position."""
    reader = StreamDemand(log, Share(1, 0, 1), None, start, lanes, lambda: None)
    reader.extend(horizon)
    return reader


def best(log: Log) -> WantedBatch | None:
    """Return the most urgent entry that may be made, as a node picks it."""
    for one in sorted(candidates(log), key=lambda one: one.rank):
        if is_urgent(one.entry) or lacks(log, one.entry, log.busy_bytes) <= 0:
            return one.entry
    return None


def span_of(nbytes: int, give_back: Callable[[], None]) -> BodySpan:
    """Return a body of zeros."""
    return BodySpan(ARENA, 0, memoryview(bytes(nbytes)), give_back)


def finish(
    log: Log, entry: WantedBatch, nbytes: int = SIZE, header: bytes = b""
) -> list[WantedBatch]:
    """Make an entry; return a list that holds it once its bytes were let go."""
    let_go: list[WantedBatch] = []
    if entry.state is BatchState.WANTED:
        log.started(entry)
    log.ready(entry, header, nbytes, nbytes, span_of(nbytes, lambda: let_go.append(entry)))
    return let_go


def test_headers_take_nothing_of_the_room_for_bodies() -> None:
    """A consumer counts bodies: counted otherwise here, its room would shrink with every batch."""
    log = Log(make_job(), bound_bytes=10**9)
    reader = whole(log, 100)

    for position in range(100):
        reader.grant(0, (position + 1) * SIZE)  # what has come, and one more
        finish(log, next(candidates(log)).entry, SIZE, b"h" * SIZE)
        taken = reader.take()
        assert taken is not None
        reader.sent(taken)


def test_a_few_batches_are_made_beyond_the_horizon_and_not_sent() -> None:
    """They are sent at once when the horizon has passed them; what failed there is tried again."""
    woken: list[int] = []
    log = Log(make_job(), bound_bytes=10**9, ahead=3)
    reader = StreamDemand(log, Share(1, 0, 1), None, 0, None, lambda: woken.append(1))
    reader.extend(2)
    assert {key.position for key in log.entries} == {0, 1}, "its size is not known yet"
    finish(log, next(candidates(log)).entry)
    assert reader.take() is not None
    made = {entry.key.position: entry for entry in log.entries.values()}
    assert sorted(made) == [0, 1, 2, 3, 4]
    finish(log, made[1])
    assert len(woken) == 2
    for position in (2, 3):
        finish(log, made[position])
    log.started(made[4])
    log.failed(made[4], BadItem("no"))
    assert len(woken) == 2, "nobody is woken for what may not be sent"
    assert [reader.take(), reader.take()] == [made[1], None]
    assert reader.next_pending is None

    reader.extend(5)
    assert [reader.take(), reader.take(), reader.take()] == [made[2], made[3], None]
    assert reader.next_pending is not made[4]
    assert reader.next_pending is not None
    assert reader.next_pending.state is BatchState.WANTED
    reader.close()
    assert not any(entry.state is BatchState.WANTED for entry in log.entries.values())


@pytest.mark.parametrize(
    ("ahead_bytes", "ticket_s", "most"),
    [(0, 0.0005, 3), (5 * SIZE, 0.1, 5), (99 * SIZE, 0.1, 6), (99 * SIZE, 0.0005, 24)],
)
def test_more_is_made_ahead_where_batches_are_small(
    ahead_bytes: int, ticket_s: float, most: int
) -> None:
    """As many as the bytes hold: at least the number that is given, at most twice as many.

    Or eight times as many, where they are cheap, too.
    """
    log = Log(make_job(), bound_bytes=10**9, ahead=3, ahead_bytes=ahead_bytes)
    log.ticket_s = ticket_s
    reader = StreamDemand(log, Share(1, 0, 1), None, 0, None, lambda: None)
    reader.extend(1)
    finish(log, next(candidates(log)).entry)
    reader.extend(2)
    assert reader.take() is not None

    assert max(key.position for key in log.entries) == 1 + most
    reader.close()


def test_nothing_is_made_ahead_above_the_bound() -> None:
    """What lies beyond the horizon is not owed, though it be the next of all."""
    log = Log(make_job(), bound_bytes=SIZE, ahead=3)
    reader = whole(log, 1)
    finish(log, next(candidates(log)).entry)
    assert reader.take() is not None
    assert reader.head == 1
    assert best(log) is None
    reader.extend(2)
    entry = best(log)
    assert entry is not None
    assert entry.key.position == 1


def test_the_owed_batch_is_admitted_above_the_bound() -> None:
    """With a bound below one batch every reader still gets its next one, and no other is made."""
    log = Log(make_job(), bound_bytes=SIZE // 2)
    readers = [whole(log, 8), whole(log, 24, start=16)]
    finish(log, next(candidates(log)).entry)

    made = []
    while (entry := best(log)) is not None:
        made.append(entry.key.position)
        finish(log, entry)

    assert sorted({0, *made}) == [0, 16]
    assert [reader.head for reader in readers] == [0, 16]


def test_what_is_kept_for_a_wide_horizon_gives_way_to_what_is_pending() -> None:
    """Farthest first, never what is owed or being sent, and only where the allowance is used up."""
    log = Log(make_job(), bound_bytes=3 * SIZE)
    wide, near = whole(log, 1 << 30), whole(log, 6, start=6)
    near.extend(100)
    made = {}
    for position in (0, 1, 2, 6, 7):
        [made[position]] = [e for e in wide.pending.values() if e.key.position == position]
        finish(log, made[position])
    sending = near.take()

    pending = near.next_pending
    assert pending is made[7]
    missing = near.pending[8]
    assert lacks(log, missing, log.busy_bytes) > 0
    assert list(spare(missing, [log])) == []  # nobody is owed it, and nobody has stalled
    wide.moved_at -= 60
    assert [entry.key.position for _, entry, _ in spare(missing, [log])] == [2, 1]

    log.push_out(made[2])
    assert [entry.key.position for _, entry, _ in spare(missing, [log])] == [1]
    assert wide.pending[2] is not made[2]
    assert wide.pending[2].state is BatchState.WANTED
    assert log.ready_bytes == 4 * SIZE
    assert sending is made[6]
    finish(log, wide.pending[2])
    assert [entry.key.position for entry in (wide.take(), wide.take(), wide.take()) if entry] == [
        0,
        1,
        2,
    ]


def test_a_reader_that_takes_what_is_ready_has_not_stalled() -> None:
    """Though its next batch is always there already: then nothing else shows that it moves."""
    log = Log(make_job(), bound_bytes=10**9)
    reader = whole(log, 8)
    for entry in list(reader.pending.values()):
        finish(log, entry)
    reader.moved_at -= 60
    assert has_stalled(reader)

    assert reader.take() is not None
    assert not has_stalled(reader)


def test_a_head_does_not_wait_behind_another_readers_batches() -> None:
    """In one lane a reader far ahead is served although one behind it takes nothing."""
    log = Log(make_job(lanes=1), bound_bytes=SIZE)
    stalled = whole(log, 50)
    finish(log, next(candidates(log)).entry)
    ahead = whole(log, 60, start=40)

    taken = []
    for _ in range(20):
        entry = best(log)
        if entry is not None:
            finish(log, entry)
        ready = ahead.take()
        if ready is not None:
            taken.append(ready.key.position)
            ahead.sent(ready)

    assert taken == list(range(40, 60))
    assert stalled.head == 0


def test_batches_of_a_lane_are_taken_in_order() -> None:
    """What is ready early waits for what comes before it in its lane, not for other lanes."""
    log = Log(make_job(lanes=2), bound_bytes=10**9)
    reader = whole(log, 6)
    entries = {entry.key.position: entry for entry in reader.pending.values()}

    for position in (2, 4, 3):
        finish(log, entries[position])
    assert reader.take() is None
    finish(log, entries[1])
    order = []
    while (entry := reader.take()) is not None:
        order.append(entry.key.position)
        reader.sent(entry)

    assert order == [1, 3]
    assert reader.head == 0


def test_a_batch_is_made_once_for_all_readers_in_its_window() -> None:
    """Two readers of the same positions share an entry; its bytes go when both have taken it."""
    log = Log(make_job(), bound_bytes=10**9)
    one, two = whole(log, 1), whole(log, 1)
    assert one.pending[0] is two.pending[0]
    finish(log, one.pending[0])

    first = one.take()
    assert first is not None
    one.sent(first)
    assert log.ready_bytes == SIZE
    second = two.take()
    assert second is first
    two.sent(second)

    assert (log.ready_bytes, log.cached.nbytes, log.produced) == (0, SIZE, 1)


@pytest.mark.parametrize("seed", range(5))
def test_made_again_is_what_was_made_before(seed: int) -> None:
    """Not what finishes after a later batch of its lane, nor the padding of a batch's shapes."""
    log = Log(make_job(lanes=2), bound_bytes=10**9)
    reader = whole(log, 40)
    entries = list(reader.pending.values())
    random.Random(seed).shuffle(entries)
    for entry in entries:
        finish(log, entry)
    assert (log.produced, log.recomputed) == (40, 0), seed

    for again in entries[:3]:
        log.push_out(again)
        finish(log, log.entries[again.key])
    assert (log.produced, log.recomputed) == (43, 3), seed

    padding = log.want(entries[5].key._replace(blank=True), reader)
    finish(log, padding)
    assert (log.produced, log.recomputed) == (44, 3), seed
    assert entries[5].key[1:3] in log.made


def test_a_late_reader_takes_what_is_kept() -> None:
    """A batch that everybody has taken is kept for those who come soon after: it is made once."""
    log = Log(make_job(), bound_bytes=10**9)
    early = whole(log, 1)
    finish(log, early.pending[0])
    entry = early.take()
    assert entry is not None
    early.sent(entry)

    late = whole(log, 1)

    assert late.take() is entry
    assert (log.produced, log.cached.nbytes) == (1, 0)


@pytest.mark.parametrize("bound", [10 * CACHED_SHARE * SIZE, 10**9])
def test_what_is_kept_is_bounded(bound: int) -> None:
    """By number and by a share of the byte bound; the oldest goes first."""
    log = Log(make_job(), bound_bytes=bound)
    reader = whole(log, 300)
    let_go: list[list[WantedBatch]] = []
    for _ in range(300):
        entry = best(log)
        assert entry is not None
        let_go.append(finish(log, entry))
        taken = reader.take()
        assert taken is entry
        reader.sent(taken)

    limit = min(CACHED_BATCHES, bound // CACHED_SHARE // SIZE)
    assert len(log.cached.batches) == limit
    assert log.cached.nbytes == limit * SIZE
    assert [bool(one) for one in let_go] == [True] * (300 - limit) + [False] * limit
    log.cached.shed()
    assert all(let_go)
    assert log.busy_bytes == 0


def test_what_nobody_was_given_is_counted_when_it_is_let_go() -> None:
    """Of ten that are ready three are taken, and one of the others by a reader that comes later."""
    log = Log(make_job(), bound_bytes=10**9)
    gone = whole(log, 10)
    for entry in list(gone.pending.values()):
        finish(log, entry)
    for _ in range(3):
        taken = gone.take()
        assert taken is not None
        gone.sent(taken)
    gone.close()
    assert (log.figures()["kept_bytes"], log.figures()["unread"]) == (10 * SIZE, 0)

    late = whole(log, 4)
    for _ in range(4):
        taken = late.take()
        assert taken is not None
        late.sent(taken)
    late.close()
    log.cached.shed()

    assert (log.produced, log.cache_hits) == (10, 4)
    assert log.figures()["unread"] == 6


def test_bytes_stay_while_a_stream_writes_them() -> None:
    """An evicted batch is let go only when the last stream has written it."""
    log = Log(make_job(), bound_bytes=0)
    one, two = whole(log, 1), whole(log, 1)
    let_go = finish(log, one.pending[0])
    first, second = one.take(), two.take()
    assert first is not None
    assert second is first

    one.sent(first)
    assert not let_go
    two.sent(second)

    assert let_go == [first]
    assert first.span is None


def test_what_is_lent_counts_until_it_comes_back() -> None:
    """Evicted or not, once: it is memory of the node, and nothing else may have it."""
    log = Log(make_job(), bound_bytes=0)
    reader = whole(log, 2)
    for position in (0, 1):
        finish(log, reader.pending[position])
    entry = reader.take()
    assert entry is not None
    entry.pins += 1  # a loan

    reader.sent(entry)

    assert entry.evicted
    assert (log.cached.lent_bytes, log.busy_bytes) == (SIZE, 2 * SIZE)
    log.cached.shed()
    assert log.cached.lent_bytes == SIZE
    entry.unpin()
    assert (log.cached.lent_bytes, log.busy_bytes, entry.span) == (0, SIZE, None)


def test_a_failure_is_told_in_order_and_may_be_tried_again() -> None:
    """Batches before the failed one are delivered; who asks anew gets a new attempt."""
    log = Log(make_job(lanes=2), bound_bytes=10**9)
    reader = whole(log, 4)
    entries = dict(reader.pending)
    log.started(entries[1])
    log.failed(entries[1], BadItem("item 7 is bad"))
    assert reader.take() is None
    finish(log, entries[0])

    assert reader.take() is entries[0]
    with pytest.raises(BadItem, match="item 7"):
        reader.take()
    again = whole(log, 4)

    assert again.pending[1] is not entries[1]
    assert again.pending[1].state is BatchState.WANTED


def test_a_stopped_lane_fails_all_that_waits_and_whoever_comes() -> None:
    """Only that lane; and an answer that comes too late is let go without a trace in the ledger."""
    log = Log(make_job(lanes=2), bound_bytes=10**9)
    reader = whole(log, 6)
    making = reader.pending[3]
    log.started(making)

    log.stop_lane(log.lanes[1], BadItem("poison"))
    let_go = finish(log, making)
    late = whole(log, 6)

    assert [entry.state for entry in reader.pending.values()] == [
        BatchState.WANTED,
        BatchState.FAILED,
    ] * 3
    assert let_go == [making]
    assert (log.making, log.ready_bytes) == (0, 0)
    assert late.pending[1].state is BatchState.FAILED
    log.back(making)
    assert making.state is BatchState.FAILED


def test_what_is_in_doubt_counts_once_however_its_readers_hear_of_it() -> None:
    """A reader that is told of one such batch leaves others, which nobody may have any more."""
    log = Log(make_job(lanes=1), bound_bytes=10**9, ahead=6)
    reader = whole(log, 1)
    finish(log, next(candidates(log)).entry)
    taken = reader.take()
    assert taken is not None
    reader.sent(taken)
    made = [entry for entry in log.entries.values() if entry.key.position < 6]
    let_go = [finish(log, entry) for entry in made]

    log.withhold(log.lanes[0], BadItem("no"))

    assert (log.ready_bytes, log.cached.nbytes, log.busy_bytes) == (0, 0, 0)
    assert let_go == [[entry] for entry in made]
    assert whole(log, 3).pending[2].state is BatchState.FAILED


def test_what_is_known_is_given_before_an_unknown_position_fails() -> None:
    """Whoever gathers batches into a message is told of no error: it would lose them."""
    log = Log(make_counted_job(), bound_bytes=10**9)
    reader = StreamDemand(log, Share(1, 0, 1), Cut(1), 0, None, lambda: None)
    reader.extend(6)
    entries = dict(reader.pending)
    for lane in (0, 1):
        finish(log, entries[lane])
        log.reached(lane, 1)
    log.started(entries[2])
    log.failed(entries[2], BadItem("no"))

    assert [reader.take(), reader.take(lambda _: True)] == [entries[0], entries[1]]
    assert reader.take(lambda _: True) is None
    with pytest.raises(BadItem):
        reader.take()


def test_a_reader_of_some_lanes_asks_for_what_it_has_passed_over() -> None:
    """As far as is known its positions are of another lane; where that has ended they are not."""
    log = Log(make_counted_job(), bound_bytes=10**9)
    lanes = log.job.lanes
    reader = StreamDemand(log, Share(lanes, 0, lanes), Cut(lanes), 0, frozenset({1}), lambda: None)
    reader.extend(3 * lanes)
    assert not reader.pending
    assert [entry.key[1:3] for entry in log.pending_plans.wanted(log.readers)] == [(0, 0)]

    for lane in range(lanes):
        log.reached(lane, 1)
    assert reader.lacks == lanes
    asked = list(log.pending_plans.wanted(log.readers))
    asked[-1].fail(BadItem("no"))
    assert reader.take(lambda _: True) is None
    with pytest.raises(BadItem):
        reader.take()

    log.ends_at(0, 1)
    log.ended({0: 1})
    log.reached(1, 2)
    assert next(iter(reader.pending.values())).key[1:3] == (1, 1)
    assert reader.lacks is None or reader.lacks > lanes


def test_of_two_offsets_of_a_lane_the_nearer_is_asked_for() -> None:
    """The farther reader gets there, too, and both are told why it cannot be planned."""
    log = Log(make_counted_job(), bound_bytes=10**9)
    lanes = log.job.lanes
    near, far = [
        StreamDemand(log, Share(1, 0, 1), Cut(1), start, None, lambda: None)
        for start in (0, 5 * lanes)
    ]
    for reader in (near, far):
        reader.extend(9 * lanes)
    for order in ((near, far), (far, near)):
        asked = {entry.key.lane: entry for entry in log.pending_plans.wanted(order)}
        assert asked[0].key.offset == 0
        assert asked[0].readers == {near, far}


def test_a_lane_holds_no_more_than_an_end_that_is_about_to_be_recorded() -> None:
    """Else what contradicts it were noticed as it is recorded, too late to stop the lane alone."""
    log = Log(make_counted_job(), bound_bytes=10**9)
    log.ends_at(1, 3)
    log.reached(1, 3)

    with pytest.raises(LogDiverged, match="3 batches, and now holds at least 4"):
        log.reached(1, 4)
    log.ended({1: 3})
    assert log.numbering.end_of(1) == 3


def test_an_unwanted_batch_is_kept_when_it_is_done() -> None:
    """A reader that leaves takes its demand along; what is being made is not lost."""
    log = Log(make_job(), bound_bytes=10**9)
    reader = whole(log, 3)
    making, waiting = reader.pending[0], reader.pending[1]
    log.started(making)

    reader.close()
    finish(log, making)

    assert not log.wants(waiting)
    assert list(log.cached.batches) == [making.key]
    assert list(candidates(log)) == []
    assert (log.entries, log.making) == ({}, 0)


def test_an_orphan_never_displaces_the_entry_that_took_its_place() -> None:
    """A late failure of an entry that nobody wants leaves the new entry for the batch alone."""
    log = Log(make_job(), bound_bytes=10**9)
    first = whole(log, 1)
    orphan = first.pending[0]
    first.close()
    second = whole(log, 1)

    log.failed(orphan, BadItem("late"))

    assert log.wants(second.pending[0])
    assert best(log) is second.pending[0]


@pytest.mark.parametrize("horizon", [MAX_PENDING - 1, MAX_PENDING, 5000, 2**62])
def test_a_horizon_is_only_a_number(horizon: int) -> None:
    """However far it lies, what is wanted at once is bounded, and moves on as batches are taken."""
    log = Log(make_job(), bound_bytes=10**9)
    reader = whole(log, horizon)
    assert len(reader.pending) == min(horizon, MAX_PENDING)

    for position in range(1500 if horizon > 1500 else horizon):
        finish(log, reader.pending[position])
        taken = reader.take()
        assert taken is not None
        assert taken.key.position == position
        reader.sent(taken)

    assert len(log.entries) <= MAX_PENDING


def test_lanes_that_never_meet_the_rank_cost_nothing() -> None:
    """A far horizon over lanes that this rank never reads ends at once."""
    log = Log(make_job(lanes=2), bound_bytes=10**9)
    reader = StreamDemand(log, Share(2, 0, 2), None, 0, frozenset({1}), lambda: None)

    reader.extend(2**62)

    assert reader.pending == {}


def test_wanted_lanes_alone_are_taken_to_the_end_of_a_finite_log() -> None:
    """A reader of some lanes is finished when the log is, however few are its own."""
    job = make_job(lanes=3, epochs=2)
    log = Log(job, bound_bytes=10**9)
    cut = Cut(1)
    woken: list[int] = []
    reader = StreamDemand(log, Share(1, 0, 1), cut, 0, frozenset({2}), lambda: woken.append(1))
    reader.extend(2**62)

    positions = []
    for _ in range(200):
        for entry in list(reader.pending.values()):
            if entry.state is BatchState.WANTED:
                finish(log, entry)
        taken = reader.take()
        if taken is not None:
            positions.append(taken.key.position)
            reader.sent(taken)

    assert reader.finished
    assert positions == [p for p in range(60) if job.locate(p).lane == 2]


def test_plans_are_remembered_in_a_ring() -> None:
    """The latest plans of a lane stay, so that a batch costs itself again and not a replay."""
    log = Log(make_job(), bound_bytes=10**9)
    lane = log.lanes[0]

    for offset in range(3 * KEPT_PLANS):
        lane.remember_plan(offset, b"plan")

    assert list(lane.plans) == list(range(2 * KEPT_PLANS, 3 * KEPT_PLANS))


@dataclass
class _Model:
    """What must be true of a log with some readers, whatever happens in whatever order."""

    rng: random.Random
    log: Log
    readers: list[StreamDemand] = field(default_factory=list)
    goals: dict[StreamDemand, list[int]] = field(default_factory=dict)
    taken: dict[StreamDemand, list[int]] = field(default_factory=dict)
    making: list[WantedBatch] = field(default_factory=list)
    held: list[tuple[StreamDemand, WantedBatch]] = field(default_factory=list)
    lives: int = 0

    def open(self) -> None:
        rank = self.rng.randrange(2)
        share = self.rng.choice([Share(1, 0, 1), Share(2, rank, 2), Share(4, rank * 2, 4)])
        start, count = self.rng.randrange(40), self.rng.randrange(1, 40)
        reader = StreamDemand(self.log, share, None, start, None, lambda: None)
        self.readers.append(reader)
        first = share.at_or_after(start)
        self.goals[reader] = [first + n * share.world_size for n in range(count)]
        self.taken[reader] = []

    def extend(self) -> None:
        if self.readers:
            reader = self.rng.choice(self.readers)
            reader.extend(min(reader.horizon + self.rng.randrange(20), self.goals[reader][-1] + 1))

    def give(self) -> None:
        entry = best(self.log)
        if entry is not None:
            self.log.started(entry)
            self.making.append(entry)

    def answer(self) -> None:
        if self.making:
            entry = self.making.pop(self.rng.randrange(len(self.making)))
            if self.rng.random() < 0.1:
                self.log.back(entry)  # its worker died
                return
            nbytes = self.rng.choice([0, 1, SIZE, 3 * SIZE])
            self.lives += 1
            self.log.ready(entry, b"", nbytes, nbytes, span_of(nbytes, self.die))

    def die(self) -> None:
        self.lives -= 1

    def take(self) -> None:
        if self.readers:
            reader = self.rng.choice(self.readers)
            entry = reader.take()
            if entry is not None:
                self.taken[reader].append(entry.key.position)
                self.held.append((reader, entry))

    def send(self) -> None:
        if self.held:
            reader, entry = self.held.pop(self.rng.randrange(len(self.held)))
            reader.sent(entry)

    def leave(self) -> None:
        if self.readers and self.rng.random() < 0.2:
            reader = self.readers.pop(self.rng.randrange(len(self.readers)))
            for held in [one for one in self.held if one[0] is reader]:
                self.held.remove(held)
                reader.sent(held[1])
            reader.close()
            self.goals.pop(reader)

    def check(self) -> None:
        log = self.log
        ready = [e for e in log.entries.values() if e.state is BatchState.READY]
        assert log.ready_bytes == sum(entry.nbytes for entry in ready)
        assert log.cached.nbytes == sum(entry.nbytes for entry in log.cached.batches.values())
        assert log.making == len(self.making)
        assert log.cached.nbytes <= log.bound_bytes // CACHED_SHARE
        for positions in self.taken.values():
            by_lane: dict[int, list[int]] = {}
            for position in positions:
                by_lane.setdefault(log.numbering.assume(position).lane, []).append(position)
            assert all(one == sorted(one) for one in by_lane.values())


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_every_reader_gets_its_positions(seed: int) -> None:
    """Random readers, answers, deaths and bounds: nothing stalls, repeats, leaks or overtakes.

    At the end everything is let run: every reader has taken exactly its positions, and no bytes
    are alive but those that are kept.
    """
    rng = random.Random(seed)
    bound = rng.choice([0, SIZE, 5 * SIZE, 100 * SIZE])
    model = _Model(rng, Log(make_job(rng.choice([1, 3, 8])), bound))
    acts: list[Callable[[], None]] = [
        model.open,
        model.leave,
        *[model.extend] * 4,
        *[model.give] * 6,
        *[model.answer] * 6,
        *[model.take] * 6,
        *[model.send] * 6,
    ]

    for _ in range(400):
        rng.choice(acts)()
        model.check()
    for reader, goal in model.goals.items():
        reader.extend(goal[-1] + 1)
    for _ in range(20_000):
        if all(len(model.taken[r]) == len(goal) for r, goal in model.goals.items()):
            break
        for act in (model.give, model.answer, model.take, model.send):
            act()

    for reader, goal in model.goals.items():
        assert sorted(model.taken[reader]) == goal, f"seed {seed}"
    while model.held or model.making:
        model.send()
        model.answer()
    model.check()
    for reader in list(model.readers):
        reader.close()
    assert not any(entry.state is BatchState.READY for entry in model.log.entries.values())
    model.log.cached.shed()
    assert model.lives == 0, f"seed {seed}: bytes were never let go"


@dataclass
class Rank:
    """A consumer as a client behaves: a bound in bytes, and one stream to each node."""

    readers: list[StreamDemand]
    share: Share
    bound: int
    prefetch: int
    next: int = 0
    ready: dict[int, int] = field(default_factory=dict)  # by position, its size
    received: list[int] = field(default_factory=list)  # by stream
    most: int = 0

    def tell(self, stream: int) -> None:
        """Tell one node where it is, and what that node's stream may have sent."""
        held = sum(size for at, size in self.ready.items() if at >= self.next)
        self.readers[stream].grant(self.next, max(1, self.received[stream] + self.bound - held))
        self.readers[stream].extend(self.share.nth_after(self.next, self.prefetch))

    def take(self) -> bool:
        """Take the next batch, if it is there."""
        if self.next not in self.ready:
            return False
        self.ready.pop(self.next)
        self.next = self.share.nth_after(self.next, 1)
        return True


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_in_bytes_never_leaves_anybody_waiting(seed: int) -> None:
    """Whatever the sizes, the order of making and the messages that come late: all is delivered.

    Three ranks, lanes far apart in size and a batch larger than the bound, on one node or split
    over two that know nothing of each other. What lies at a rank stays within its bound for each
    stream, and one batch more.
    """
    rng = random.Random(seed)
    nodes, lanes, bound, end = 1 + seed % 2, 4, 1000, 60
    logs = [Log(make_job(lanes), bound_bytes=10**9) for _ in range(nodes)]
    sizes = [(1, 10, 300, 900)[position % lanes] for position in range(end)]
    sizes[rng.randrange(end)] = 5000
    ranks = []
    for number in range(3):
        share = Share(3, number, 3)
        readers = [
            StreamDemand(
                log, share, None, number, frozenset(range(node, lanes, nodes)), lambda: None
            )
            for node, log in enumerate(logs)
        ]
        ranks.append(Rank(readers, share, bound, prefetch=30, next=number))
        ranks[-1].received = [0] * nodes
        for stream in range(nodes):
            ranks[-1].tell(stream)

    for _ in range(20_000):
        if all(rank.next >= end for rank in ranks):
            break
        log = rng.choice(logs)
        wanted = [one.entry for one in candidates(log) if one.entry.key.position < end]
        if wanted:
            entry = rng.choice(wanted)
            finish(log, entry, sizes[entry.key.position])
        rank, stream = rng.choice(ranks), rng.randrange(nodes)
        reader = rank.readers[stream]
        if (taken := reader.take()) is not None:
            assert taken.key.position not in rank.ready
            rank.received[stream] += taken.nbytes
            rank.ready[taken.key.position] = taken.nbytes
            reader.sent(taken)
            held = sum(size for at, size in rank.ready.items() if at >= rank.next)
            beside = held - max(rank.ready.values())
            assert beside <= nodes * bound
        for _ in range(rng.randrange(3)):
            rank.take()
        if rng.random() < 0.5:
            rank.tell(rng.randrange(nodes))

    assert [rank.next >= end for rank in ranks] == [True] * 3


def test_before_the_first_batch_of_videos_only_what_is_owed_is_made(tmp_path: Path) -> None:
    """Nobody knows how large they are: four of 100 MB each would be made before one is counted."""
    items = ItemsSource([{"video": "a.mp4"}] * 30)
    processor = VideoProcessor()
    (tmp_path / "a.mp4").touch()
    media = MediaFiles(str(tmp_path), endings=[".mp4"])
    job = Job(items, processor=processor, batch_size=1, lanes=8, media=media)
    log = Log(job, bound_bytes=10 * SIZE)
    readers = [whole(log, 4), whole(log, 8, start=4)]

    made = [one.entry for one in candidates(log) if find_room(log, one.entry, [log])]

    assert {entry.key.position for entry in made} == {0, 4}
    log.started(made[0])
    log.ready(made[0], b"", SIZE, SIZE, span_of(SIZE, lambda: None))
    found = [one.entry for one in candidates(log) if find_room(log, one.entry, [log])]
    assert {entry.key.position for entry in found} == {1, 2, 3, 4, 5, 6, 7}
    assert len(readers) == 2
