"""The batcher of one lane at work: it gets all samples of an item, or none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from penstock.server.core.refs import ItemRef, Rows, SampleRef
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.retry import Calls
from penstock.server.pipeline.sizes import sizes_of
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.samples import Sample, SampleSizes, ref_of
from penstock.server.usercode.contained import as_exception, contained
from penstock.wire.errors import PenstockError


class Batching:
    """A clone of the job's batcher, with the samples that it holds.

    Args:
        job: The job.
        lane: The lane.
        roles: Whose batcher.
        calls: Says what an error of a role means.

    Attributes:
        batcher: The batcher.
        samples: What processing gave for what the batcher holds, by (item, part).
        dropped: How many samples it has left out since the lane's beginning.
        counts_more: The batcher may count something beside these.
        tells_sizes: Samples have sizes, for the batcher or for whoever looks at plans; else all are
            told as 0.
    """

    def __init__(self, job: Job, lane: int, roles: RoleSet, calls: Calls) -> None:
        self._job, self._lane, self._calls, self._roles = job, lane, calls, roles
        self.tells_sizes = roles.needs_sizes
        self.samples: dict[tuple[ItemRef, int], Sample] = {}
        self.begin()

    def begin(self) -> None:
        """Go on with a fresh batcher."""
        self._take(self._roles.batcher.clone())

    def restore(self, state: Any) -> None:
        """Go on with a batcher of this state."""
        batcher: SampleBatcher = self._roles.batcher.clone()
        batcher.restore(state)
        self._take(batcher)

    def _take(self, batcher: SampleBatcher) -> None:
        self.batcher = batcher
        self.dropped = sum(batcher.dropped().values())
        self.counts_more = type(batcher).counters is not SampleBatcher.counters

    def add(
        self, refs: Sequence[SampleRef], samples: Sequence[Sample | None], offset: int
    ) -> tuple[list[Rows], bool]:
        """Give the samples of an item to the batcher: all of them, or none if one is bad.

        Args:
            refs: The samples.
            samples: They; None where they were not processed.
            offset: The lane's, for errors.

        Returns:
            The finished batches, and whether a sample was kept.

        Raises:
            BadItem: The batcher refuses one of them.
            PenstockError: It fails on one of them.
        """
        copies = len(refs) > 1 and self._roles.batcher_facts.may_refuse
        before = self.batcher.state() if copies else None
        batches: list[Rows] = []
        accepted = all_added = False
        try:
            for ref, sample in zip(refs, samples, strict=True):
                batches += self._add(ref, sample, offset)
                before_it, self.dropped = self.dropped, sum(self.batcher.dropped().values())
                if self.dropped == before_it:
                    accepted = True
                    if sample is not None:
                        self.samples[ref.item, ref.part] = sample
            all_added = True
        finally:
            if not all_added:
                self._take_back(refs, before)
        return batches, accepted

    def add_run(self, refs: Sequence[SampleRef], offset: int) -> tuple[int, list[Rows]]:
        """Give the batcher unread samples, up to one that finishes a batch; it keeps them all.

        It stops before a sample that the batcher would leave out or refuse.

        Returns:
            How many it has taken, and the finished batches.

        Raises:
            PenstockError: It fails.
        """
        least, most = self._roles.batcher_facts.sizes_kept or (0, -1)
        add = self.batcher.add
        taken = 0
        try:
            for taken, ref in enumerate(refs):
                if not least <= ref.size <= most:
                    return taken, []
                if batches := add(ref):
                    return taken + 1, batches
        except PenstockError:
            raise
        except BaseException as raised:
            doing = f"sample 0 of item {refs[taken].item}"
            raise self._failure(as_exception(raised), doing, offset) from raised
        return len(refs), []

    def _take_back(self, refs: Sequence[SampleRef], before: Any) -> None:
        """Leave nothing of an item of which a sample was refused.

        A verdict is about the item: a replay, which knows it, adds no part of it either. And before
        the store is asked, which may fail: then the item is drawn again.
        """
        if before is not None:
            self.restore(before)
        for ref in refs:
            self.samples.pop((ref.item, ref.part), None)

    def _add(self, ref: SampleRef, sample: Sample | None, offset: int) -> list[Rows]:
        try:
            return self.batcher.add(ref, sample if self.batcher.needs_content else None)
        except PenstockError:
            raise
        except BaseException as raised:
            doing = f"sample {ref.part} of item {ref.item}"
            raise self._failure(as_exception(raised), doing, offset) from raised

    def flush(self, offset: int) -> list[Rows]:
        """Return the batches of what the batcher still holds, at the lane's end.

        Raises:
            PenstockError: It fails.
        """
        try:
            batches: list[Rows] = contained(self.batcher.flush)
        except PenstockError:
            raise
        except Exception as error:
            raise self._failure(error, "flush()", offset) from error
        self.dropped = sum(self.batcher.dropped().values())
        return batches

    def _failure(self, error: Exception, doing: str, offset: int) -> PenstockError:
        what = f"{self.batcher.code_of()} fails on {doing}, in lane {self._lane},"
        return self._calls.failure(error, what, self._lane, offset)

    def refs(self, item: ItemRef, samples: Sequence[Sample], offset: int) -> list[SampleRef]:
        """Return the samples of an item, with their sizes where somebody needs these.

        Raises:
            BadBatch, SourceUnavailable: The batcher finds no size.
        """
        if not self.tells_sizes:
            return [SampleRef(item, part) for part in range(len(samples))]
        sizes = [self._sizes_of(item, sample, offset) for sample in samples]
        return [ref_of(item, size, part) for part, size in enumerate(sizes)]

    def _sizes_of(self, item: ItemRef, sample: Sample, offset: int) -> int | SampleSizes:
        return sizes_of(self._calls, self._roles, item, sample, lane=self._lane, offset=offset)

    def forget(self, ready: Collection[Rows]) -> None:
        """Forget every sample that neither the batcher nor a ready batch needs."""
        if not self.samples:
            return
        if not (ready or self.batcher.pending):  # as after each batch of whole draws
            self.samples.clear()
            return
        held = {(ref.item, ref.part) for ref in self.batcher.pending}
        held |= {(ref.item, ref.part) for batch in ready for row in batch for ref in row}
        for key in [key for key in self.samples if key not in held]:
            del self.samples[key]
