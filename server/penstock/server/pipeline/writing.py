"""A batch on its way from values to bytes, which a worker writes where they shall lie."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.server.core.refs import BatchPlan
from penstock.wire.frame import BodyLayout, write_body, write_header


class MadeBatch:
    """A batch whose values are there, to be written wherever its body shall lie.

    Attributes:
        counts: Integers that travel with it, of what it holds.
        accounting: What was left out and cut on the way to it. A blank batch has none: the batch
            that it was made from has it.
        exits: The part of it that was found while the batch was made.
        nbytes: Bytes of the body, as it travels.
        body_bytes: Bytes that it has at its reader.
        emptied: Every item of it was left out.
        plan: What it was made of, with what joins it: any worker makes it of this alone.
    """

    def __init__(
        self,
        log_id: bytes,
        plan: BatchPlan,
        layout: BodyLayout,
        counts: Mapping[str, int],
        accounting: Mapping[str, int],
        exits: Mapping[str, int],
        padding: bool,
        emptied: bool,
        epoch: int,
        decided: BatchPlan,
    ) -> None:
        self._log_id, self._plan, self._layout, self._epoch = log_id, plan, layout, epoch
        self.plan = decided
        self.counts, self.padding, self.emptied = counts, padding, emptied
        self.accounting, self.exits = accounting, exits
        self.nbytes, self.body_bytes = layout.sent_bytes, layout.nbytes

    def write(self, out: memoryview) -> bytes:
        """Write the body to exactly `nbytes` bytes and return the header, without its position."""
        crc = write_body(self._layout, out)
        samples = [
            (row, *ref.item, ref.part, ref.span)
            for row, refs in enumerate(self._plan.rows)
            for ref in refs
        ]
        return write_header(
            self._layout,
            self._log_id,
            self._plan.lane,
            self._plan.offset,
            crc,
            self.counts,
            samples,
            self.padding,
            self._epoch,
            self.accounting,
        )
