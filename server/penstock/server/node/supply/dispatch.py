"""Who makes what: tickets for the most urgent batches, each to a worker that can go on with it.

A batch goes to the worker that holds a line near it, or its plan; where no line stands near, one is
opened at the nearest snapshot. Tickets that a worker cannot answer come back here.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping

import structlog

from penstock.server.job.job import Job
from penstock.server.node.demand.candidates import Candidate, candidate_of, candidates
from penstock.server.node.demand.lane_state import PLANS_AHEAD, LaneState, LineState
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.made_ahead import AHEAD_BYTES, AHEAD_PER_WORKER, is_cheap
from penstock.server.node.demand.peers import FairTurns
from penstock.server.node.demand.room import find_room, is_for_stalled
from penstock.server.node.demand.wanted import BatchState, WantedBatch
from penstock.server.node.protocol.channel import ProtocolError
from penstock.server.node.protocol.messages import Make, PlanAhead, Produce
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.blame import blamed, sentence
from penstock.server.node.supply.lane_lines import LaneLines
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.setups import Setups
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.node.supply.worker_pool import WorkerPool
from penstock.server.node.supply.worker_process import Ticket, WorkerProcess
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.processes.page import Note
from penstock.wire.errors import PenstockError

logger = structlog.get_logger("penstock.node")

MAX_DEATHS = 3
"""An item that kills its worker this often, while its lane gets no further, stops the lane."""

PLANS_AT_ONCE = 64
"""Batches of a lane that one ticket plans on the way to a far offset. Readers of other lanes then
wait for the worker, and no plan of that lane is given out: with more of them these wait longer, and
with fewer there are more messages."""

_RANK = operator.attrgetter("rank")


class Dispatch:
    """Gives tickets to workers.

    Args:
        verdicts: By log, the verdicts that hold: a worker learns them with the job.
        pool: The workers.
        snapshots: Where lines may start.
        life: The node's.
        observer: Told of lanes that stop.
        bound_bytes: How many bytes of batches may be ready or being made.

    Attributes:
        logs: The ledger of each log.
        lines: Which lines the lanes of these have.
        numbers: Numbers of tickets and checks, unique in this process.
        covers: Tells whether a lane may be planned below an offset, or has that reserved.
        on_halt: Told of a lane that has stopped, and of the first batch that is not to come.
    """

    def __init__(
        self,
        verdicts: Mapping[bytes, VerdictBook],
        pool: WorkerPool,
        snapshots: SnapshotWriter,
        life: Life,
        observer: Observer,
        bound_bytes: int,
    ) -> None:
        self._verdicts, self._bound_bytes = verdicts, bound_bytes
        self._pool, self._snapshots, self._life, self._observer = pool, snapshots, life, observer
        self.logs: dict[bytes, Log] = {}
        self.numbers = itertools.count(1)
        self.lines = LaneLines(pool, snapshots, life, self.schedule, self._go_on)
        self._setups, self._turns = Setups(), FairTurns()
        self.covers: Callable[[Log, LaneState, int], bool]
        self.on_halt: Callable[[Log, LaneState, int, PenstockError], None]
        self._scheduled = False

    def hold(self, job: Job) -> None:
        """Take a job into the ledger."""
        workers = len(self._pool)
        ahead = AHEAD_PER_WORKER * workers, AHEAD_BYTES * workers
        self.logs[job.log_id] = Log(job, self._bound_bytes, *ahead)

    def name(self, log_id: bytes | None) -> str | None:
        """Return what people call a log: a job's name."""
        log = self.logs.get(log_id) if log_id is not None else None
        return None if log is None else log.job.name

    # --- giving out ---

    def schedule(self) -> None:
        """Soon give out, once, the tickets that can be given out."""
        if not self._scheduled and not self._life.draining:
            self._scheduled = True
            self._life.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        try:
            self._give_out()
        except Exception as error:
            self._life.fatal(error)

    def _give_out(self) -> None:
        logs = [log for log in self.logs.values() if not log.deciding]
        room = {
            (worker.number, log): count
            for log in logs
            if log.readers
            for worker in self._pool
            if (count := worker.room(log))
        }
        if not room:
            return
        sharing = [worker.number for worker in self._pool.sharing()]
        for log in logs:
            # Not before a reader is there: as workers start one by one, groups would move.
            if log.readers:
                log.assignment.settle(sharing)
        busy_bytes = sum(log.busy_bytes for log in self.logs.values())
        half = self._bound_bytes // 2  # so that it is found by whoever may have half of the bound
        wanted: dict[Log, list[Candidate]] = {}
        for log in logs:
            found = candidates(log, has_room=busy_bytes + log.largest_bytes <= half)
            if ranked := sorted(found, key=_RANK):
                wanted[log] = ranked
        progress = True
        while progress and not self._life.draining:
            progress = False
            # One ticket per worker and round: the most urgent ones spread over all workers.
            for worker in self._pool:
                if (given := self._give(worker, wanted, room)) is not None:
                    room[worker.number, given] -= 1
                    progress = True

    def _give(
        self,
        worker: WorkerProcess,
        wanted: dict[Log, list[Candidate]],
        room: Mapping[tuple[int, Log], int],
    ) -> Log | None:
        """Give a worker something to do of the log whose turn it is, if it can do that; say which.

        None = it was given nothing.
        """
        if worker.alone:
            return None
        # What has ended a worker lets other logs by, too.
        in_turn = sorted(
            (log for log, found in wanted.items() if found and room.get((worker.number, log))),
            key=lambda log: (wanted[log][0].gives_way, self._turns.of(log)),
        )
        return next((log for log in in_turn if self._give_of(log, worker, wanted[log])), None)

    def _give_of(self, log: Log, worker: WorkerProcess, wanted: list[Candidate]) -> bool:
        """Give a worker the most urgent thing of a log that it can do; list what follows that."""
        while (index := self._next(log, worker, wanted)) is not None:
            if wanted[index].suspect and worker.tickets:
                return False  # it is made alone, so that nothing else waits for it
            _, _, _, entry, lane, peer = wanted[index]
            if find_room(log, entry, self.logs.values()):
                del wanted[index]
                self._assign(log, entry, lane, worker)
                self._turns.give(log, log.ticket_s)
                log.peers.turns.give(peer, log.ticket_s)
                following = None if lane.planning else candidate_of(log, lane)
                if following is not None:
                    bisect.insort(wanted, following, key=_RANK)
                return True
            if not is_for_stalled(entry):
                return False
            del wanted[index]  # what others need finds room sooner than this
        return False

    def _next(self, log: Log, worker: WorkerProcess, wanted: list[Candidate]) -> int | None:
        """Return which candidate a worker is given: of the most urgent, whose turn it is."""
        turns, best, turn = log.peers.turns, None, 0.0
        for at, found in enumerate(wanted):
            if best is None:
                if self._can(found, worker):
                    best, turn = at, turns.of(found.peer)
                    if log.peers.are_one:
                        break
            elif found.urgency != wanted[best].urgency or found.gives_way:
                break
            elif turns.of(found.peer) < turn and self._can(found, worker):
                best, turn = at, turns.of(found.peer)
        return best

    def _can(self, candidate: Candidate, worker: WorkerProcess) -> bool:
        """Tell whether this worker can go on with a batch; start looking for one if none can."""
        _, _, log, entry, lane, _ = candidate
        offset = entry.key.offset
        home = log.assignment.of(lane.lane)
        at_home = home in (None, worker.number)
        if entry.state is not BatchState.WANTED:
            return False  # it was wanted twice, and is given out
        if entry.is_asked and lane.is_planned:
            return False  # another batch of the lane was given out
        if offset in lane.plans:
            if home is not None:
                return at_home
            # The worker that has planned it has its items, and makes it unless it is busy.
            keeper = lane.planned_by
            return keeper in (None, worker.number) or not self._pool[keeper].room(log)
        if lane.planning or not self.covers(log, lane, offset + PLANS_AHEAD):
            return False
        while (line := self.lines.find(log, lane, offset)) is not None:
            if home in (None, line.worker):
                return line.worker == worker.number
            if line.busy:
                return False
            self.lines.close(lane, line)  # its group was handed on
        if offset in lane.starts:
            if home is not None:
                return at_home
            # Lanes are shared evenly: the one on the busiest worker sets the pace of all.
            sharing = self._pool.sharing()
            share = -(-log.job.lanes // max(1, len(sharing)))
            return log.lines_of(worker.number) < share or all(
                log.lines_of(other.number) >= share for other in sharing
            )
        self.lines.look(log, lane, entry)
        return False

    def _assign(
        self,
        log: Log,
        entry: WantedBatch,
        lane: LaneState,
        worker: WorkerProcess,
        line: LineState | None = None,
    ) -> None:
        """Give a worker the next thing to do for an entry."""
        log_id, offset, blank = log.job.log_id, entry.key.offset, entry.key.blank
        self.introduce(worker, log.job)
        number = next(self.numbers)
        # After a death it works item by item, so that a second one names what it died of.
        careful = offset in lane.deaths
        plan = lane.plans.get(offset)
        if plan is not None:
            log.started(entry)
            ticket = Ticket(number, log, lane, entry, None, offset, suspect=careful)
            worker.give(ticket, Make(number, log_id, lane.lane, offset, careful, blank, plan))
            return
        line = line or self.lines.find(log, lane, offset)
        line = line or self.lines.open(log, lane, worker, lane.starts.pop(offset))
        whole = not entry.is_asked and self._goes_whole(log, lane.lane)
        if offset - line.next > PLANS_AT_ONCE and not self.lines.seekable(log.job, lane.lane):
            # Part of the way, and then others have their turn.
            line.heading, offset, whole = offset, line.next + PLANS_AT_ONCE, False
        head = (number, log_id, lane.lane, offset, careful, line.number)
        if not whole:
            # Where planning needs the items, whoever makes the batch needs them once more.
            anywhere = log.job.makes_anywhere(lane.lane)
            count = PLANS_AHEAD if anywhere and not careful else 1
            ticket = Ticket(number, log, lane, entry, line, offset, plans=True, suspect=careful)
            worker.give(ticket, PlanAhead(*head, count))
            lane.note_given(line, number, offset + count, plans=True)
        else:
            log.started(entry)
            ticket = Ticket(number, log, lane, entry, line, offset, suspect=careful)
            worker.give(ticket, Produce(*head, blank))
            lane.note_given(line, number, offset + 1, plans=False)

    def _go_on(self, log: Log, entry: WantedBatch, lane: LaneState, line: LineState) -> None:
        """Have a line plan its way to an entry that is far from it, unless that cannot be now."""
        worker = self._pool[line.worker]
        if log.wants(entry) and not worker.dead and not lane.planning and not log.deciding:
            self._assign(log, entry, lane, worker, line)

    def _goes_whole(self, log: Log, lane: int) -> bool:
        """Tell whether the worker that plans a batch makes it, too.

        So it must be where planning needs processing, or has read what the batch is made of; and
        where a batch is made sooner than its plan has gone to another worker.
        """
        return is_cheap(log.ticket_s) or not log.job.makes_anywhere(lane)

    def introduce(self, worker: WorkerProcess, job: Job, *, set_up: bool = False) -> None:
        """Tell a worker of a job, and have it set its roles up at once if requested."""
        if job.log_id not in worker.logs:
            worker.logs.add(job.log_id)
            ends = self.logs[job.log_id].counted_ends()
            worker.send_job(job, self._verdicts[job.log_id], ends, set_up=set_up)

    # --- ahead of readers ---

    def set_up_ahead(self) -> None:
        """Let idle workers set jobs up for later readers; not while there are readers."""
        if self._life.draining or any(log.readers for log in self.logs.values()):
            return
        for worker in self._pool:
            if not worker.ready or worker.dead or worker.tickets:
                continue
            log_id = self._setups.begin(worker.number, self.logs, worker.logs)
            if log_id is not None:
                self.introduce(worker, self.logs[log_id].job, set_up=True)

    def was_set_up(self, worker: WorkerProcess) -> None:
        """Note that a worker has set up its job.

        Raises:
            ProtocolError: It was not asked to.
        """
        if worker.number not in self._setups.at:
            raise ProtocolError("it has set a job up, and nobody asked")
        self._setups.done(worker.number)
        self.set_up_ahead()

    def sets_up(self, worker: WorkerProcess) -> bool:
        """Tell whether a worker sets a job up for readers to come."""
        return worker.number in self._setups.at

    def is_ahead(self, worker: WorkerProcess, note: Note) -> bool:
        """Tell whether a worker is at a batch that no reader accepts yet."""
        ticket = worker.at_work(note)
        return ticket is not None and not any(
            ticket.entry.key.position < reader.horizon for reader in ticket.entry.readers
        )

    def in_the_way(self, worker: WorkerProcess) -> bool:
        """Tell whether readers wait for a worker that sets up a job which none of them reads."""
        log_id = self._setups.at.get(worker.number)
        others = [ticket for ticket in worker.tickets.values() if ticket.log.job.log_id != log_id]
        return log_id is not None and bool(others) and not self.logs[log_id].readers

    # --- what comes back without an answer ---

    def failed_open(
        self, worker: WorkerProcess, log_id: bytes, line: int | None, error: PenstockError
    ) -> None:
        """Give up a line that did not open, for its snapshot or its job; its tickets fail too.

        Only its own: others of the job are at work in the same worker, and will be answered.

        Args:
            worker: Where.
            log_id: The log.
            line: The line's number; None = the job itself cannot be built there.
            error: Why.
        """
        what = "a job cannot be set up" if line is None else "a line cannot start"
        log = self.logs[log_id]
        logger.error(what, job=log.job.name, code=error.code, error=error.message)
        if line is None:
            if self._setups.at.get(worker.number) == log_id:
                self._setups.failed(worker.number)
            self.set_up_ahead()
            self._take_back(worker, [t for t in worker.tickets.values() if t.log is log], error)
            # It still knows the job, tries again as it is asked for the next line, and has more to
            # say of those that it was asked for before this.
            self.lines.close_of(worker, [log], None)
            return
        damaged = error.code == "bad_snapshot"
        for lane in log.lanes:
            for found in [found for found in lane.lines if found.number == line]:
                self.lines.close(lane, found)
                tickets = [t for t in worker.tickets.values() if t.line is found]
                self._take_back(worker, tickets, None if damaged else error)
                if damaged:
                    self.lines.is_damaged(log, lane, found)

    def _take_back(
        self, worker: WorkerProcess, tickets: Iterable[Ticket], error: PenstockError | None
    ) -> None:
        """Take tickets from a worker that cannot make them; without an error another one does."""
        for ticket in tickets:
            worker.take_back(ticket)
            if ticket.plans:
                ticket.lane.note_not_planning()
            if error is None:
                ticket.log.back(ticket.entry)
            else:
                ticket.log.failed(ticket.entry, error)

    def relieve(self, worker: WorkerProcess, note: Note) -> None:
        """Give others what a worker that is held up has not begun, and the lines that it holds."""
        mine = worker.at_work(note)
        # It keeps the line it is working on: that line's tickets must be answered in order.
        held = mine.line if mine is not None else None
        others = [
            ticket
            for ticket in worker.tickets.values()
            if ticket is not mine and (held is None or ticket.line is not held)
        ]
        self._take_back(worker, others, None)
        self.lines.close_of(worker, self.logs.values(), held)
        self.schedule()

    def lost(self, worker: WorkerProcess, note: Note) -> None:
        """Take back the tickets of a worker that is gone, and blame the one that it was at."""
        tickets = list(worker.tickets.values())
        worker.tickets.clear()
        worker.taken_back.clear()
        for log in self.logs.values():
            log.drop_lines(worker.number)
        for ticket in tickets:
            if ticket.plans:
                ticket.lane.note_not_planning()
            ticket.log.back(ticket.entry)
        if (found := blamed(worker, tickets, note)) is not None:
            self._blame(*found, worker.how_it_ended())
        if (log_id := self._setups.failed(worker.number)) is not None:
            logger.warning("a job is left for its readers to be set up", job=self.name(log_id))

    def _blame(self, ticket: Ticket, doing: str, how: str) -> None:
        """Count a death against the lane; the third over the same item stops it, with its name.

        Args:
            ticket: The worker's ticket.
            doing: What it was doing.
            how: How it ended.
        """
        lane = ticket.lane
        if lane.note_death(ticket.offset, doing) >= MAX_DEATHS:
            error = sentence(ticket, doing, MAX_DEATHS, how)
            self.stop(ticket.log, lane, ticket.offset, error)

    def end_giving_way(self) -> None:
        """Let batches over which a worker ended have their turn like others."""
        for log in self.logs.values():
            for lane in log.lanes:
                lane.gives_way = False
        self.schedule()

    # --- lanes that stop ---

    def stop(self, log: Log, lane: LaneState, offset: int, error: PenstockError) -> None:
        """Stop a lane before a batch: its ready batches are right, and are given out."""
        if lane.error is None:
            self._tell_of(log, lane, error)
            log.stop_lane(lane, error)
            self.on_halt(log, lane, offset, error)

    def diverged(self, log_id: bytes, number: int, error: PenstockError) -> None:
        """Stop a lane whose content is in doubt: its readers are told."""
        log = self.logs[log_id]
        lane = log.lanes[number]
        if lane.error is None:
            self._tell_of(log, lane, error)
            log.withhold(lane, error)
            self.lines.close_all(lane)
            self.on_halt(log, lane, getattr(error, "offset", None) or 0, error)
        self._snapshots.forget(log_id, number)

    def _tell_of(self, log: Log, lane: LaneState, error: PenstockError) -> None:
        name = log.job.name
        logger.error(
            "a lane stopped", job=name, lane=lane.lane, code=error.code, error=error.message
        )
        self._observer.failed(name, error.code)
