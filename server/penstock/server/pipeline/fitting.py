"""A sample as its plan counted on it: of the size that was planned, and cut to its piece."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.core.refs import BatchPlan, SampleRef
from penstock.server.pipeline.items import Items
from penstock.server.roles.base import Sample
from penstock.wire.errors import BadItem, PenstockError


class Fitting:
    """Fits the samples of one job to the plans that they are part of.

    Args:
        items: Judges those that do not fit.
    """

    def __init__(self, items: Items) -> None:
        self._items, self._job = items, items.job

    def sample(self, ref: SampleRef, samples: Sequence[Sample], plan: BatchPlan) -> Sample | None:
        """Return the sample that a ref means, of those that processing gave for its item.

        None if it is not there, or has not the size that the plan counted on: then its item is bad.

        Raises:
            BadItem: That, and the policy is to stop.
        """
        if ref.part < len(samples):
            sample = samples[ref.part]
            size = self._size_of(ref, sample, plan)
            planned = ref.size if ref.span is None else ref.span.stop
            # Whole, it may be smaller: size() is a bound. Cut, it must reach to the piece's end.
            if size <= planned if ref.span is None else size >= planned:
                return sample
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
        # and whether this one does is found alike by whoever makes this batch.
        self._items.refuse("size", ref.item, error, plan.lane, plan.offset)
        return None

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


__all__ = ["Fitting"]
