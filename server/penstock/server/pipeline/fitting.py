"""A sample as its plan counted on it: of the size that was planned, and cut to its piece."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.core.refs import BatchPlan, SampleRef
from penstock.server.pipeline.items import Items
from penstock.server.roles.base import Sample, SampleBatcher
from penstock.wire.errors import BadItem, PenstockError


class Exits:
    """What the making of one batch left out, and which sizes it found other than they were told.

    Attributes:
        counts: By name: samples that are not in the batch, and sizes that were not as they were
            told (`penstock.server.core.reasons`).
        refused: What does not fit its plan, though another piece of its sample may.
    """

    def __init__(self) -> None:
        # Plain dicts: most batches count nothing, and each has these.
        self.counts: dict[str, int] = {}
        self.refused: set[SampleRef] = set()
        self._given: dict[int, int] = {}  # by row, what samples have beyond their sizes

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + number

    def grants(self, ref: SampleRef, size: int, plan: BatchPlan, batcher: SampleBatcher) -> bool:
        """Tell whether a sample's row has room for a size above the planned one; then it is taken.

        Samples ask in the order of the plan, and room is that between the planned ones: so it does
        not matter who makes the batch, or what else of it is left out.
        """
        number = next(n for n, row in enumerate(plan.rows) if any(ref is other for other in row))
        more = size - ref.size
        given = self._given.get(number, 0) + more
        if given > batcher.spare(plan.rows[number]):
            return False
        self._given[number] = given
        self.count("size:larger")
        self.count("size:larger_tokens", more)
        return True

    def smaller(self, by: int) -> None:
        """Count a sample that is smaller than it was told: its row has padding in its place."""
        self.count("size:smaller")
        self.count("size:smaller_tokens", by)


class Fitting:
    """Fits the samples of one job to the plans that they are part of.

    Args:
        items: Judges those that do not fit.
    """

    def __init__(self, items: Items) -> None:
        self._items, self._job = items, items.job

    def sample(
        self, ref: SampleRef, samples: Sequence[Sample], plan: BatchPlan, exits: Exits
    ) -> Sample | None:
        """Return the sample that a ref means, of those that processing gave for its item.

        It may be smaller than it was told, and larger where its row has room for that; a piece must
        be there to its end. None if it is not there, or does not fit: then its item is bad.

        Raises:
            BadItem: That, and the policy is to stop.
        """
        if ref.part < len(samples):
            sample = samples[ref.part]
            size = self._size_of(ref, sample, plan)
            if self._fits(ref, size, plan, exits):
                return sample
            planned = ref.size if ref.span is None else ref.span.stop
            reason = f"its size is {size}, and it was planned with {planned}"
        else:
            reason = f"it gave {len(samples)} samples, and sample {ref.part} was planned"
        error = BadItem(
            f"item {ref.item} of job {self._job.name!r} is not what it was when its batch was "
            f"planned: {reason}; size() must not be below what process() gives, and process() must "
            "be pure",
            item=list(ref.item),
            stage="size",
            reason=f"SIZE_MISMATCH: {reason}",
        )
        # The verdict tells people. It is never looked up: another piece of the same item may fit,
        # and every worker that makes this batch finds the same of this one.
        self._items.refuse("size", ref.item, error, plan.lane, plan.offset)
        exits.count("quarantined:size")
        exits.refused.add(ref)
        return None

    def _fits(self, ref: SampleRef, size: int, plan: BatchPlan, exits: Exits) -> bool:
        roles = self._job.role_sets[plan.role_set]
        if ref.span is not None:
            if size > ref.span.stop and roles.plans_from_refs and roles.plan is None:
                # Its last piece ends where the told size does: what is beyond is in no batch.
                [told] = self._items.sizes([ref.item])
                if ref.span.stop == told:
                    exits.count("size:cut_tokens", size - told)
            return size >= ref.span.stop
        if size < ref.size:
            exits.smaller(ref.size - size)
        return size <= ref.size or exits.grants(ref, size, plan, roles.batcher)

    def piece(self, ref: SampleRef, sample: Sample, plan: BatchPlan) -> Sample:
        """Return the piece of a sample that a ref means; all of it where it is not split."""
        span, processor = ref.span, self._job.role_sets[plan.role_set].processor
        if span is None:
            return sample
        size = self._size_of(ref, sample, plan)
        try:
            return processor.cut(sample, span.start, span.stop, size)
        except PenstockError:
            raise
        except Exception as error:
            place = f"lane {plan.lane}, offset {plan.offset}"
            what = f"{processor.code_of()} fails on cut() of item {ref.item}, at {place},"
            raise self._items.failure(error, what, plan.lane, plan.offset) from error

    def _size_of(self, ref: SampleRef, sample: Sample, plan: BatchPlan) -> int:
        batcher = self._job.role_sets[plan.role_set].batcher
        try:
            return batcher.size_of(sample)
        except PenstockError:
            raise
        except Exception as error:
            what = f"{batcher.code_of()} finds no size of item {ref.item}, at lane "
            what += f"{plan.lane}, offset {plan.offset},"
            raise self._items.failure(error, what, plan.lane, plan.offset) from error


__all__ = ["Exits", "Fitting"]
