"""Where the batches of a finite job stand, for a process that computes them by itself.

It learns what a node learns (`penstock.wire.numbering`), by planning lanes as far as a position
depends on them: nobody waits for a whole epoch to be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planner import Planner, open_planner
from penstock.wire.errors import PastEnd
from penstock.wire.numbering import Located
from penstock.wire.order import Cut


class SoFar(NamedTuple):
    """How far it is known how many batches a finite job has, where that is being found out.

    Attributes:
        text: For people.
        is_going_on: More of it is being found out.
    """

    text: str
    is_going_on: bool = True


def expected_draws(job: Job, lane: int) -> int | None:
    """Return how many draws a lane of a finite job has; None = not known before it ends."""
    parts = job.lane_roles(lane)
    # A lane of several sets is over where one of them is.
    return parts[0].draws if len(parts) == 1 else None


def items_counted(done: int, draws: Iterable[int | None]) -> str:
    """Return for people how many items are counted.

    Args:
        done: That many.
        draws: How many each lane draws.
    """
    known = list(draws)
    total = sum(each or 0 for each in known)
    return f"{done:,}{'' if None in known else f' of {total:,}'} items are counted"


Look = Callable[[int, int], None]
"""`(lane, offset)`: plans a lane as far as to know whether it holds a batch there."""


class KnownOrder:
    """What is known of the order of one job, and more as it is asked for.

    Who makes batches plans by the lines that make them (`look`). Where nobody does, and to count,
    it has planners of its own: what these process, whoever makes the batches processes once more,
    and verdicts that they find are found again.

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

    def locate(self, position: int, cut: Cut | None = None, look: Look | None = None) -> Located:
        """Return which batch stands at a position; plan what that depends on, where necessary.

        Args:
            position: Its number.
            cut: As for `Numbering.locate`.
            look: Plans a lane up to an offset, and calls `reached`.

        Raises:
            InvalidJob: The log holds no batch at all.
            PastEnd: It lies past the end.
            PenstockError: A lane cannot be planned.
        """
        while (found := self._located(position, cut)) is None:
            last = position
            if cut is not None and not cut.pad:
                size = cut.batches_per_step
                last = (position // size + 1) * size - 1
            for lane, offset in list(self.numbering.missing(last)):
                (look or self._plan)(lane, offset)
        return found

    def reached(self, lane: int, batches: int, end: int | None, in_vain: Mapping[str, int]) -> None:
        """Learn that a lane holds at least so many batches, and its end where that is known.

        Args:
            lane: The lane.
            batches: So many.
            end: How many it holds; None = not known.
            in_vain: What was counted of it, where it holds none.
        """
        if not self.numbering.is_finite or self.numbering.end_of(lane) is not None:
            return
        if end is None:
            self.numbering.reach(lane, batches)
            return
        if not end:
            self.numbering.in_vain[lane] = in_vain
        self._ends(lane, end)

    def _located(self, position: int, cut: Cut | None) -> Located | None:
        try:
            return self.numbering.locate(position, cut)
        except PastEnd:
            self.job.check_not_empty(self.numbering)
            raise

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
                self.reached(lane, end, end, planner.counts())
                return
        self._planners[lane] = planner
        self.reached(lane, planner.offset, None, {})

    def _ends(self, lane: int, batches: int) -> None:
        self.numbering.end(lane, batches)
        ends = self.numbering.order.ends
        assert ends is not None
        self.job.set_lane_ends(ends)
