"""Which lines a log's lanes have in workers: found, opened at the nearest start, and closed."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection

from penstock.server.job.job import Job
from penstock.server.node.demand.lane_state import (
    MAX_LINES_PER_LANE,
    LaneState,
    LineStart,
    LineState,
)
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.wanted import WantedBatch
from penstock.server.node.protocol.messages import CloseLine, OpenLine
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.node.supply.worker_pool import WorkerPool
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.pipeline.line import far
from penstock.server.pipeline.planner import seekable_lanes
from penstock.wire.errors import PenstockError

_max_replay = operator.attrgetter("max_replay")


class LaneLines:
    """The lines of all lanes, as the server process decides on them.

    Args:
        pool: The workers, which hold them.
        snapshots: Where lines may start.
        life: The node's.
        schedule: Called when a ticket may be given out.
        go_on: Gives a batch to a line that is to plan its way there.
    """

    def __init__(
        self,
        pool: WorkerPool,
        snapshots: SnapshotWriter,
        life: Life,
        schedule: Callable[[], None],
        go_on: Callable[[Log, WantedBatch, LaneState, LineState], None],
    ) -> None:
        self._pool, self._snapshots, self._life = pool, snapshots, life
        self._schedule, self._go_on = schedule, go_on
        self._numbers = itertools.count(1)  # unique in this process

    def seekable(self, job: Job, lane: int) -> bool:
        """Tell whether arithmetic leads to any plan of a lane: then its lines need no snapshots."""
        return seekable_lanes(job)[lane]

    def find(self, log: Log, lane: LaneState, offset: int) -> LineState | None:
        """Return the line of a lane that goes on to an offset; None = none is near."""
        if self.seekable(log.job, lane.lane):
            return lane.lines[0] if lane.lines else None
        on_its_way = (line for line in lane.lines if line.next <= offset == line.heading)
        return next(on_its_way, None) or lane.find_line(offset, log.job.snapshot_every)

    def look(self, log: Log, lane: LaneState, entry: WantedBatch) -> None:
        """Begin to find out where a line for this entry can start, unless that is under way."""
        offset = entry.key.offset
        if offset not in lane.looking:
            lane.looking.add(offset)
            self._life.spawn(self._look(log, lane, entry))

    async def _look(self, log: Log, lane: LaneState, entry: WantedBatch) -> None:
        """Find out where a line for this entry can start best: a line, a snapshot, or offset 0."""
        job, offset, seekable = log.job, entry.key.offset, self.seekable(log.job, lane.lane)
        try:
            snapshot = None
            if not seekable and offset:  # one that drained leaves some anywhere
                snapshot = await self._snapshots.nearest(job.log_id, lane.lane, offset)
            base = snapshot.offset if snapshot is not None else 0
            line = lane.find_line(offset, offset + 1)
            if line is not None and log.assignment.of(lane.lane) not in (None, line.worker):
                line = None  # its group was handed on
            if line is not None and line.next >= base:
                base = line.next
            reach = max((reader.job for reader in entry.readers), key=_max_replay, default=job)
            if offset - base > reach.max_replay and not seekable:
                log.failed(entry, far(reach, lane.lane, offset, base))
            elif line is not None and line.next >= base and not seekable:
                # It plans its way there: a longer reach than usual, this once.
                self._go_on(log, entry, lane, line)
            elif log.wants(entry):
                data = None if snapshot is None else snapshot.data
                lane.add_start(offset, LineStart(base, data))
        except PenstockError as error:
            log.failed(entry, error)
        finally:
            lane.looking.discard(offset)
            self._schedule()

    def open(self, log: Log, lane: LaneState, worker: WorkerProcess, start: LineStart) -> LineState:
        """Open a line in a worker, and close the least recently used ones that are too many."""
        idle = lane.idle_lines()
        # There may be several too many: while all were busy none could be closed.
        while len(lane.lines) >= MAX_LINES_PER_LANE and idle:
            self.close(lane, idle.pop())
        number = next(self._numbers)
        line = LineState(number, worker.number, lane.lane, start.offset, start.offset)
        lane.lines.append(line)
        worker.send(OpenLine(line.number, log.job.log_id, lane.lane, start.snapshot))
        return line

    def close(self, lane: LaneState, line: LineState) -> None:
        """Close a line, in the ledger and in its worker."""
        if line in lane.lines:
            lane.lines.remove(line)
            self._pool[line.worker].send(CloseLine(line.number))
            if not lane.lines:
                # Another node may go on with it, and meet items there: hear of these first.
                lane.reserved = 0

    def close_all(self, lane: LaneState) -> None:
        """Close every line of a lane."""
        for line in list(lane.lines):
            self.close(lane, line)

    def close_of(self, worker: WorkerProcess, logs: Collection[Log], but: LineState | None) -> None:
        """Close the lines that a worker holds of some logs, but one."""
        for log in logs:
            for lane in log.lanes:
                for line in list(lane.lines):
                    if line.worker == worker.number and line is not but:
                        self.close(lane, line)

    def is_damaged(self, log: Log, lane: LaneState, line: LineState) -> None:
        """Look for other starts: the snapshot that a line was to start from is unusable."""
        # No start is looked for before the snapshot is gone.
        held = {entry.key.offset for entry in lane.wanted}
        lane.looking |= held
        self._life.spawn(self._drop_snapshot(log.job, lane, line.start, held))

    async def _drop_snapshot(self, job: Job, lane: LaneState, offset: int, held: set[int]) -> None:
        """Remove an unusable snapshot; the next look finds an older one, or the lane's start."""
        lane.drop_starts(offset)
        try:
            await self._snapshots.drop(job.log_id, lane.lane, offset)
        finally:
            lane.looking -= held
            self._schedule()
