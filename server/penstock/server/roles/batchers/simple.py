"""A fixed number of samples, each a row of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Annotated, ClassVar

import numpy as np

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.roles.batcher import BatcherFacts, SampleBatcher
from penstock.server.roles.batchers.packer import Integers, PacksWindows, Pieces, WindowRows
from penstock.server.roles.parameters import AtLeast, TrueOrFalse, declared
from penstock.server.roles.samples import Sample


@declared
class SimpleBatcher(SampleBatcher, PacksWindows):
    """Forms batches of `batch_size` samples in the order of the draws.

    Sizes are not looked at, and if every draw gives one sample, any offset of a lane is found by
    arithmetic.

    Args:
        batch_size: How many samples a batch has.
        drop_last: Drop the samples of a last batch that is not full; they are counted as `tail`.
            False makes a shorter last batch of them.

    Raises:
        InvalidJob: The batch size is below 1.
    """

    type_name: ClassVar[str] = "simple"
    version: ClassVar[int | str | None] = 1
    needs_sizes: ClassVar[bool] = False

    batch_size: Annotated[int, AtLeast(1, "the samples of a batch")]
    drop_last: Annotated[bool, TrueOrFalse()] = False

    def __post_init__(self) -> None:
        self._held: list[SampleRef] = []
        self._tail = 0

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batch that it completed, if it did."""
        self._held.append(ref)
        return [self._batch()] if len(self._held) == self.batch_size else []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the samples of the batch that is not full."""
        if self.is_of_user():  # a subclass may hold more
            return super().pending
        return self._held

    def facts(self) -> BatcherFacts:
        """Return how many samples a batch has; each is taken, whole."""
        return BatcherFacts(
            sizes_kept=(0, inf),
            may_split=False,
            may_refuse=False,
            samples_of_batch=self.batch_size,
            drops_tail=self.drop_last,
        )

    def flush(self) -> list[Rows]:
        """Return the shorter last batch, or drop it."""
        if self.drop_last:
            self._tail += len(self._held)
            self._held = []
        return [self._batch()] if self._held else []

    def dropped(self) -> dict[str, int]:
        """Return `tail`: samples left out at the end of the lane."""
        return {"tail": self._tail}

    def pack_window(self, sizes: Integers, counts: Integers | None = None) -> WindowRows:
        """Return rows of one sample each."""
        kept = len(sizes) - len(sizes) % self.batch_size if self.drop_last else len(sizes)
        self._tail += len(sizes) - kept
        whole = np.full(kept, -1, np.int64)
        pieces = Pieces(np.arange(kept), whole, whole, sizes[:kept])
        return WindowRows(pieces, np.arange(kept + 1), self.batch_size, in_order=True)

    def count_batches(self, sizes: Integers) -> int:
        """Return what arithmetic says."""
        return -(-len(self.pack_window(sizes).pieces.slots) // self.batch_size)

    def _batch(self) -> Rows:
        batch = [[ref] for ref in self._held]
        self._held = []
        return batch
