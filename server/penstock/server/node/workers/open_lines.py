"""The lines that a worker holds: each is at one offset, and plans go on from there."""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.role_set import RoleSet
from penstock.server.node.protocol.messages import (
    CountsSaid,
    FromWorker,
    LaneEnds,
    LineSnapshot,
    OpenLine,
    Snapshot,
)
from penstock.server.node.workers.block_needs import BlockNeeds
from penstock.server.node.workers.known_jobs import KnownJobs
from penstock.server.pipeline.line import Line
from penstock.wire.errors import Internal, PastEnd, PenstockError


class OpenLines:
    """Lines by number.

    Args:
        jobs: The jobs that they are of.
        progress: Told what is being worked on.
        say: Tells the server process something.

    Attributes:
        by_number: The lines that can go on.
    """

    def __init__(
        self,
        jobs: KnownJobs,
        progress: Callable[[str, ItemRef | None], None],
        say: Callable[[FromWorker], None],
    ) -> None:
        self._jobs, self._progress, self._say = jobs, progress, say
        self.by_number: dict[int, Line] = {}
        self._broken: dict[int, Exception] = {}  # their planner failed; until they are closed

    def open(self, message: OpenLine) -> None:
        """Open a line, from a snapshot where there is one."""
        known = self._jobs[message.log_id]
        self._progress("setup", None)
        line = Line(known.job, message.lane, known.items, message.snapshot)
        self.by_number[message.line] = line

    def close(self, number: int) -> None:
        """Forget a line."""
        self.by_number.pop(number, None)
        self._broken.pop(number, None)
        for known in self._jobs:
            for roles, every in zip(known.job.role_sets, known.block_needs, strict=True):
                for needs in every:
                    if needs.close(number):
                        _keep_blocks(roles, needs)

    def plan_at(self, number: int, offset: int) -> tuple[Line, BatchPlan, list[Snapshot]]:
        """Return a line, its plan at an offset, and the snapshots of the way there.

        A planner that has failed may have changed half of its state, so no plan is taken from it
        any more: tickets that wait behind the failure fail with it, and the line is closed.
        """
        if number in self._broken:
            raise self._broken[number]
        line = self.by_number[number]
        known = self._jobs[line.job.log_id]
        for roles, inner in known.job.lane_roles(line.lane):
            for needs in known.block_needs[roles.number]:
                if needs.use(number, inner):
                    _keep_blocks(roles, needs)
        try:
            planner = line.planner
            snapshots = self._skip(line, offset) if planner.offset != offset else []
            before = planner.drawn
            plan = line.advance()
            known.drawn += planner.drawn - before
            if plan.offset != offset:  # the line must stand there, whatever happened before
                raise Internal(
                    f"a line of lane {line.lane} stood at offset {plan.offset} in place of {offset}"
                )
            return line, plan, snapshots
        except Exception as error:
            del self.by_number[number]
            self._broken[number] = error
            if isinstance(error, PastEnd):
                for message in _ended(line):
                    self._say(message)
            raise

    def plan_ahead(self, line: Line, count: int) -> tuple[list[BatchPlan], bool, list[Snapshot]]:
        """Return plans after the last one, and the snapshots on the way.

        Args:
            line: The line, whose plan `plan_at` has just given.
            count: How many, at most.

        Returns:
            The plans, whether the one after them failed, and the snapshots.
        """
        plans: list[BatchPlan] = []
        snapshots, broken = snapshot_if_due(line), False
        before = line.planner.drawn
        while len(plans) < count:
            try:
                plan = line.planner.next()
            except PenstockError:
                # It fails by name when it is asked for itself; the plans before it are good.
                broken = True
                break
            if plan is None:
                break
            plans.append(plan)
            snapshots += snapshot_if_due(line)
        self._jobs[line.job.log_id].drawn += line.planner.drawn - before
        return plans, broken, snapshots

    def _skip(self, line: Line, offset: int) -> list[Snapshot]:
        snapshots: list[Snapshot] = []
        if line.planner.can_seek():
            line.skip_to(offset)
        while line.offset < offset:
            line.skip_to(line.offset + 1)
            snapshots = snapshot_if_due(line) or snapshots
            self._progress("replay", None)
        return snapshots

    def snapshots(self) -> tuple[LineSnapshot, ...]:
        """Return where every line stands."""
        lines = self.by_number.items()
        return tuple(LineSnapshot(n, line.offset, line.planner.snapshot()) for n, line in lines)


def _keep_blocks(roles: RoleSet, needs: BlockNeeds) -> None:
    """Let sources of a set of roles keep what its lines here read from, and no more."""
    if (count := needs.blocks()) is not None:
        roles.keep_blocks(needs.reading, count)


def snapshot_if_due(line: Line) -> list[Snapshot]:
    """Return a line's snapshot where it stands, if one is to be kept of this offset.

    None is kept of the lane's end. Nothing is planned from there, and what a planner knows of it
    depends on whether somebody has counted: one that was told the end has looked beyond it.
    """
    end = line.planner.end
    if line.offset % line.job.snapshot_every or line.planner.can_seek() or end == line.offset:
        return []
    return [Snapshot(line.offset, line.planner.snapshot())]


def changes_of(line: Line) -> list[FromWorker]:
    """Return what a line's planner has counted or found out and the server process does not know.

    Draws alone are not: every batch has some.
    """
    mark = line.planner.count_mark()
    if mark == line.reported_mark:
        return _ended(line)
    line.reported_mark = mark
    counted = CountsSaid(line.job.log_id, line.lane, line.counters(), line.counters_before())
    return [counted, *_ended(line)]


def _ended(line: Line) -> list[FromWorker]:
    """Return where a finite lane ends, if its planner has just found it out.

    The server process knows what arithmetic says.
    """
    end = line.planner.end
    if end is None or line.reported_end or line.job.epochs is None:
        return []
    if line.job.known_end(line.lane) is not None:
        return []
    line.reported_end = True
    return [LaneEnds(line.job.log_id, line.lane, end, {} if end else line.counters())]
