"""A fixed number of samples, each a row of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.common.checks import check_flag, check_whole
from penstock.server.core.refs import Rows, SampleRef
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.samples import Sample


class SimpleBatcher(SampleBatcher):
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

    def __init__(self, batch_size: int, drop_last: bool = False) -> None:
        self.batch_size = check_whole("batch_size", batch_size, 1, "the samples of a batch")
        self.drop_last = check_flag("drop_last", drop_last)
        self._held: list[SampleRef] = []
        self._tail = 0

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batch that it completed, if it did."""
        self._held.append(ref)
        return [self._batch()] if len(self._held) == self.batch_size else []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the samples of the batch that is not full."""
        if not self.keeps(SimpleBatcher):  # a subclass may hold more
            return super().pending
        return self._held

    @property
    def may_split(self) -> bool:
        """Tell whether samples may be split: never, as far as this class decides."""
        return self.is_of_user()

    @property
    def may_refuse(self) -> bool:
        """Tell whether `add` may raise: never, as far as this class decides."""
        return not self.keeps(SimpleBatcher)

    def flush(self) -> list[Rows]:
        """Return the shorter last batch, or drop it."""
        if self.drop_last:
            self._tail += len(self._held)
            self._held = []
        return [self._batch()] if self._held else []

    def dropped(self) -> dict[str, int]:
        """Return `tail`: samples left out at the end of the lane."""
        return {"tail": self._tail}

    def batches(self, draws: int) -> int:
        """Return how many batches `draws` samples make, the shorter last one included."""
        return draws // self.batch_size if self.drop_last else -(-draws // self.batch_size)

    def draws_before(self, offset: int) -> int:
        """Return how many samples precede batch `offset`."""
        return offset * self.batch_size

    def _batch(self) -> Rows:
        batch = [[ref] for ref in self._held]
        self._held = []
        return batch
