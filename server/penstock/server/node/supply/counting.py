"""The server process's side of counting: one pool of processes, for whoever asks where a log ends.

A job is counted only while somebody asks for its length. What its lanes' lines have planned is not
planned again, and as the count is left, where it stands is kept for the next one who asks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from penstock.server.node.demand.ledger import Log
from penstock.server.node.protocol.messages import LineSnapshot, Snapshot, TakeSnapshots
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.counted_part import CountedLanes
from penstock.server.node.supply.lane_ends import Ends
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.node.supply.worker_pool import WorkerPool
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.pipeline.known_order import SoFar, expected_draws, items_counted
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.wire.errors import PenstockError
from penstock.wire.order import MAX_POSITION

logger = structlog.get_logger("penstock.node")

WANTED_S = 30.0
"""How long a count goes on after somebody has asked for it."""

TURN_S = 5.0
"""How long one job is counted while another one waits for that."""

LINES_S = 2.0
"""How long workers may take to say where their lines stand: one may be busy with an item."""

FIRST_WAIT_S, MAX_WAIT_S = 1.0, 60.0
"""How long a count that failed for the moment waits."""

MAX_MARK_BYTES = 64 << 20
"""What is kept of where the lanes of a log stand; where that is more, nothing is."""


def count_processes(workers: int) -> int:
    """Return how many processes of a node may count at a time, over all of its jobs."""
    return max(1, workers // 2)


class _LogCount:
    """What is known of the count of one log.

    Args:
        log: Its ledger.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.wanted_until_s = 0.0
        self.is_running = False
        self.wait_s = FIRST_WAIT_S
        self.trouble: PenstockError | OSError | None = None
        self.has_looked = False  # for snapshots of its lanes, before the first turn
        self.marks: dict[int, Snapshot] = {}
        self.parts: Sequence[CountedLanes] = ()
        lanes = range(log.job.lanes)
        self._draws = [expected_draws(log.job, lane) for lane in lanes]
        self._drawn = 0  # by parts that have ended

    @property
    def missing(self) -> list[int]:
        """Return the lanes of which it is not known where they end, be that recorded yet or not."""
        return [lane.lane for lane in self.log.lanes if lane.end is None]

    def so_far(self) -> str:
        """Return for people how far it is."""
        if self.trouble is not None:
            return f"it cannot be counted at the moment: {self.trouble}"
        return items_counted(self._drawn + sum(part.drawn for part in self.parts), self._draws)

    def begin_turn(self, parts: Sequence[CountedLanes]) -> None:
        """Count these parts now; the lanes of none of them have ended."""
        self.parts = parts
        ended = set(range(self.log.job.lanes)).difference(*(part.lanes for part in parts))
        self._drawn = sum(self._draws[lane] or 0 for lane in ended)

    def end_turn(self) -> None:
        """Keep where the lanes stand that have not ended."""
        missing = set(self.missing)
        for part in self.parts:
            for lane, mark in part.stands.items():
                self.mark(lane, mark)
        self.marks = {lane: mark for lane, mark in self.marks.items() if lane in missing}
        if sum(len(mark.data) for mark in self.marks.values()) > MAX_MARK_BYTES:
            self.marks = {}

    def mark(self, lane: int, mark: Snapshot) -> None:
        """Take in where a lane may be planned on, unless it is known further on."""
        known = self.marks.get(lane)
        if known is None or mark.offset > known.offset:
            self.marks[lane] = mark


class LaneCounting:
    """Finds out where the lanes of finite jobs end, for those who ask.

    Args:
        processes: How many processes may count at a time, over all jobs.
        verdicts: By log, the verdicts that hold.
        pool: The workers, whose lines have planned lanes.
        snapshots: Where snapshots of lanes are.
        ends: Told where lanes end.
        life: The node's.
        observer: Told what it costs.
        item_deadline_s: How long a process may be at one item.

    Attributes:
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.
    """

    def __init__(
        self,
        processes: int,
        verdicts: Mapping[bytes, VerdictBook],
        pool: WorkerPool,
        snapshots: SnapshotWriter,
        ends: Ends,
        life: Life,
        observer: Observer,
        item_deadline_s: float,
    ) -> None:
        self._processes, self._verdicts, self._pool = processes, verdicts, pool
        self._snapshots, self._ends, self._life, self._observer = snapshots, ends, life, observer
        self._item_deadline_s = item_deadline_s
        self.files_fd = -1
        self._counted: dict[Log, _LogCount] = {}
        self._turn = asyncio.Lock()  # it lets those by that wait longest
        self._waiting = 0
        self._asked: Counter[WorkerProcess] = Counter()  # answers about lines that are to come
        self._standing: dict[WorkerProcess, asyncio.Future[Sequence[LineSnapshot]]] = {}

    def ask(self, log: Log) -> SoFar | None:
        """Have a log counted for a while; None = it is known where it ends, or to be recorded.

        Args:
            log: The ledger of a job, which is finite.
        """
        if log.numbering.is_complete:
            return None
        counted = self._counted.setdefault(log, _LogCount(log))
        counted.wanted_until_s = self._life.loop.time() + WANTED_S
        if not counted.is_running and not self._life.draining:
            counted.is_running = True
            self._life.spawn(self._count(counted))
        return SoFar(counted.so_far(), is_going_on=counted.trouble is None)

    # --- turns ---

    async def _count(self, counted: _LogCount) -> None:
        try:
            while self._is_wanted(counted):
                self._waiting += 1
                async with self._turn:
                    self._waiting -= 1
                    await self._take_turn(counted)
                if counted.trouble is not None:
                    await asyncio.sleep(counted.wait_s)
                    counted.wait_s = min(2 * counted.wait_s, MAX_WAIT_S)
        finally:
            counted.is_running = False

    def _is_wanted(self, counted: _LogCount) -> bool:
        is_late = self._life.loop.time() > counted.wanted_until_s
        return not is_late and bool(counted.missing) and not self._life.draining

    async def _take_turn(self, counted: _LogCount) -> None:
        """Count one job: to its end, or until nobody asks any more, or another one's turn comes."""
        job = counted.log.job
        try:
            await self._look(counted)
            counted.begin_turn(self._new_parts(counted))
            tasks = [asyncio.create_task(part.run()) for part in counted.parts]
            await self._watch(counted, tasks)
            counted.trouble, counted.wait_s = None, FIRST_WAIT_S
        except (PenstockError, OSError) as error:
            # The readers of the job meet the same, where it holds them up. The system may have no
            # memory, process or file left for it, too: nobody but who asks waits for it.
            counted.trouble = error
            logger.warning("counting waits", job=job.name, error=str(error))
        finally:
            counted.end_turn()

    async def _watch(self, counted: _LogCount, tasks: Sequence[asyncio.Task[None]]) -> None:
        began_s = self._life.loop.time()
        try:
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
                others = self._waiting and self._life.loop.time() - began_s > TURN_S
                failed = any(task.done() and task.exception() for task in tasks)
                if others or failed or not self._is_wanted(counted):
                    for part in counted.parts:
                        part.leave()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _new_parts(self, counted: _LogCount) -> list[CountedLanes]:
        job, missing = counted.log.job, set(counted.missing)
        parts = min(self._processes, len(job.lanes_together()))
        told = self.files_fd, self._item_deadline_s
        book = self._verdicts[job.log_id]

        def ended(lane: int, batches: int, in_vain: Mapping[str, int]) -> None:
            self._ends.found(counted.log, lane, batches, in_vain)

        def cost(seconds: float, nbytes: int, media: int, retries: Mapping[str, int]) -> None:
            self._observer.counting(job.name, seconds, nbytes, media)
            self._observer.retried(job.name, retries)

        found = [
            CountedLanes(job, number, parts, missing, counted.marks, book, *told, ended, cost)
            for number in range(parts)
        ]
        return [part for part in found if part.lanes]

    # --- what was planned before ---

    async def _look(self, counted: _LogCount) -> None:
        """Find out how far lanes were planned: what lies below is not planned again."""
        log = counted.log
        await self._ask_lines(counted)
        if counted.has_looked:
            return
        for lane in counted.missing:
            found = await self._snapshots.nearest(log.job.log_id, lane, MAX_POSITION)
            if found is not None:
                counted.mark(lane, Snapshot(found.offset, found.data))
        counted.has_looked = True

    async def _ask_lines(self, counted: _LogCount) -> None:
        """Have the workers say where their lines of a log stand."""
        lines = {line.number: line for lane in counted.log.lanes for line in lane.lines}
        holders = [self._pool[number] for number in {line.worker for line in lines.values()}]
        answers = [self._ask(worker) for worker in holders if worker.ready and not worker.dead]
        if answers:
            await asyncio.wait(answers, timeout=LINES_S)
        for answer in answers:
            for row in answer.result() if answer.done() else ():
                if (line := lines.get(row.line)) is not None:
                    counted.mark(line.lane, Snapshot(row.offset, row.data))

    def _ask(self, worker: WorkerProcess) -> asyncio.Future[Sequence[LineSnapshot]]:
        answer = self._standing[worker] = self._life.loop.create_future()
        self._asked[worker] += 1
        worker.send(TakeSnapshots())
        return answer

    def awaits(self, worker: WorkerProcess) -> bool:
        """Tell whether a worker was asked where its lines stand, and has not answered."""
        return self._asked[worker] > 0

    def lines_stand(self, worker: WorkerProcess, rows: Sequence[LineSnapshot]) -> None:
        """Take a worker's answer; none of its rows where it cannot say it."""
        self._asked[worker] -= 1
        self._answer(worker, rows)

    def lost(self, worker: WorkerProcess) -> None:
        """Wait no more for a worker that is gone."""
        self._asked.pop(worker, None)
        self._answer(worker, ())

    def _answer(self, worker: WorkerProcess, rows: Sequence[LineSnapshot]) -> None:
        answer = self._standing.pop(worker, None)
        if answer is not None and not answer.done():
            answer.set_result(rows)
