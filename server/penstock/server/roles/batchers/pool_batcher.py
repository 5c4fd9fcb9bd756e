"""Padded batches of like lengths, chosen from a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import Annotated, ClassVar

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.packing.pool import STRATEGIES, choose
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.limits import CountLimits
from penstock.server.roles.batchers.packer import PackingBatcher, sample_key
from penstock.server.roles.parameters import AtLeast, OneOf, TrueOrFalse, declared
from penstock.server.roles.samples import Sample
from penstock.wire.errors import InvalidJob


@declared
class PoolPackingBatcher(PackingBatcher):
    """Forms padded batches of like lengths and of one modality, each sample a row of its own.

    The algorithm is that of cosmos-framework's `PoolPackingBatcher`: see
    `penstock.server.packing.pool.choose`. The oldest sample of the pool opens every batch, so none
    waits for more than `pool_size` batches; it is never left out, however long it is: alone, it may
    exceed `max_tokens`. A sample of size 0 is dropped as `empty`. A batch never holds two samples
    of one item: on small data several epochs meet in the pool, and the next best one is taken.

    At the lane's end batches are formed of what is left in the pool, in the same way.

    The modality of a sample follows from its values: `pixel_values_videos`, else `pixel_values`,
    else text.

    Args:
        max_tokens: The most tokens of a batch once it is padded: the size of its longest sample
            times its number of samples.
        pool_size: How many samples a lane chooses from. A larger pool finds samples of nearer
            sizes, so there is less padding; it takes memory for that many samples of every lane,
            the first batch comes only when it is full, and a sample waits for up to `pool_size`
            batches.
        max_batch_size: The most samples of a batch; None or 0 = no such limit. 1 keeps the order
            of the draws.
        long_threshold: A sample of this size or more is a batch of its own.
        batching_strategy: What decides between samples of equal cost: `prefer_closest`, the size
            nearest to the longest so far, or `prefer_first`, age.
        apply_long_sample_halving: Halve `max_tokens` for a batch whose longest sample has a size
            of 1,000 or more, since long samples take more memory in training.
        limits: What a batch may count beside, by the processor's measures, for example
            `{images: 8}`: sums over its samples. The oldest alone may be above. Smaller limits
            bound a step's memory and make batches smaller.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or the strategy is unknown.
    """

    type_name: ClassVar[str] = "pool"
    version: ClassVar[int | str | None] = 2
    needs_content: ClassVar[bool] = True

    max_tokens: Annotated[int, AtLeast(1, "the padded size of a batch")]
    pool_size: Annotated[int, AtLeast(1, "the samples to choose from")] = 16
    max_batch_size: Annotated[int | None, AtLeast(0, "the most samples of a batch")] = 1
    long_threshold: Annotated[int, AtLeast(1, "the size from which a sample stays alone")] = 6400
    batching_strategy: Annotated[str, OneOf(STRATEGIES)] = "prefer_closest"
    apply_long_sample_halving: Annotated[bool, TrueOrFalse()] = True
    _: KW_ONLY
    limits: Annotated[Mapping[str, int] | None, CountLimits()] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pool: list[tuple[SampleRef, str]] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return a batch when this one fills the pool.

        Raises:
            InvalidJob: The sample is missing, so its modality is not known.
        """
        if sample is None:
            raise InvalidJob(
                f"the pool batcher was given {ref.item} without its content: it tells modalities "
                "apart by it, so add() must be given them",
                key="type",
            )
        if ref.size == 0:
            self._dropped["empty"] += 1
            return []
        self._pool.append((ref, modality(sample)))
        return [self._take()] if len(self._pool) >= self.pool_size else []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the pool."""
        if not self.keeps(PoolPackingBatcher):  # a subclass may hold more
            return super().pending
        return [ref for ref, _ in self._pool]

    def facts(self) -> BatcherFacts:
        """Return the size of the pool, and that every sample is taken."""
        return replace(super().facts(), pool=self.pool_size, may_refuse=False)

    def flush(self) -> list[Rows]:
        """Return batches of what is left in the pool."""
        batches: list[Rows] = []
        while self._pool:
            batches.append(self._take())
        return batches

    def _take(self) -> Rows:
        limits = self._penstock_limits
        indices = choose(
            [ref.size for ref, _ in self._pool],
            [kind for _, kind in self._pool],
            self.max_tokens,
            max_batch_size=self.max_batch_size,
            long_threshold=self.long_threshold,
            strategy=self.batching_strategy,
            halve_long=self.apply_long_sample_halving,
            keys=[sample_key(ref) for ref, _ in self._pool],
            counts=None if limits is None else [limits.used([ref]) for ref, _ in self._pool],
            most=() if limits is None else limits.most,
        )
        if limits is not None:
            refs = [self._pool[index][0] for index in indices]
            cost = max(ref.size for ref in refs) * len(refs)
            self._note_row(refs, cost, self.max_tokens)
        batch = [[self._pool[index][0]] for index in indices]
        for index in sorted(indices, reverse=True):
            del self._pool[index]
        return batch


def modality(sample: Sample) -> str:
    """Return `video`, `image` or `text`, by which values a sample has; None counts as absent."""
    if sample.get("pixel_values_videos") is not None:
        return "video"
    return "image" if sample.get("pixel_values") is not None else "text"
