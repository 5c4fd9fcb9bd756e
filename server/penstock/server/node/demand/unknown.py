"""What one reader waits to know of its log: where its next batch stands, or what its end drops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.server.node.demand.dropped import Dropped
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.wanted import BatchState, WantedBatch
from penstock.wire.errors import PenstockError
from penstock.wire.order import Cut, LaneOffset


class Position(Protocol):
    """Where a reader stands: see `Reader`."""

    log: Log
    cut: Cut | None
    wake: Callable[[], None]

    @property
    def finished(self) -> bool:
        """Tell whether everything up to the log's end was taken."""

    @property
    def lacks(self) -> int | None:
        """Return up to which position it must be known what stands where; None = it is known."""


class Unknown:
    """What a reader waits to know; `Asks` has it planned.

    Args:
        reader: The reader.

    Attributes:
        position: The own position that it has looked for, and nobody knows yet; None = none.
    """

    def __init__(self, reader: Position) -> None:
        self._reader = reader
        self.position: int | None = None
        self._error: PenstockError | None = None  # of a batch that was asked for

    @property
    def _dropped(self) -> Dropped | None:
        reader = self._reader
        return None if reader.cut is None or reader.cut.pad else reader.log.dropped(reader.cut)

    def needed(self) -> Iterable[LaneOffset]:
        """Return the batches of which it must be known more, for the next one or for the end."""
        reader = self._reader
        if reader.finished:
            dropped = self._dropped
            return () if dropped is None else dropped.missing()
        position = reader.lacks
        return () if position is None else reader.log.numbering.missing(position)

    def learned(self) -> None:
        """Note that more is known of where batches stand, or of what they hold."""
        reader = self._reader
        if reader.finished and self._dropped is not None:
            reader.wake()
        if self.position is not None and self.position < reader.log.numbering.known(reader.cut):
            self._error = None  # it is known now, in spite of it
            reader.wake()

    def failed(self, error: PenstockError | None) -> None:
        """Note that a batch which was asked for cannot be planned."""
        self._error = error
        self._reader.wake()

    def check(self, entry: WantedBatch | None) -> None:
        """Raise why it is not known what stands at the next position, if that has failed.

        Args:
            entry: The batch that stands there, as far as is known; None = the reader wants none.

        Raises:
            PenstockError: What is needed cannot be planned.
        """
        error, self._error = self._error, None
        frontier = self._reader.log.numbering.frontier
        if entry is not None and entry.state is BatchState.FAILED and entry.key[1:3] == frontier:
            error = entry.error
        if error is not None:
            raise error

    def dropped_samples(self) -> int | None:
        """Return how many samples fill no step, once all was taken; None = not known yet.

        Raises:
            PenstockError: One of their batches cannot be planned.
        """
        dropped = self._dropped
        samples = 0 if dropped is None else dropped.samples
        if samples is None:
            self.check(None)
        return samples
