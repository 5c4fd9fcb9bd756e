"""Where the batches of a finite job stand, for a process that computes them by itself.

It learns what a node learns (`penstock.wire.numbering`), by planning lanes as far as a position
depends on them: nobody waits for a whole epoch to be counted.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planner import Planner, open_planner
from penstock.wire.numbering import Located
from penstock.wire.order import Cut


class KnownOrder:
    """What is known of the order of one job, and more as it is asked for.

    Planners of its own go ahead of the lines that make batches, so where planning needs the items
    they are processed twice, as by a count. Verdicts that it finds are found again by those lines.

    Args:
        job: The job; it is told where lanes end, as that is found.
        items: Fetches and processes; None = new ones.

    Attributes:
        numbering: What is known.
    """

    def __init__(self, job: Job, items: Items | None = None) -> None:
        job.check_end()
        self.job, self.numbering = job, job.numbering()
        self._items = items or Items(job)
        self._planners: dict[int, Planner] = {}

    def locate(self, position: int, cut: Cut | None = None) -> Located:
        """Return which batch stands at a position; plan what that depends on, where necessary.

        Args:
            position: Its number.
            cut: As for `Numbering.locate`.

        Raises:
            PastEnd: It lies past the end.
            PenstockError: A lane cannot be planned.
        """
        while (found := self.numbering.locate(position, cut)) is None:
            last = position
            if cut is not None and not cut.pad:
                size = cut.batches_per_step
                last = (position // size + 1) * size - 1
            for lane, offset in list(self.numbering.missing(last)):
                self._plan(lane, offset)
        return found

    def count(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Plan all lanes to their ends.

        Side by side, so that a block of storage is decoded for all of them at once.

        Args:
            is_enough: Asked after each batch whether to leave it at that.

        Raises:
            PenstockError: A lane cannot be planned.
        """
        while (frontier := self.numbering.frontier) is not None and not is_enough():
            self._plan(frontier.lane, frontier.offset)

    def _plan(self, lane: int, offset: int) -> None:
        """Find out whether a lane holds a batch at an offset."""
        # Taken out: one that fails is not used again, its state may be half changed.
        planner = self._planners.pop(lane, None) or open_planner(self.job, lane, self._items)
        while planner.offset <= offset:
            is_over = planner.next() is None
            planner.forget()
            end = planner.offset if is_over else planner.end
            if end is not None:
                self._ends(lane, end)
                return
        self._planners[lane] = planner
        self.numbering.reach(lane, planner.offset)

    def _ends(self, lane: int, batches: int) -> None:
        self.numbering.end(lane, batches)
        ends = self.numbering.order.ends
        assert ends is not None
        self.job.set_lane_ends(ends)


__all__ = ["KnownOrder"]
