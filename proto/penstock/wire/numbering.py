"""What is known so far of a log's order: which batch stands at a position, or "not known yet".

Where the lanes of a finite log end may become known only as they are planned. Two facts about a
lane are learned, in any order and from anybody, and neither is ever taken back: it holds at least
so many batches, and it holds exactly so many. Batches are ordered by (offset, lane) and numbered
without gaps, so all positions are known below the first (offset, lane) of which it is not known
whether it exists, and none from there on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.wire.errors import InvalidRequest, LogDiverged
from penstock.wire.order import MAX_POSITION, Cut, LaneOffset, Order, Tail, past_end


class Located(NamedTuple):
    """Which batch stands at a position.

    Attributes:
        lane: Its lane.
        offset: Its offset.
        blanked: The position is padding: it gets a blanked copy of that batch.
    """

    lane: int
    offset: int
    blanked: bool = False


class Numbering:
    """The order of one log, as far as it is known.

    Args:
        lanes: How many lanes the log has, at least 1.
        ends: For a finite log, how many batches each lane holds, None where that is not known yet;
            None in place of all of them = endless.

    Attributes:
        order: The order, in which a lane whose end is not known counts as one without an end.
        in_vain: What planners counted in lanes that hold no batch, by lane and name: for people,
            who want to know why. No position depends on it.
    """

    def __init__(self, lanes: int, ends: Sequence[int | None] | None = None) -> None:
        self.order = Order(lanes, None if ends is None else tuple(ends))
        self._reaches = [end or 0 for end in ends or ()]
        self._sum = sum(self._reaches)
        # (reach, lane) of the lanes whose end is not known; a reach may have grown since.
        self._open = [(0, lane) for lane, end in enumerate(ends or ()) if end is None]
        self.in_vain: dict[int, Mapping[str, int]] = {}

    @property
    def is_finite(self) -> bool:
        """Whether the log ends, be it known where or not."""
        return self.order.ends is not None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be learned."""
        return not self._open

    @property
    def batches(self) -> int | None:
        """T, the number of batches in the log; None where it is endless, or not known yet."""
        return self.order.batches

    @property
    def least(self) -> int:
        """How many batches a finite log holds at least."""
        return self._sum

    def end_of(self, lane: int) -> int | None:
        """Return how many batches a lane holds; None where it is endless, or not known yet."""
        return None if self.order.ends is None else self.order.ends[lane]

    # --- learning ---

    def reach(self, lane: int, batches: int) -> None:
        """Learn that a lane holds at least so many batches.

        Raises:
            LogDiverged: It was known to hold fewer.
        """
        if self.order.ends is None or batches <= self._reaches[lane]:
            return
        end = self.order.ends[lane]
        if end is not None:
            raise two_ends(lane, end, f"at least {batches}")
        self._sum += batches - self._reaches[lane]
        self._reaches[lane] = batches

    def end(self, lane: int, batches: int) -> None:
        """Learn how many batches a lane holds; saying it twice changes nothing.

        Raises:
            InvalidRequest: The log is endless.
            LogDiverged: It was known to hold another number, or more.
        """
        self.end_all({lane: batches})

    def end_all(self, found: Mapping[int, int]) -> None:
        """Learn how many batches some lanes hold, by their numbers; many cost what one does.

        Raises:
            InvalidRequest, LogDiverged: As `end`; then nothing was learned.
        """
        for lane, batches in found.items():
            self.check_end(lane, batches)
        ends = list(self.order.ends or ())
        fresh = {lane: batches for lane, batches in found.items() if ends[lane] is None}
        if not fresh:
            return
        for lane, batches in fresh.items():
            self.reach(lane, batches)
            ends[lane] = batches
        self.order = Order(self.order.lanes, tuple(ends))
        self._settle()

    def check_end(self, lane: int, batches: int) -> None:
        """Refuse an end that cannot be; learn nothing.

        Raises:
            InvalidRequest, LogDiverged: As `end`.
        """
        if self.order.ends is None:
            raise InvalidRequest(
                f"lane {lane} of an endless log has no end", field="lane", value=lane
            )
        known = self.order.ends[lane]
        if known is None and batches < self._reaches[lane]:
            known = self._reaches[lane]
        if known not in (None, batches):
            raise two_ends(lane, known, batches)

    def _settle(self) -> None:
        """Bring the lane of which least is known to the front, and drop those that have ended."""
        while self._open:
            reach, lane = self._open[0]
            if self.end_of(lane) is not None:
                heapq.heappop(self._open)
            elif self._reaches[lane] > reach:
                heapq.heapreplace(self._open, (self._reaches[lane], lane))
            else:
                return

    # --- asking ---

    @property
    def frontier(self) -> LaneOffset | None:
        """The first (offset, lane) of which it is not known whether it exists; None = complete."""
        self._settle()
        return LaneOffset(self._open[0][1], self._open[0][0]) if self._open else None

    def known(self, cut: Cut | None = None) -> int:
        """Return the first position that `locate` says nothing of; above all where complete.

        Args:
            cut: As for `locate`.
        """
        frontier = self.frontier
        if frontier is None:
            return MAX_POSITION + 1
        below = self.order.position(*frontier)
        if cut is None or cut.pad:
            return below
        # A step that may turn out not to be full is given to nobody: others would wait for the
        # ranks whose batches of it are missing.
        return min(below, self._sum - self._sum % cut.batches_per_step)

    def locate(self, position: int, cut: Cut | None = None) -> Located | None:
        """Return which batch stands at a position; None = not known yet.

        Args:
            position: Its number.
            cut: How the log is cut into steps, for a reader: a padding position T + k gets the
                batch at T - 1 - (k mod min(T, G)), blanked, so that it has real shapes; what fills
                no step is past the end where it is left out. None = the log's own positions.

        Raises:
            InvalidRequest: The position is negative or does not fit 63 bits.
            PastEnd: It lies past the end.
        """
        if self.known(cut) <= position <= MAX_POSITION:
            return None
        return self.assume(position, cut)

    def assume(self, position: int, cut: Cut | None = None) -> Located:
        """Return what `locate` gives if no further lane ends before this position.

        Raises:
            InvalidRequest, PastEnd: As `locate`.
        """
        tail = self.tail(cut)
        if tail is None:
            return Located(*self.order.lane_offset(position))
        if position >= tail.end:
            raise past_end(position, tail.batches)
        source = tail.blanked(position)
        found = self.order.lane_offset(position if source is None else source)
        return Located(*found, source is not None)

    def tail(self, cut: Cut | None) -> Tail | None:
        """Return how a log of known length is cut into steps."""
        return None if cut is None or self.batches is None else cut.tail(self.batches)

    def missing(self, position: int) -> Iterator[LaneOffset]:
        """Yield of each lane the last batch that must be known of, for `known() > position`.

        Those of which it is not known whether they exist, if no further lane ends before.
        """
        if not self._open:
            return
        last = self.order.lane_offset(position)
        for lane, reach in enumerate(self._reaches):
            rows = last.offset + (lane <= last.lane)
            if reach < rows and self.end_of(lane) is None:
                yield LaneOffset(lane, rows - 1)


def two_ends(lane: int, known: int | None, now: int | str) -> LogDiverged:
    """Return the error for a lane that ends in two places."""
    return LogDiverged(
        f"lane {lane} was counted to hold {known} batches, and now holds {now}: a role gives "
        "another number of samples than before, or an item fails or works that did not; run "
        "`penstockd check`",
        what=f"end of lane {lane}",
        lane=lane,
        ours=now,
        theirs=known,
    )
