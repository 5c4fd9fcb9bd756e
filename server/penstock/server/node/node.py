"""A loader node: demand in, tickets out to workers, batches back, snapshots to the store.

Everything here runs in one event loop. Nothing here knows gRPC: `penstock.server.rpc` opens the
readers, whose demand it is.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import hashlib
import itertools
import json
import operator
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import structlog

from penstock.server.core import libraries
from penstock.server.core.refs import Verdict
from penstock.server.job import Job
from penstock.server.node.books import (
    MAX_LINES_PER_LANE,
    MAX_STARTS,
    PLANS_AHEAD,
    Candidate,
    LaneState,
    LineState,
    Log,
    Start,
)
from penstock.server.node.channel import Message, Misspoken
from penstock.server.node.counting import Count
from penstock.server.node.entry import Entry, State
from penstock.server.node.page import Note
from penstock.server.node.process import Ticket, WorkerProcess
from penstock.server.node.reader import Reader
from penstock.server.node.setups import Setups
from penstock.server.pipeline.items import Items, VerdictBook
from penstock.server.pipeline.line import MAX_EMPTIED, far, only_padding
from penstock.server.pipeline.planner import Planner
from penstock.server.sources.catalog import pack_catalogs
from penstock.server.store.base import JobRecord, Seen, SnapshotRecord, Store
from penstock.wire.errors import (
    ERRORS,
    Internal,
    LogDiverged,
    PenstockError,
    StoreUnavailable,
    UnknownJob,
    WorkerCrashed,
)
from penstock.wire.order import Share, Tail

log = structlog.get_logger("penstock.node")

MAX_DEATHS = 3
"""An item that kills its worker so often, while its lane gets no further, stops the lane."""

START_DEADLINE_S, END_GRACE_S = 120.0, 2.0

ITEM_DEADLINE_S = 150.0
"""How long one item may take. Three times this, and two restarts, are below a client's deadline of
540 s: it hears of the item, and not of a timeout."""

HELD_UP_S, HELD_UP_SHARE, HELD_UP_TICKETS = 10.0, 0.25, 4.0
"""A worker is held up when it has been at one thing for so long, or for this share of the item
deadline where that is less; but never before several times what a ticket of that job usually takes:
to plan its lanes again elsewhere would cost a slow job more than to wait."""

GIVE_WAY_S = 5.0
"""How long after a worker has ended over a batch other batches go before it."""

MAX_RESTART_DELAY_S = 5.0
WATCH_S = 0.5
STORE_RETRY_S, STORE_DEADLINE_S = 0.5, 60.0


VERIFY_EVERY = 1000
"""One batch in so many is made twice, by another worker where there is one, and compared."""

CHEAP_S = 0.001
"""Tickets of a job that take less are given whole, planning and making, to one worker: to send a
plan to another one, and to wake it up, costs as much as it would save."""

MAX_CHECKS = 16

SET_UP_S = 5.0
"""How long readers of other jobs wait for a worker that sets up a job which nobody reads."""

AHEAD_PER_WORKER = 4
"""Positions beyond a reader's horizon that are made, for each worker. Batches take unlike times, so
a reader that accepts four ahead of a slow one left workers without work: text went 1.2 times as
fast with this."""

_RANK = operator.attrgetter("rank")


class Observer:
    """What a node tells as it works; metrics are made of it. The default listens to nothing."""

    def produced(self, job: str, nbytes: int, counts: Mapping[str, int]) -> None:
        """A batch was made."""

    def worked(
        self,
        job: str,
        batches: int,
        stages_s: Mapping[str, float],
        read_bytes: int,
        drawn: int,
    ) -> None:
        """What some batches cost: a worker's seconds by stage, bytes read from storage, draws."""

    def counted(
        self, job: str, lane: int, counters: Mapping[str, int], before: Mapping[str, int]
    ) -> None:
        """The counters of a lane since its beginning, now and when its line was opened."""

    def quarantined(self, job: str, left_out: Mapping[tuple[str, str], int]) -> None:
        """How many items are left out now, by stage and kind of reason."""

    def worker_died(self) -> None:
        """A worker process ended unasked."""

    def failed(self, job: str, code: str) -> None:
        """A batch could not be made."""

    def verified(self, job: str, pure: bool) -> None:
        """A batch was made twice, and was the same, or was not."""


def _is_about(note: Note, ticket: Ticket) -> bool:
    """Tell whether a worker's note is about this ticket; without a lane, about all of its job."""
    return note.job == ticket.log.job.name and note.lane in (None, ticket.lane.lane)


def _in_the_way(note: Note) -> str:
    """Return in words what a worker is doing for somebody else."""
    if note.stage in ("", "idle"):
        return ""
    return f"{note.item or note.stage} of job {note.job!r}"


class Node:
    """One loader node.

    Args:
        target: The job file: workers load it themselves.
        jobs: The jobs that it holds.
        store: Where snapshots and verdicts go; open.
        workers: How many worker processes.
        bound_bytes: How many bytes of batches may be ready or being made.
        snapshot_seconds: The least time between two writes of snapshots.
        observer: Told what happens.
    """

    def __init__(
        self,
        target: str,
        jobs: Mapping[str, Job],
        store: Store,
        *,
        workers: int,
        bound_bytes: int,
        snapshot_seconds: float = 2.0,
        item_deadline_s: float = ITEM_DEADLINE_S,
        observer: Observer | None = None,
    ) -> None:
        self.target, self.jobs, self.store = target, dict(jobs), store
        self.bound_bytes, self.snapshot_seconds = bound_bytes, snapshot_seconds
        self.item_deadline_s = item_deadline_s
        self.observer = observer or Observer()
        self.incarnation = uuid.uuid4().hex[:12]
        self.logs: dict[str, Log] = {}
        self.verdicts: dict[str, VerdictBook] = {}
        self._files_fd = -1
        self.workers = [self._new_worker(number) for number in range(workers)]
        self.draining = False
        self.on_fatal: Callable[[], None] = lambda: None
        self.started_at = time.monotonic()
        self._seekable: dict[str, bool] = {}
        self._numbers = itertools.count(1)
        self._checks: dict[int, tuple[Ticket, bytes]] = {}
        self._unsaved: dict[tuple[bytes, int], SnapshotRecord] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._failed_starts = 0
        self._setups = Setups()
        self._all_ready = asyncio.Event()
        self._start_error: PenstockError | None = None
        self._drained: dict[int, asyncio.Future[None]] = {}
        self._page_seen: dict[int, tuple[int, float]] = {}
        self._waiting: dict[str, Entry] = {}  # by job, its most urgent batch a turn ago
        self._libraries: dict[str, dict[str, str]] = {}  # by job, what was compared already
        self._died_at: dict[int, float] = {}  # by worker, as long as it is not replaced

    def _new_worker(self, number: int) -> WorkerProcess:
        return WorkerProcess(
            number, self.target, self._message, self._death, files_fd=self._files_fd
        )

    # --- life ---

    async def start(self) -> None:
        """Start the workers and wait until all are ready.

        Raises:
            Internal: A worker does not start.
        """
        self._loop = asyncio.get_running_loop()
        for name, job in self.jobs.items():
            if job.needs_counting:
                ends = await self.store.lane_ends(job.log_id)
                if len(ends) == job.lanes:
                    job.set_lane_ends([ends[lane] for lane in range(job.lanes)])
            if not job.needs_counting or job.lane_ends is not None:
                self._hold(job)
            await self.store.register_job(JobRecord(name, job.log_id, job.plan))
            self.verdicts[name] = VerdictBook(await self.store.verdicts(job.log_id))
            self.observer.quarantined(name, self.verdicts[name].left_out)
        self._files_fd = pack_catalogs(
            catalog
            for job in self.jobs.values()
            for source in job.sources.values()
            if (catalog := source.hand_over()) is not None
        )
        for worker in self.workers:
            worker.files_fd = self._files_fd
            worker.start(self._loop)
        try:
            await asyncio.wait_for(self._all_ready.wait(), START_DEADLINE_S)
        except TimeoutError:
            raise Internal(
                f"the workers did not start within {START_DEADLINE_S:.0f} s; their output says why"
            ) from None
        if self._start_error is not None:
            raise self._start_error
        self._spawn(self._write_snapshots())
        self._spawn(self._watch())
        self._set_up_ahead()
        for name, job in self.jobs.items():
            if name not in self.logs:
                self._spawn(self._count(job))

    def _set_up_ahead(self) -> None:
        """Let idle workers set jobs up for the readers to come; not while somebody reads."""
        if self.draining or any(one.readers for one in self.logs.values()):
            return
        for worker in self.workers:
            if not worker.ready or worker.dead or worker.tickets:
                continue
            job = self._setups.begin(worker.number, self.logs, worker.jobs)
            if job is not None:
                self._introduce(worker, self.jobs[job], set_up=True)

    def _hold(self, job: Job) -> None:
        """Take a job whose order is known into the books."""
        ahead = AHEAD_PER_WORKER * len(self.workers)
        self.logs[job.name] = Log(job, self.bound_bytes, ahead)
        self._seekable[job.name] = Planner(job, 0, Items(job)).can_seek()
        self._say_how_it_reads(job)

    def _say_how_it_reads(self, job: Job) -> None:
        """Log a job's reading groups, and if there are more workers than groups."""
        reading = job.distributor.reading()
        if reading is None or reading.groups is None:
            return
        log.info(
            "a job reads by groups",
            job=job.name,
            groups=reading.groups,
            blocks_in_memory=reading.held,
            about_mib=round(reading.held * reading.block_bytes / 2**20),
        )
        if reading.groups < len(self.workers):
            log.warning(
                "some workers have no work for a job; more reading_groups give them some",
                job=job.name,
                groups=reading.groups,
                workers=len(self.workers),
            )

    async def _count(self, job: Job) -> None:
        """Find out where a job's lanes end, once for all nodes; until then nobody can open it."""
        count = Count(
            self.target, job, len(self.workers), self.item_deadline_s, files_fd=self._files_fd
        )
        try:
            ends = await count.run()
            for lane, batches in enumerate(ends):
                await self._keep_end(job, lane, batches)
            job.set_lane_ends(ends)
            _ = job.order
        except PenstockError as error:
            log.error("a job cannot be counted", job=job.name, error=error.message)
            job.uncounted = error
            job.forget_lane_ends()
            return
        self._hold(job)
        self._set_up_ahead()
        log.info("counted", job=job.name, batches=sum(ends))

    async def _keep_end(self, job: Job, lane: int, batches: int) -> None:
        while True:
            try:
                await self.store.add_lane_end(job.log_id, lane, batches)
                return
            except StoreUnavailable as error:  # the store's own watch tells of it, once
                log.debug("the store does not answer; waiting", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def drain(self, grace_s: float) -> None:
        """Give out no more tickets, let workers finish theirs, and save where lines stand."""
        self.draining = True
        deadline = self._loop.time() + grace_s
        asked: set[int] = set()
        # Tickets end in many places, and this runs once, to a deadline.
        while self._loop.time() < deadline:
            for worker in self.workers:
                # Each as soon as it is free: one that hangs costs the others no snapshot.
                busy = worker.tickets or worker.number in self._setups.at
                if worker.ready and not (worker.dead or busy or worker.number in asked):
                    asked.add(worker.number)
                    self._drained[worker.number] = self._loop.create_future()
                    worker.send({"op": "snapshot"})
            if not self._drained and not any(worker.tickets for worker in self.workers):
                break
            await asyncio.sleep(0.02)
        await self._save()

    async def close(self, grace_s: float = END_GRACE_S) -> None:
        """End everything; workers have a moment to end by themselves."""
        self.draining = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        started = [worker for worker in self.workers if worker.started]
        for worker in started:
            worker.hang_up()
        deadline = time.monotonic() + grace_s  # of all together: they end at the same time
        for worker in started:
            worker.await_end(max(0.0, deadline - time.monotonic()))
        for worker in started:
            worker.kill()
        for worker in started:
            worker.close()
        if self._files_fd >= 0:
            os.close(self._files_fd)
            self._files_fd = -1

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fatal(error)

    # --- readers ---

    def log(self, job: str) -> Log:
        """Return what this node does for a job.

        Raises:
            UnknownJob: There is no such job here; names those there are.
        """
        if job not in self.logs:
            known = ", ".join(sorted(self.logs)) or "none"
            raise UnknownJob(
                f"this node has no job {job!r}; it has: {known}", job=job, jobs=sorted(self.logs)
            )
        return self.logs[job]

    def open(
        self,
        job: str,
        share: Share,
        tail: Tail | None,
        start: int,
        lanes: Iterable[int] | None,
        wake: Callable[[], None],
    ) -> Reader:
        """Return a new reader; the caller closes it."""
        return self.log(job).open(
            share, tail, start, frozenset(lanes) if lanes is not None else None, wake
        )

    def note_given(self, job: str, offsets: Mapping[int, int]) -> None:
        """Take in what a reader was given before this node knew of it: nothing of it may move.

        Args:
            job: The job.
            offsets: By lane the offset below which batches were given.
        """
        lanes = self.log(job).lanes
        for lane, offset in offsets.items():
            lanes[lane].planned = max(lanes[lane].planned, offset)
            lanes[lane].asked = max(lanes[lane].asked, offset)

    def extend(self, reader: Reader, horizon: int, position: int = 0, bytes_limit: int = 0) -> None:
        """Move a reader's horizon, and what it has room for; see to what it wants now."""
        reader.grant(position, bytes_limit)
        reader.extend(horizon)
        self.schedule()

    def take(self, reader: Reader, room_bytes: int | None = None) -> Entry | None:
        """Return a reader's next batch, as `Reader.take`, and see to what it wants instead of it.

        Raises:
            PenstockError: The batch that is owed next cannot be made.
        """
        entry = reader.take(room_bytes)
        if entry is None:
            self.schedule()  # looking for it may have reached positions that nobody has asked for
        return entry

    def sent(self, reader: Reader, entry: Entry) -> None:
        """A reader's batch has gone out: there may be room for another."""
        reader.sent(entry)
        self.schedule()

    def leave(self, reader: Reader) -> None:
        """A reader is gone."""
        reader.close()
        self.schedule()

    def waiting_for(self, reader: Reader) -> tuple[int, int, str, str]:
        """Return (lane, offset, stage, item) of what a reader's next position waits for."""
        entry = reader.pending.get(reader.head)
        if entry is None:
            return 0, 0, "horizon", ""
        key = entry.key
        lane = reader.log.lanes[key.lane]
        name = reader.log.job.name
        if entry.state is State.MAKING or lane.planning:
            for worker in self.workers:
                if any(t.log is reader.log and t.lane is lane for t in worker.tickets.values()):
                    note = worker.current()
                    if (note.job, note.lane) != (name, key.lane):
                        return key.lane, key.offset, "queued", _in_the_way(note)
                    return key.lane, key.offset, note.stage or "producing", str(note.item or "")
            return key.lane, key.offset, "producing", ""
        if lane.looking:
            return key.lane, key.offset, "store", ""
        if any(not worker.ready for worker in self.workers):
            return key.lane, key.offset, "restarting", ""
        busy = [worker for worker in self.workers if worker.tickets]
        holders = {line.worker for line in lane.lines}
        first = max(
            busy, key=lambda worker: (worker.number in holders, worker.held_up_s), default=None
        )
        way = _in_the_way(first.current()) if first is not None else ""
        return key.lane, key.offset, "queued", way

    # --- tickets ---

    def schedule(self) -> None:
        """See soon, once, what can be given out."""
        if not self._scheduled and not self.draining:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        try:
            self._give_out()
        except Exception as error:
            self._fatal(error)

    def _fatal(self, error: Exception) -> None:
        """End the node after a bug in its bookkeeping: readers go elsewhere, or wait for a restart.

        Going on would leave them waiting for tickets that nobody gives out any more.
        """
        log.exception("a bug in the node; it ends", exc_info=error)
        self.draining = True
        self.on_fatal()

    def _give_out(self) -> None:
        room = {worker.number: worker.room() for worker in self.workers}
        if not any(room.values()):
            return
        logs = [one for one in self.logs.values() if not one.deciding]
        sharing = [worker.number for worker in self.workers if worker.takes_part]
        for one in logs:
            # Not before somebody reads: as workers start one by one, groups would move about.
            if one.homes is not None and one.readers:
                one.homes.settle(sharing)
        wanted = sorted((one for log in logs for one in log.candidates()), key=_RANK)
        progress = True
        while progress and not self.draining:
            progress = False
            # One ticket per worker and round: the most urgent ones spread over all workers.
            for worker in self.workers:
                if room[worker.number] > 0 and self._give(worker, wanted):
                    room[worker.number] = 0 if worker.alone else room[worker.number] - 1
                    progress = True

    def _give(self, worker: WorkerProcess, wanted: list[Candidate]) -> bool:
        """Give a worker the most urgent thing that it can do, and put what follows in its place."""
        able = (at for at, one in enumerate(wanted) if self._can(one, worker))
        index = next(able, None)
        if index is None:
            return False
        if wanted[index].suspect and worker.tickets:
            return False  # it is made alone, so that nothing else waits for it
        _, _, one, entry, lane = wanted[index]
        busy = sum(other.busy_bytes for other in self.logs.values())
        if busy + one.largest_bytes > self.bound_bytes:
            # Also for what is always admitted: it goes above the bound, what is only kept does not.
            for other in self.logs.values():
                other.shed()
            busy = sum(other.busy_bytes for other in self.logs.values())
        if not one.admits(entry, busy):
            return False
        self._assign(one, entry, lane, worker)
        del wanted[index]
        following = None if lane.planning else one.candidate(lane)
        if following is not None:
            bisect.insort(wanted, following, key=_RANK)
        return True

    def _can(self, candidate: Candidate, worker: WorkerProcess) -> bool:
        """Tell whether this worker can go on with a batch; start looking where nobody can."""
        _, _, one, entry, lane = candidate
        name, offset = one.job.name, entry.key.offset
        home = one.home(lane.lane)
        at_home = home in (None, worker.number)
        if entry.state is not State.WANTED:
            return False  # it was wanted twice, and is given out
        if offset in lane.plans:
            if home is not None:
                return at_home
            # Who has planned it to know its size has its items, and makes it unless it is busy.
            keeper = lane.planned_by
            return keeper in (None, worker.number) or not self.workers[keeper].room()
        if lane.planning:
            return False
        while (line := self._line(name, one, lane, offset)) is not None:
            if home in (None, line.worker):
                return line.worker == worker.number
            if line.busy:
                return False
            self._close_line(lane, line)  # its group was handed on
        if offset in lane.starts:
            if home is not None:
                return at_home
            # Lanes are shared evenly: the one on the busiest worker sets the pace of all.
            sharing = [other for other in self.workers if other.takes_part]
            share = -(-one.job.lanes // max(1, len(sharing)))
            return one.lines_of(worker.number) < share or all(
                one.lines_of(other.number) >= share for other in sharing
            )
        if offset not in lane.looking:
            lane.looking.add(offset)
            self._spawn(self._look(name, one, lane, entry))
        return False

    def _line(self, name: str, one: Log, lane: LaneState, offset: int) -> LineState | None:
        if self._seekable[name]:
            return lane.lines[0] if lane.lines else None
        return one.find_line(lane, offset, one.job.snapshot_every)

    async def _look(self, name: str, one: Log, lane: LaneState, entry: Entry) -> None:
        """Find out where a line for this entry can start best: a line, a snapshot, or offset 0."""
        job, offset = one.job, entry.key.offset
        try:
            snapshot = None
            if not self._seekable[name] and offset >= job.snapshot_every:
                snapshot = await self._nearest(job, lane.lane, offset)
            base = snapshot.offset if snapshot is not None else 0
            line = one.find_line(lane, offset, offset + 1)
            if line is not None and one.home(lane.lane) not in (None, line.worker):
                line = None  # its group was handed on
            if line is not None and line.next >= base:
                base = line.next
            if offset - base > job.max_replay and not self._seekable[name]:
                one.failed(entry, far(job, lane.lane, offset, base))
            elif line is not None and line.next >= base and not self._seekable[name]:
                # It plans its way there: a longer reach than usual, this once.
                self._assign_when_free(one, entry, lane, line)
            elif one.wants(entry):
                while len(lane.starts) >= MAX_STARTS:
                    del lane.starts[next(iter(lane.starts))]
                lane.starts[offset] = Start(base, snapshot.data if snapshot is not None else None)
        except PenstockError as error:
            one.failed(entry, error)
        finally:
            lane.looking.discard(offset)
            self.schedule()

    async def _nearest(self, job: Job, lane: int, offset: int) -> SnapshotRecord | None:
        """Ask the store, and wait if it is away: an unreachable store never causes a replay."""
        deadline = self._loop.time() + STORE_DEADLINE_S
        while True:
            try:
                found = await self.store.nearest_snapshot(job.log_id, lane, offset)
                break
            except StoreUnavailable as error:
                if self._loop.time() > deadline:
                    raise
                log.debug("the store does not answer; waiting", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
        unsaved = self._unsaved.get((job.log_id, lane))
        if unsaved and unsaved.offset <= offset and (not found or unsaved.offset > found.offset):
            return unsaved
        return found

    def _assign_when_free(self, one: Log, entry: Entry, lane: LaneState, line: LineState) -> None:
        worker = self.workers[line.worker]
        if one.wants(entry) and not worker.dead and not lane.planning and not one.deciding:
            self._assign(one, entry, lane, worker, line)

    def _assign(
        self,
        one: Log,
        entry: Entry,
        lane: LaneState,
        worker: WorkerProcess,
        line: LineState | None = None,
    ) -> None:
        """Give a worker the next thing to do for an entry."""
        job, offset, blank = one.job, entry.key.offset, entry.key.blank
        self._introduce(worker, job)
        number = next(self._numbers)
        # After a death it works item by item, so that a second one names what it died of.
        careful = offset in lane.deaths
        head = {"ticket": number, "job": job.name, "lane": lane.lane, "offset": offset}
        head["careful"] = careful
        plan = lane.plans.get(offset)
        if plan is not None:
            one.started(entry)
            ticket = Ticket(number, one, lane, entry, None, offset, suspect=careful)
            worker.give(ticket, {"op": "make", **head, "blank": blank}, [plan])
            return
        line = line or self._line(job.name, one, lane, offset)
        line = line or self._open(one, lane, worker, lane.starts.pop(offset))
        line.used, line.busy = number, line.busy + 1
        head["line"] = line.number
        if not self._goes_whole(one):
            lane.planning = True
            count = 1 if careful else PLANS_AHEAD
            ticket = Ticket(number, one, lane, entry, line, offset, plans=True, suspect=careful)
            worker.give(ticket, {"op": "plan", **head, "count": count})
            line.next = offset + count
            lane.asked = max(lane.asked, line.next)
        else:
            one.started(entry)
            ticket = Ticket(number, one, lane, entry, line, offset, suspect=careful)
            worker.give(ticket, {"op": "produce", **head, "blank": blank})
            line.next = offset + 1
            lane.asked = max(lane.asked, line.next)

    def _goes_whole(self, one: Log) -> bool:
        """Tell whether who plans a batch makes it, too, and no other worker can.

        So it must be where planning needs processing; and where a batch is made sooner than its
        plan has gone to another worker.
        """
        return not one.job.plans_from_refs or 0.0 < one.ticket_s < CHEAP_S

    def _open(self, one: Log, lane: LaneState, worker: WorkerProcess, start: Start) -> LineState:
        idle = sorted(
            (line for line in lane.lines if line.busy == 0),
            key=lambda line: line.used,
            reverse=True,
        )
        # There may be several too many: while all were busy none could be closed.
        while len(lane.lines) >= MAX_LINES_PER_LANE and idle:
            self._close_line(lane, idle.pop())
        number = next(self._numbers)
        line = LineState(number, worker.number, lane.lane, start.offset, start.offset)
        lane.lines.append(line)
        message = {"op": "open", "line": line.number, "job": one.job.name, "lane": lane.lane}
        worker.send(message, [start.snapshot] if start.snapshot is not None else [])
        return line

    def _introduce(self, worker: WorkerProcess, job: Job, *, set_up: bool = False) -> None:
        if job.name not in worker.jobs:
            worker.jobs.add(job.name)
            self._tell_verdicts(worker, job.name, self.verdicts[job.name], set_up=set_up)

    def _tell_verdicts(
        self,
        worker: WorkerProcess,
        name: str,
        verdicts: Iterable[Verdict],
        *,
        set_up: bool = False,
    ) -> None:
        job, entries = self.jobs[name], [verdict.to_json() for verdict in verdicts]
        message = {"op": "job", "job": name, "log": job.log_id.hex(), "verdicts": entries}
        worker.send({**message, "ends": job.lane_ends, "set_up": set_up})

    # --- answers ---

    def _message(self, worker: WorkerProcess, message: Message) -> None:
        try:
            if "cost" in message:
                self.logs[message["cost"]["job"]].note_read(message["cost"]["read_bytes"])
                self.observer.worked(**message["cost"])
            if "counted" in message:
                counted = message["counted"]
                if counted["lane"] >= self.jobs[counted["job"]].lanes:
                    raise Misspoken(f"counts of lane {counted['lane']}, which there is not")
                self.observer.counted(**counted)
            getattr(self, f"_on_{message['op']}")(worker, message)
        except Misspoken as error:
            worker.misspoke(error)
        except Exception as error:
            self._fatal(error)
        self.schedule()

    def _on_ready(self, worker: WorkerProcess, message: Message) -> None:
        worker.ready = True
        self._failed_starts = 0
        if (died_at := self._died_at.pop(worker.number, None)) is not None:
            after_s = round(self._loop.time() - died_at, 3)
            log.info("a worker was replaced", worker=worker.number, pid=worker.pid, after_s=after_s)
        self._loop.call_later(GIVE_WAY_S, self._end_giving_way)
        if self._all_ready.is_set():
            self._set_up_ahead()
        elif all(one.ready for one in self.workers):
            self._all_ready.set()

    def _on_set_up(self, worker: WorkerProcess, message: Message) -> None:
        if worker.number not in self._setups.at:
            raise Misspoken("it has set a job up, and nobody asked")
        self._setups.done(worker.number)
        self._set_up_ahead()

    def _end_giving_way(self) -> None:
        """Let batches over which a worker ended have their turn like others."""
        for one in self.logs.values():
            for lane in one.lanes:
                lane.gives_way = False
        self.schedule()

    def _on_done(self, worker: WorkerProcess, message: Message) -> None:
        ticket = worker.answer(message["ticket"])
        header, plan, *snapshots = message["blobs"]
        nbytes, where = message["nbytes"], message["where"]
        body, release = None, None
        if where is not None:
            arena, start = where
            reader = worker.arenas[arena]
            reader.starts.add(start)
            if ticket is None:  # it was taken back before it was answered
                worker.free_later(arena, start)
                return
            body = reader.view[start : start + nbytes]
            view = body

            def release() -> None:
                view.release()
                worker.free_later(arena, start)

        if ticket is None:
            return
        if ticket.line is not None:
            ticket.line.busy -= 1
        if ticket.stale:
            if release is not None:
                release()
            ticket.log.back(ticket.entry)
            return
        if plan:
            ticket.log.remember_plan(ticket.lane, ticket.offset, plan)
        elif ticket.line is not None:  # whoever wants it again plans it by arithmetic
            ticket.lane.note_planned(ticket.offset)
        else:  # it was made from this very plan
            plan = ticket.lane.plans.get(ticket.offset, b"")
        ticket.entry.tokens = max(0, message["counts"].get("tokens", 0))
        ticket.log.ready(ticket.entry, header, body, nbytes, release)
        name = ticket.log.job.name
        self.observer.produced(name, nbytes, message["counts"])
        if (plan or self._seekable[name]) and ticket.log.produced % VERIFY_EVERY == 0:
            self._verify(worker, ticket, header, plan)
        if "libraries" in message:
            self._note_libraries(name, message["libraries"])
        self._remember_snapshots(ticket, message["snapshots"], snapshots)
        if message["emptied"] and ticket.lane.note_emptied(ticket.offset, MAX_EMPTIED):
            self._stop(
                ticket.log,
                ticket.lane,
                only_padding(ticket.log.job, ticket.lane.lane, ticket.offset),
            )

    def _stop(self, one: Log, lane: LaneState, error: PenstockError) -> None:
        """Stop a lane by name: what is ready of it is right, and goes out."""
        if lane.error is not None:
            return
        name = one.job.name
        log.error("a lane stopped", job=name, lane=lane.lane, code=error.code, error=error.message)
        self.observer.failed(name, error.code)
        one.stop_lane(lane, error)

    def _verify(self, maker: WorkerProcess, ticket: Ticket, header: bytes, plan: bytes) -> None:
        """Have a batch made once more: purity is what everything here stands on."""
        others = [one for one in self.workers if one is not maker and one.takes_part]
        if not ticket.log.may_read_elsewhere():
            others = []
        worker = others[ticket.number % len(others)] if others else maker
        while len(self._checks) >= MAX_CHECKS:  # their workers died
            del self._checks[next(iter(self._checks))]
        number = next(self._numbers)
        self._checks[number] = (ticket, header)
        self._introduce(worker, ticket.log.job)
        key = ticket.entry.key
        head = {"check": number, "job": ticket.log.job.name, "lane": key.lane, "blank": key.blank}
        head["offset"] = key.offset
        worker.send({"op": "verify", **head}, [plan] if plan else [])

    def _on_verified(self, worker: WorkerProcess, message: Message) -> None:
        ticket, header = self._checks.pop(message["check"], (None, b""))
        if ticket is None:
            return
        pure = message["blobs"][0] == header
        self.observer.verified(ticket.log.job.name, pure)
        if not pure:
            key = ticket.entry.key
            name = ticket.log.job.name
            error = LogDiverged(
                f"the batch at lane {key.lane}, offset {key.offset} of job {name!r} was made twice "
                "and differs: a role of this job is not pure, or another machine state gave other "
                "bytes; run `penstockd check`, which names the first impure key, then restart the "
                "server",
                what=f"batch at lane {key.lane}, offset {key.offset}",
                lane=key.lane,
                offset=key.offset,
                position=key.position,
                ours=hashlib.sha256(message["blobs"][0]).hexdigest(),
                theirs=hashlib.sha256(header).hexdigest(),
            )
            self._diverged(ticket.log, key.lane, error)

    def _on_planned(self, worker: WorkerProcess, message: Message) -> None:
        ticket = worker.answer(message["ticket"])
        if ticket is None:
            return
        plans = message["blobs"][: message["plans"]]
        ticket.lane.planning = False
        assert ticket.line is not None
        ticket.line.busy -= 1
        if ticket.stale:
            return
        ticket.line.next = ticket.offset + len(plans)
        if ticket.log.job.batcher.needs_sizes:
            ticket.lane.planned_by = worker.number
        if message["broken"]:  # the next one failed: whoever wants it starts from a clean state
            self._close_line(ticket.lane, ticket.line)
        for ahead, plan in enumerate(plans):
            ticket.log.remember_plan(ticket.lane, ticket.offset + ahead, plan)
        self._remember_snapshots(ticket, message["snapshots"], message["blobs"][len(plans) :])

    def _remember_snapshots(self, ticket: Ticket, offsets: list[int], blobs: list[bytes]) -> None:
        log_id = ticket.log.job.log_id
        if ticket.lane.error is not None:
            return
        for offset, data in zip(offsets, blobs, strict=True):
            known = self._unsaved.get((log_id, ticket.lane.lane))
            if known is None or offset > known.offset:
                record = SnapshotRecord(log_id, ticket.lane.lane, offset, data)
                self._unsaved[log_id, ticket.lane.lane] = record

    def _on_failed(self, worker: WorkerProcess, message: Message) -> None:
        cls = ERRORS.get(message["code"], Internal)
        error = cls(message["message"], **message["fields"])
        name = message["job"]
        if message["of"] == "snapshot":
            log.error("a worker cannot say where its lines are", error=error.message)
            self._has_drained(worker)
            return
        if message["of"] == "verify":
            log.warning("a batch could not be made twice", job=name, error=error.message)
            return
        if message["of"] in ("open", "job"):
            self._failed_open(worker, message, error)
            return
        ticket = worker.answer(message["ticket"])
        if ticket is None:
            return
        if ticket.line is not None:
            ticket.line.busy -= 1
            # Its state may be in the middle of something.
            self._close_line(ticket.lane, ticket.line)
        if ticket.plans:
            ticket.lane.planning = False
        if ticket.stale:
            ticket.log.back(ticket.entry)
            return
        if isinstance(error, LogDiverged):
            self._diverged(ticket.log, ticket.lane.lane, error)
            ticket.log.failed(ticket.entry, error)
            return
        traceback = error.fields.get("traceback")
        log.error(
            "a batch cannot be made",
            job=name,
            lane=ticket.lane.lane,
            offset=ticket.offset,
            code=error.code,
            error=error.message,
            **({"traceback": traceback} if traceback else {}),
        )
        self.observer.failed(name, error.code)
        ticket.log.failed(ticket.entry, error)

    def _failed_open(self, worker: WorkerProcess, message: Message, error: PenstockError) -> None:
        """Give up a line that did not open, for its snapshot or its job; its tickets fail too.

        Only its own: others of the job are at work in the same worker, and will be answered.
        """
        one = self.logs[message["job"]]
        what = "a job cannot be set up" if message["of"] == "job" else "a line cannot start"
        log.error(what, job=message["job"], code=error.code, error=error.message)
        if message["of"] == "job":
            if self._setups.at.get(worker.number) == message["job"]:
                self._setups.failed(worker.number)
                self._set_up_ahead()
            worker.jobs.discard(message["job"])
            self._take_back(worker, [t for t in worker.tickets.values() if t.log is one], error)
            one.drop_lines(worker.number)
            return
        damaged = error.code == "bad_snapshot"
        for lane in one.lanes:
            for line in [line for line in lane.lines if line.number == message["line"]]:
                self._close_line(lane, line)
                tickets = [t for t in worker.tickets.values() if t.line is line]
                self._take_back(worker, tickets, None if damaged else error)
                if damaged:
                    # Nobody looks for a start before the snapshot is gone.
                    held = {offset for offset, _, _ in lane.wanted}
                    lane.looking |= held
                    self._spawn(self._drop_snapshot(one.job, lane, line.start, held))

    def _take_back(
        self, worker: WorkerProcess, tickets: Iterable[Ticket], error: PenstockError | None
    ) -> None:
        """Take tickets from a worker that cannot make them; with no error another one shall."""
        for ticket in tickets:
            worker.take_back(ticket)
            if ticket.plans:
                ticket.lane.planning = False
            if error is None:
                ticket.log.back(ticket.entry)
            else:
                ticket.log.failed(ticket.entry, error)

    async def _drop_snapshot(self, job: Job, lane: LaneState, offset: int, held: set[int]) -> None:
        """Remove an unusable snapshot; the next look finds an older one, or the lane's start."""
        unsaved = self._unsaved.get((job.log_id, lane.lane))
        if unsaved is not None and unsaved.offset == offset:
            del self._unsaved[job.log_id, lane.lane]
        for wanted in [wanted for wanted, start in lane.starts.items() if start.offset == offset]:
            del lane.starts[wanted]
        try:
            await self.store.drop_snapshot(job.log_id, lane.lane, offset)
            log.warning("an unusable snapshot was removed", lane=lane.lane, offset=offset)
        except PenstockError as error:
            log.error("an unusable snapshot stays", lane=lane.lane, offset=offset, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)
        finally:
            lane.looking -= held
            self.schedule()

    def _close_line(self, lane: LaneState, line: LineState) -> None:
        if line in lane.lines:
            lane.lines.remove(line)
            self.workers[line.worker].send({"op": "close", "line": line.number})

    def _on_warning(self, worker: WorkerProcess, message: Message) -> None:
        log.warning(message["text"], worker=worker.number)

    def _note_libraries(self, name: str, versions: Mapping[str, str]) -> None:
        """Compare what a worker computes a job with, unless another worker said the same."""
        seen = self._libraries.setdefault(name, {})
        new = {key: version for key, version in versions.items() if seen.get(key) != version}
        if new:
            seen.update(new)
            self._spawn(self._compare_libraries(name, new))

    async def _compare_libraries(self, name: str, versions: dict[str, str]) -> None:
        """Record what a job is computed with, or say what differs from what is recorded."""
        try:
            recorded = await self.store.note_libraries(self.jobs[name].log_id, versions)
        except PenstockError as error:
            log.warning("the versions of libraries were not recorded", job=name, error=str(error))
            return
        if found := libraries.differences(versions, recorded):
            log.warning(libraries.sentence(name, found), job=name)

    def _on_verdict(self, worker: WorkerProcess, message: Message) -> None:
        if self.jobs[message["job"]].on_item_error != "quarantine":
            raise Misspoken(f"a verdict for job {message['job']!r}, whose policy is to stop")
        lane = Verdict.from_json(message["verdict"]).lane
        if lane >= self.jobs[message["job"]].lanes:
            raise Misspoken(f"a verdict of lane {lane}, which job {message['job']!r} has not")
        self._spawn(self._verdict(worker, message))

    async def _verdict(self, worker: WorkerProcess, message: Message) -> None:
        """Make a verdict durable, tell every worker, and only then let the asking one go on."""
        one, verdict = self.logs[message["job"]], Verdict.from_json(message["verdict"])
        try:
            held = await self._insert(one, verdict, message["line"])
        except PenstockError as error:
            if isinstance(error, LogDiverged):
                self._diverged(one, verdict.lane, error)
            answer = {"code": error.code, "message": error.message}
            answer["fields"] = json.loads(json.dumps(error.fields, default=str))
            worker.send({"op": "verdict", **answer})
        else:
            worker.send({"op": "verdict", "verdict": held.to_json()})

    async def _insert(self, one: Log, verdict: Verdict, line: int | None) -> Verdict:
        """Have the store insert a verdict, and tell every worker that knows the job.

        Raises:
            StoreUnavailable: It was away for `STORE_DEADLINE_S`.
            BadItem, LogDiverged: As `Store.add_verdict`.
        """
        deadline = self._loop.time() + STORE_DEADLINE_S
        lane, offset, job = verdict.lane, verdict.offset, one.job
        while True:
            known = self.verdicts[job.name].find(verdict.stage, verdict.item, lane, offset)
            if known is not None:
                return known
            try:
                with self._deciding(one) as seen:
                    if verdict.stage == "draw":
                        self._overtake(one, verdict, line)
                        planned = max(each.lanes[lane].planned for each in self._same(one))
                    else:
                        made = any((lane, offset) in each.made for each in self._same(one))
                        planned = offset + 1 if made else 0
                    held = await self.store.add_verdict(
                        job.log_id, verdict, seen._replace(planned=planned), job.max_quarantined
                    )
                    self._learn(one, [held])
                    return held
            except StoreUnavailable as error:
                if self._loop.time() > deadline:
                    raise
                log.debug("a verdict waits for the store", item=str(verdict.item), error=str(error))
            await asyncio.sleep(STORE_RETRY_S)

    async def release(self, job: Job, source: str, index: int) -> list[Verdict]:
        """Let an item be drawn again, above all that was given or asked for; tell every worker.

        Returns:
            Every verdict about the item, released; empty = there is none.

        Raises:
            LogDiverged: The log holds no batch above.
            StoreUnavailable: The store does not answer.
        """
        one = self.log(job.name)
        with self._deciding(one) as seen:
            found = await self.store.release_verdicts(job.log_id, source, index, seen)
            self._learn(one, found)
        return found

    def _same(self, one: Log) -> list[Log]:
        """Return every job of the same log, this one among them."""
        return [other for other in self.logs.values() if other.job.log_id == one.job.log_id]

    def asked(self, job: Job) -> int:
        """Return below which offset lanes of a job's log were planned here, or are being."""
        logs = [one for one in self.logs.values() if one.job.log_id == job.log_id]
        return max((lane.asked for each in logs for lane in each.lanes), default=0)

    @contextlib.contextmanager
    def _deciding(self, one: Log) -> Iterator[Seen]:
        """Let nothing new of a log be planned while its verdicts change; say what was asked for."""
        logs = self._same(one)
        for each in logs:
            each.deciding += 1
        try:
            yield Seen(one.order, asked=self.asked(one.job))
        finally:
            for each in logs:
                each.deciding -= 1
            self.schedule()

    def _overtake(self, one: Log, verdict: Verdict, number: int | None) -> None:
        """Take back what other lines of a lane are planning behind a verdict, without knowing it.

        What they have answered the store is told of: it refuses the verdict.
        """
        for each in self._same(one):
            lane = each.lanes[verdict.lane]
            for line in list(lane.lines):
                if line.number == number or line.next <= verdict.offset or not line.busy:
                    continue
                for ticket in self.workers[line.worker].tickets.values():
                    ticket.stale = ticket.stale or ticket.line is line
                self._close_line(lane, line)

    def _learn(self, one: Log, news: Iterable[Verdict]) -> None:
        """Take over verdicts of a log, new or released, and tell every worker that knows a job."""
        for name, job in self.jobs.items():
            if job.log_id != one.job.log_id:
                continue
            book = self.verdicts[name]
            changed = [verdict for verdict in news if verdict not in book]
            if not changed:
                continue
            book.learn(changed)
            self.observer.quarantined(name, book.left_out)
            for worker in self.workers:
                if name in worker.jobs and not worker.dead:
                    self._tell_verdicts(worker, name, changed)
            for verdict in changed:
                self._note_verdict(name, verdict)

    def _note_verdict(self, job: str, verdict: Verdict) -> None:
        released = verdict.released is not None
        log.warning(
            "item released" if released else "item quarantined",
            job=job,
            number=verdict.number,
            stage=verdict.stage,
            item=str(verdict.item),
            epochs="all" if verdict.every_epoch else str(verdict.item.epoch),
            reason=verdict.reason,
        )

    def _diverged(self, one: Log, number: int, error: PenstockError) -> None:
        """Stop a lane whose content is in doubt, in every job of this log: readers are told."""
        for each in self._same(one):
            lane, name = each.lanes[number], each.job.name
            if lane.error is not None:
                continue
            log.error("a lane stopped", job=name, lane=number, code=error.code, error=error.message)
            self.observer.failed(name, error.code)
            each.withhold(lane, error)
            for line in list(lane.lines):
                self._close_line(lane, line)
        self._unsaved.pop((one.job.log_id, number), None)

    def _on_snapshots(self, worker: WorkerProcess, message: Message) -> None:
        """Where every line of a draining worker stands."""
        if worker.number not in self._drained:
            raise Misspoken("it says where its lines are, and nobody asked")
        numbers: dict[int, int] = dict(message["lines"])
        blobs = dict(zip(numbers, message["blobs"], strict=True))
        for one in self.logs.values():
            for lane in one.lanes:
                for line in lane.lines:
                    if line.worker == worker.number and line.number in blobs and lane.error is None:
                        record = SnapshotRecord(
                            one.job.log_id, lane.lane, numbers[line.number], blobs[line.number]
                        )
                        self._unsaved[one.job.log_id, lane.lane] = record
        self._has_drained(worker)

    def _has_drained(self, worker: WorkerProcess) -> None:
        future = self._drained.pop(worker.number, None)
        if future is not None and not future.done():
            future.set_result(None)

    # --- deaths ---

    def _death(self, worker: WorkerProcess) -> None:
        """Replace a worker that is gone; its lines go on elsewhere from their snapshots."""
        code = worker.end_status()
        note = worker.current()
        if not worker.ready:
            self._failed_starts += 1
        log.warning(
            "a worker died",
            worker=worker.number,
            pid=worker.pid,
            exit=code,
            how=worker.how_it_ended(),
            stage=note.stage,
            item=str(note.item),
        )
        self.observer.worker_died()
        self._died_at.setdefault(worker.number, self._loop.time())
        tickets = list(worker.tickets.values())
        worker.tickets.clear()
        worker.taken_back.clear()
        for one in self.logs.values():
            one.drop_lines(worker.number)
        for ticket in tickets:
            if ticket.plans:
                ticket.lane.planning = False
            ticket.log.back(ticket.entry)
        self._find_guilty(worker, tickets, note)
        if (job := self._setups.failed(worker.number)) is not None:
            log.warning("a job is left for its readers to be set up", job=job)
        self._has_drained(worker)
        if self.draining:
            return
        if self._failed_starts >= MAX_DEATHS and not self._all_ready.is_set():
            self._start_error = Internal(
                f"a worker ended with status {code} before it was ready, {MAX_DEATHS} times; its "
                "output above says why"
            )
            self._all_ready.set()
            return
        delay_s = 0.0 if worker.ready else self._restart_delay_s()
        self._loop.call_later(delay_s, self._replace, worker.number)

    def _find_guilty(self, worker: WorkerProcess, tickets: list[Ticket], note: Note) -> None:
        """Blame a death on what the worker was doing."""
        # Not the first: what is finished may not have been answered yet.
        guilty = next((ticket for ticket in tickets if _is_about(note, ticket)), None)
        unsaid = note.stage in ("", "idle")
        if worker.fault is not None or (unsaid and worker.stuck_s is not None):
            # It answers in order: whatever was said amiss was said on behalf of the first one.
            guilty, unsaid = next(iter(tickets), None), True
        if guilty is None:
            return
        if note.item is not None and _is_about(note, guilty):
            self._blame(guilty, str(note.item), worker.how_it_ended())
        elif not unsaid:
            self._blame(guilty, f"stage {note.stage}", worker.how_it_ended())
        elif worker.fault is not None or worker.stuck_s is not None:
            doing = f"what was made for offset {guilty.offset}"
            self._blame(guilty, doing, worker.how_it_ended())

    def _restart_delay_s(self) -> float:
        """Return how long to wait where the last start failed, too."""
        # The power stays small, however long the trouble lasts: a float ends at 2**1024.
        return float(min(0.1 * 2 ** min(self._failed_starts, 10), MAX_RESTART_DELAY_S))

    def _replace(self, number: int) -> None:
        """Start a worker in the place of one that died, or a little later if that cannot be."""
        if self.draining:
            return
        replacement = self._new_worker(number)
        try:
            replacement.start(self._loop)
        except OSError as error:  # memory, processes or file descriptors are short
            self._failed_starts += 1
            delay_s = self._restart_delay_s()
            log.error("a worker cannot be started", error=str(error), again_in_s=delay_s)
            self._loop.call_later(delay_s, self._replace, number)
            return
        self.workers[number] = replacement
        self.schedule()

    def _blame(self, ticket: Ticket, doing: str, how: str) -> None:
        """Count a death against the lane; the third over the same item stops it by name.

        Args:
            ticket: What the worker was asked.
            doing: What it was doing.
            how: How it ended.
        """
        lane = ticket.lane
        deaths = lane.deaths.setdefault(ticket.offset, [])
        deaths.append(doing)
        lane.gives_way = True
        if deaths.count(doing) < MAX_DEATHS:
            return
        name = ticket.log.job.name
        error = WorkerCrashed(
            f"lane {lane.lane} of job {name!r} stopped at offset {ticket.offset}: {doing} ended "
            f"its worker {MAX_DEATHS} times, at last {how}; remove or repair the item or the "
            "role, then restart the server",
            lane=lane.lane,
            offset=ticket.offset,
            item=doing,
            deaths=MAX_DEATHS,
            how=how,
        )
        self._stop(ticket.log, lane, error)

    async def _watch(self) -> None:
        """Kill a worker that has been at one thing for longer than `item_deadline_s`.

        And hurry one whose retries hold up another job.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            stalled = self._stalled_jobs()
            for worker in self.workers:
                # A child of its own may hold its socket open beyond its end.
                worker.notice_end()
                if worker.dead or not (worker.tickets or worker.number in self._setups.at):
                    self._page_seen.pop(worker.number, None)
                    worker.held_up_s = 0.0
                    continue
                note = worker.current()
                if note.stage == "retrying" and stalled - {note.job}:
                    worker.send({"op": "hurry", "job": note.job})
                self._look_at(worker, note)

    def _look_at(self, worker: WorkerProcess, note: Note) -> None:
        """See for how long a worker has been at one thing, and act where that is too long."""
        now = self._loop.time()
        seen = self._page_seen.get(worker.number)
        if seen is None or seen[0] != note.serial:
            self._page_seen[worker.number] = (note.serial, now)
            if worker.held_up_s:  # it goes on, and takes part again
                worker.held_up_s = 0.0
                self.schedule()
            return
        since_s = now - seen[1]
        if since_s > self.item_deadline_s:
            log.error(
                "a worker is stuck",
                worker=worker.number,
                stage=note.stage,
                item=str(note.item),
                item_seconds=self.item_deadline_s,
            )
            self._page_seen.pop(worker.number)
            worker.stuck_s = self.item_deadline_s
            worker.kill()
        elif since_s > SET_UP_S and self._is_in_the_way(worker):
            worker.made_way = True
            worker.kill()
        elif since_s > self._patience_s(note):
            self._relieve(worker, note, since_s)

    def _is_in_the_way(self, worker: WorkerProcess) -> bool:
        """Tell whether readers wait for a worker that sets up a job which none of them reads."""
        job = self._setups.at.get(worker.number)
        others = [ticket for ticket in worker.tickets.values() if ticket.log.job.name != job]
        return job is not None and bool(others) and not self.logs[job].readers

    def _patience_s(self, note: Note) -> float:
        """Return after how long at one thing a worker is held up."""
        one = self.logs.get(note.job) if note.job is not None else None
        usual_s = one.ticket_s if one is not None else 0.0
        least_s = min(HELD_UP_S, HELD_UP_SHARE * self.item_deadline_s)
        return max(least_s, HELD_UP_TICKETS * usual_s)

    def _relieve(self, worker: WorkerProcess, note: Note, since_s: float) -> None:
        """Give others what a worker that is held up has not begun, and the lines that it holds."""
        first, worker.held_up_s = not worker.held_up_s, since_s
        if not any(other.takes_part for other in self.workers):
            return  # there is nobody who could do it instead
        mine = self._at_work(worker, note)
        held = mine.line if mine is not None else None  # its line goes on behind it, in order
        others = [
            ticket
            for ticket in worker.tickets.values()
            if ticket is not mine and (held is None or ticket.line is not held)
        ]
        self._take_back(worker, others, None)
        for one in self.logs.values():
            for lane in one.lanes:
                for line in list(lane.lines):
                    if line.worker == worker.number and line is not held:
                        self._close_line(lane, line)
        if first:
            log.warning(
                "a worker has been at one thing for long; others take its lanes meanwhile",
                worker=worker.number,
                job=note.job,
                stage=note.stage,
                item=str(note.item),
                since_s=round(since_s, 1),
            )
        self.schedule()

    def _at_work(self, worker: WorkerProcess, note: Note) -> Ticket | None:
        """Return the ticket that a worker is at: the one of its note, else the first."""
        tickets = list(worker.tickets.values())
        return next((one for one in tickets if _is_about(note, one)), next(iter(tickets), None))

    def _stalled_jobs(self) -> set[str]:
        """Return the jobs whose most urgent batch waits for a worker as it did a turn ago."""
        first = {
            name: min(one.candidates(), key=_RANK, default=None) for name, one in self.logs.items()
        }
        waiting = {name: one.entry for name, one in first.items() if one is not None}
        before, self._waiting = self._waiting, waiting
        return {name for name, entry in waiting.items() if before.get(name) is entry}

    # --- snapshots ---

    async def _write_snapshots(self) -> None:
        while True:
            await asyncio.sleep(self.snapshot_seconds)
            await self._save()

    async def _save(self) -> None:
        records, self._unsaved = list(self._unsaved.values()), {}
        if records:
            await self._put(records)

    async def _put(self, records: list[SnapshotRecord]) -> None:
        try:
            await self.store.put_snapshots(records)
        except StoreUnavailable as error:
            log.debug("snapshots were not written; they only accelerate", error=str(error))
        except PenstockError as error:
            if len(records) == 1:
                self._refused(records[0], error)
                return
            # One lane's must not cost the others theirs; the store commits them together.
            await asyncio.gather(*(self._put([record]) for record in records))

    def _refused(self, record: SnapshotRecord, error: PenstockError) -> None:
        """A snapshot was refused: where another one stands in its place, its lane stops."""
        log.error(
            "a snapshot was refused",
            lane=record.lane,
            offset=record.offset,
            code=error.code,
            error=error.message,
        )
        if isinstance(error, LogDiverged):
            for one in self.logs.values():
                if one.job.log_id == record.log_id:
                    self._diverged(one, record.lane, error)
                    return


__all__ = ["Node", "Observer"]
