"""Packing in nearly the order of the draws, with a short look ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from math import inf
from typing import Annotated, ClassVar

from penstock.server.core.refs import Row, Rows, SampleRef
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.latent_tokens import LatentTokens
from penstock.server.roles.batchers.limits import CountLimits
from penstock.server.roles.batchers.packer import PackingBatcher, cut_batches, holds_item
from penstock.server.roles.parameters import AtLeast, declared
from penstock.server.roles.samples import MAX_SIZE, Sample
from penstock.wire.errors import InvalidJob

ESTIMATED = (
    "tokenizer_spatial_compression_factor",
    "tokenizer_temporal_compression_factor",
    "patch_spatial",
    "sound_latent_fps",
    "audio_sample_rate",
)
"""Parameters of the estimate; the first asks for it."""


@declared
class SequentialPackingBatcher(PackingBatcher):
    """Packs samples into rows, in order; a few that do not fit may be overtaken.

    The algorithm is that of cosmos-framework's `SequentialPackingBatcher`, fed sample by sample. A
    sample that would bring the row to `max_sequence_length` is set aside; the row is finished when
    it holds something and `lookahead_limit` samples are set aside, and these, in their order, are
    the first candidates for the next row. A sample that alone reaches `max_sequence_length` is
    dropped as `overlong` when it comes, but is set aside like others that do not fit and counts
    towards the limit until it would be the first: so rows are those of the original. One of size 0
    is dropped as `empty`.

    A sample of an item that is in the row already does not fit: on small data several epochs meet.

    With `max_samples_per_batch` rows are finished by count, and sizes are not looked at: if every
    draw gives one sample, any offset of a lane is found by arithmetic.

    At the lane's end the row and the samples set aside become rows, in order.

    Args:
        max_sequence_length: The number of tokens that a row stays below: it has at least one less,
            as in the original.
        max_samples_per_batch: How many samples a row has. Give this or `max_sequence_length`.
        lookahead_limit: How many samples that do not fit may be set aside before a row is finished.
            More leave less padding, and change the order of the draws more; with 0 every sample is
            a row of its own.
        rows: How many consecutive rows a batch has. The last batch of a lane may have fewer.
        limits: What a row may count beside, by the processor's measures, for example `{images: 8}`:
            a sample that would bring the row above one is set aside, and one that is above by
            itself is dropped as `overlong_images`. Smaller limits bound a step's memory and leave
            more padding.
        length_key: The value of a sample whose length is its size, or with an estimate the one that
            holds its text.
        tokenizer_spatial_compression_factor: Estimate sizes as the original does, of `images`,
            `video`, `action` and `sound`, too: this many pixels of a side are one of a latent
            picture (16 there). None = a size is a length. It is known when an item is processed.
        tokenizer_temporal_compression_factor: With an estimate: frames that become one.
        patch_spatial: With an estimate: pixels of a side of a latent picture that become a token.
        sound_latent_fps: With an estimate: tokens of a second of sound. 0 = sound takes none.
        audio_sample_rate: With an estimate: points of a second of sound.

    Raises:
        InvalidJob: Both limits or none are given, or a number is too small.
    """

    type_name: ClassVar[str] = "sequential"
    version: ClassVar[int | str | None] = 4

    dropped_for: ClassVar[Sequence[str]] = ("empty", "overlong")

    # Strictly below the budget: a budget of 1 would leave out every sample.
    max_sequence_length: Annotated[int | None, AtLeast(2, "what a row stays below")] = None
    max_samples_per_batch: Annotated[int | None, AtLeast(1, "the samples of a row")] = None
    lookahead_limit: Annotated[int, AtLeast(0, "the samples that may be set aside")] = 10
    rows: Annotated[int, AtLeast(1, "the rows of a batch")] = 1
    _: KW_ONLY
    limits: Annotated[Mapping[str, int] | None, CountLimits()] = None
    tokenizer_spatial_compression_factor: Annotated[int | None, AtLeast(1)] = None
    tokenizer_temporal_compression_factor: Annotated[int, AtLeast(1)] = 4
    patch_spatial: Annotated[int, AtLeast(1)] = 2
    sound_latent_fps: Annotated[int, AtLeast(0)] = 0
    audio_sample_rate: Annotated[int, AtLeast(1)] = 48000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._dropped |= dict.fromkeys(map("overlong_{}".format, self.limits or ()), 0)
        if (self.max_sequence_length is None) == (self.max_samples_per_batch is None):
            raise InvalidJob(
                f"max_sequence_length is {self.max_sequence_length} and max_samples_per_batch is "
                f"{self.max_samples_per_batch}: give exactly one of them, a row has one limit",
                key="max_sequence_length",
            )
        self._refuse_idle_factors()
        self._row: Row = []
        self._total = 0
        # None is a sample that no row can hold: it is gone, and still counts towards the limit.
        self._skipped: list[SampleRef | None] = []
        self._finished: list[Row] = []

    def _refuse_idle_factors(self) -> None:
        if self.tokenizer_spatial_compression_factor is not None:
            return
        for name in ESTIMATED[1:]:
            if getattr(self, name) != getattr(type(self), name):
                raise InvalidJob(
                    f"{name} is of an estimate, and tokenizer_spatial_compression_factor, which "
                    "asks for one, is not given: give it, or leave this out",
                    key=name,
                )

    def size_of(self, sample: Sample) -> int:
        """Return the length of `length_key`, or the estimate.

        Raises:
            InvalidJob: The sample has no such value.
            ValueError: A value that is estimated has another shape.
        """
        length = super().size_of(sample)
        spatial = self.tokenizer_spatial_compression_factor
        if spatial is None:
            return length
        return LatentTokens(
            spatial * self.patch_spatial,
            self.tokenizer_temporal_compression_factor,
            self.sound_latent_fps,
            self.audio_sample_rate,
        ).of(sample, self.length_key)

    @property
    def needs_sizes(self) -> bool:
        """Tell whether rows have a limit in tokens, or a subclass may look at sizes."""
        return self.max_samples_per_batch is None or bool(self.limits) or self.is_of_user()

    def facts(self) -> BatcherFacts:
        """Return what is left out and how full a row may be; how many are in it, if that is set."""
        budget, count = self.max_sequence_length, self.max_samples_per_batch
        of_row = count if self.lookahead_limit or count is None else 1
        return replace(
            super().facts(),
            length_key=self.length_key if self._counts_lengths else None,
            sizes_kept=None if self.limits else (0, inf) if budget is None else (1, budget - 1),
            may_split=False,
            may_refuse=False,
            samples_of_batch=None if of_row is None or self.limits else of_row * self.rows,
            row_limit=(MAX_SIZE if self.limits else None) if budget is None else budget - 1,
        )

    @property
    def _counts_lengths(self) -> bool:
        own = self.keeps(SequentialPackingBatcher, "size_of")
        return own and self.tokenizer_spatial_compression_factor is None

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batches that the rows that it finished have completed."""
        budget, limits = self.max_sequence_length, self._penstock_limits
        if limits is not None and (above := limits.over(ref.counts)) and (ref.size or not budget):
            self._dropped[f"overlong_{above}"] += 1
            self._offer(deque([None]))
        elif budget is None or 0 < ref.size < budget:
            self._offer(deque([ref]))
        elif ref.size == 0:
            self._dropped["empty"] += 1
        else:
            self._dropped["overlong"] += 1
            self._offer(deque([None]))
        return cut_batches(self._finished, self.rows, self.rows)

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the row, the samples set aside, and the finished rows of an incomplete batch."""
        if self.is_of_user():  # a subclass may hold more
            return super().pending
        finished = (ref for row in self._finished for ref in row)
        return [*self._row, *(ref for ref in self._skipped if ref is not None), *finished]

    def flush(self) -> list[Rows]:
        """Return rows of what is left, in order; the last batch may have fewer."""
        while self._row:
            skipped = deque(self._skipped)
            self._finish()
            self._offer(skipped)
        return cut_batches(self._finished, self.rows, 1)

    def _offer(self, queue: deque[SampleRef | None]) -> None:
        while queue:
            ref = queue.popleft()
            if ref is not None and self._fits(ref):
                self._row.append(ref)
                self._total += ref.size
            elif self._row:
                self._skipped.append(ref)
            if len(self._row) == self.max_samples_per_batch or (
                self._row and len(self._skipped) >= self.lookahead_limit
            ):
                queue.extendleft(reversed(self._skipped))
                self._finish()

    def _fits(self, ref: SampleRef) -> bool:
        budget, limits = self.max_sequence_length, self._penstock_limits
        if limits is not None and not limits.fits(limits.used(self._row), ref.counts):
            return False
        if budget is None:
            return True
        return self._total + ref.size < budget and not holds_item(self._row, ref)

    def _finish(self) -> None:
        if self._penstock_limits is None:
            pass
        elif self.max_samples_per_batch is None:
            self._note_row(self._row, self._total, (self.max_sequence_length or 1) - 1)
        else:
            self._note_row(self._row, len(self._row), self.max_samples_per_batch)
        self._finished.append(self._row)
        self._row, self._total, self._skipped = [], 0, []
