"""What readers of a log are not given, although it is ready, or could be made."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.server.node.demand.lane_state import LaneState
from penstock.server.node.demand.wanted import Demand
from penstock.wire.errors import PenstockError
from penstock.wire.numbering import Numbering
from penstock.wire.order import MAX_POSITION, Share

Halted = tuple[int, PenstockError]
"""Where a lane is halted: the offset of the batch that is not to come, and why."""


class Withheld:
    """Why readers of a log are given less than there is.

    Args:
        numbering: Where batches of the log stand.
        lanes: Its lanes.
        readers: Its readers.

    Attributes:
        unproven: Nothing is given away before other packages are proven, this many times.
        refused: They make another log.
        here: Where lanes are halted that have stopped at this node, by lane.
        elsewhere: The same of other nodes.
    """

    def __init__(
        self, numbering: Numbering, lanes: Sequence[LaneState], readers: Collection[Demand]
    ) -> None:
        self._numbering, self._lanes, self._readers = numbering, lanes, readers
        self.unproven = 0
        self.refused: PenstockError | None = None
        self.here: dict[int, Halted] = {}
        self.elsewhere: dict[int, Halted] = {}

    def __bool__(self) -> bool:
        """Tell whether there is anything to look at: this is asked for every batch."""
        return bool(self.unproven or self.here or self.elsewhere or self.refused is not None)

    def halt(self, lane: int, offset: int, error: PenstockError) -> None:
        """Let no rank enter the step of a batch that is not to come."""
        self.here.setdefault(lane, (offset, error))
        self.wake_all()

    def halt_elsewhere(self, halted: dict[int, Halted]) -> None:
        """The same for lanes that are stopped at other nodes: these, and no others any more."""
        self.elsewhere = halted
        if halted:
            self.wake_all()

    def wake_all(self) -> None:
        """Have every reader look again."""
        for reader in list(self._readers):
            reader.wake()

    def stops(self, share: Share, head: int, *, raises: bool) -> bool:
        """Tell whether a reader is given nothing now.

        Args:
            share: Its own.
            head: Its next position.
            raises: Raise why, where it never will be.

        Raises:
            PenstockError: See `raises`.
        """
        stop, why = self._halted_from(share)
        why = self.refused or (why if head >= stop else None)
        if why is not None and raises:
            raise why
        return self.unproven > 0 or why is not None

    def _halted_from(self, share: Share) -> tuple[int, PenstockError | None]:
        """Return where the first step begins that some rank cannot end, and why.

        A rank alone is told when it needs the batch itself.
        """
        first, why = MAX_POSITION + 1, None
        if share.world_size == 1:
            return first, why
        size, order = share.batches_per_step, self._numbering.order
        for lane, (offset, error) in [*self.here.items(), *self.elsewhere.items()]:
            if self._lanes[lane].has_ended(offset):
                continue
            step = order.position(lane, offset) // size * size
            if step < first:
                first, why = step, error
        if why is not None:
            # Whoever has batches of that step already must not enter it either.
            why = why.with_fields(why.message, {**why.fields, "halted_from": first})
        return first, why
