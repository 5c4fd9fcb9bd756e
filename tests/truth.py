"""What the batches of a job are, computed here without a node: what others give is compared."""

from __future__ import annotations

from penstock.server.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.line import Computed, Line, compute, nearest_line
from penstock.wire.numbering import Located
from penstock.wire.order import Cut


class Truth:
    """Computes batches of one job, in the process that calls it.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._items, self._order = Items(job), KnownOrder(job)
        self._lines: dict[int, Line] = {}

    def batch(self, position: int, cut: Cut | None = None, *, filler: bool = False) -> Computed:
        """Return the batch at a position; going upwards is cheap, going back starts a lane again.

        Args:
            position: Which.
            cut: How a finite log is cut into steps: a padding position gives the blanked batch.
            filler: As for `compute`.

        Raises:
            PastEnd, PositionFar: There is no such position, or it is too far.
        """
        located = self.locate(position, cut)
        lane, offset, _ = located
        # Taken out: a lane whose batch fails is started again, its state may be half changed.
        line = self._lines.pop(lane, None)
        if line is None or not line.has_plan(offset):
            line = nearest_line(self.job, lane, offset, self._items, line, lambda *_: None)
        line.kept_plans = self._step_rows(cut)
        computed = compute(self.job, position, located, line, filler=filler)
        self._keep(line)
        return computed

    def locate(self, position: int, cut: Cut | None = None) -> Located:
        """Return which batch stands at a position; plan what that depends on, where necessary.

        Raises:
            PastEnd: It lies past the end.
        """
        return self._order.locate(
            position, cut, lambda lane, at: self._look(lane, at, self._step_rows(cut))
        )

    def samples(self, position: int) -> int:
        """Return how many samples the batch at a position has, without making it.

        Raises:
            PastEnd, PositionFar: As `batch`.
        """
        lane, offset, _ = self.locate(position)
        line = self._lines.pop(lane, None)
        line = nearest_line(self.job, lane, offset, self._items, line, lambda *_: None)
        line.skip_to(offset)
        self._lines[lane] = line
        return line.advance().samples

    def _step_rows(self, cut: Cut | None) -> int:
        """Return of how many batches of a lane those of a step may be, at most."""
        return 2 + (0 if cut is None else cut.batches_per_step // self.job.lanes)

    def _look(self, lane: int, offset: int, kept: int) -> None:
        line = self._lines.pop(lane, None)
        # From where its next batch stands, not from there: plans on the way are made, most often.
        start = offset if line is None or line.offset > offset else line.offset
        line = nearest_line(self.job, lane, start, self._items, line, lambda *_: None)
        line.look(offset, kept)
        self._keep(line)

    def _keep(self, line: Line) -> None:
        self._lines[line.lane] = line
        self._order.reached(line.lane, line.planner.offset, line.end, line.counters())


__all__ = ["Truth"]
