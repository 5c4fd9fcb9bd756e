"""The pure half of a line: a plan to the bytes of its batch, alike in any worker of any node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.job import Job
from penstock.server.pipeline.collating import Collating
from penstock.server.pipeline.columns import collate_columns
from penstock.server.pipeline.fitting import Exits, Fitting
from penstock.server.pipeline.items import Filtered, Items
from penstock.server.pipeline.standin import StandIns
from penstock.server.pipeline.verdicts import Bad
from penstock.server.pipeline.writing import Made
from penstock.server.roles.base import Sample
from penstock.wire import frame


class Maker:
    """Makes batches of one job from their plans.

    Args:
        job: The job.
        items: Fetches and processes what is not at hand.
    """

    def __init__(self, job: Job, items: Items) -> None:
        self.job, self.items = job, items
        self._fitting, self._collating = Fitting(items), Collating(items)
        self._stand_ins = StandIns(items)
        self._host = [
            [spec.name for spec in roles.collator.specs() if spec.place == "host"]
            for roles in job.role_sets
        ]

    def make(
        self,
        plan: BatchPlan,
        at_hand: Mapping[tuple[ItemRef, int], Sample] | None = None,
        coming: Sequence[ItemRef] = (),
        *,
        blank: bool = False,
    ) -> Made:
        """Return the batch of a plan.

        Args:
            plan: What it is made of.
            at_hand: Samples that the planner has processed already, by (item, part).
            coming: Items of the next batch, to be read while those of this one are processed.
            blank: Make the padding batch of these shapes.

        Raises:
            BadItem: An item fails now that passed, or was not looked at, before; policy is to stop.
            BadBatch: The collator fails on these samples.
            SourceUnavailable: A read failed to the deadline.
        """
        if not blank and (made := self._of_columns(plan)) is not None:
            return made
        exits = Exits()
        found = self._samples(plan, at_hand or {}, coming, exits)
        kept = plan
        # As many as there are refs: then none is missing.
        if len(found) < sum(map(len, plan.rows)):
            left = [
                [ref for ref in row if ref[:2] in found and ref not in exits.refused]
                for row in plan.rows
            ]
            kept = plan if left == plan.rows else plan._replace(rows=left)
        rows = [
            [
                found[ref[:2]]
                if ref.span is None
                else self._fitting.piece(ref, found[ref[:2]], plan)
                for ref in row
            ]
            for row in kept.rows
        ]
        emptied = not any(rows)
        if emptied and not self.job.role_sets[plan.role_set].collator.pads_empty:
            rows = self._stand_ins.rows(plan)
        padding = blank or emptied
        values, counts = self._collating.collate(rows, plan)
        if padding:
            values = self._collating.blank(values, plan)
            counts = dict.fromkeys(counts, 0)
        # Of the plan, not of what is left of it: a batch that quarantine emptied has an epoch, too.
        epoch = epoch_of(plan)
        accounting = {} if blank else dict(plan.accounting) | exits.counts
        told = counts, accounting, exits.counts
        return self._laid_out(kept, values, told, padding, emptied, epoch)

    def _of_columns(self, plan: BatchPlan) -> Made | None:
        """Return a batch whose samples need not become objects; None where they must."""
        if not self.job.role_sets[plan.role_set].columns or not self.items.verdicts.is_empty:
            return None
        if (found := collate_columns(self.items, plan)) is None:
            return None
        values, counts = found
        told = counts, dict(plan.accounting), dict[str, int]()
        return self._laid_out(plan, values, told, False, False, epoch_of(plan))

    def _laid_out(
        self,
        plan: BatchPlan,
        values: dict[str, Any],
        told: tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]],
        padding: bool,
        emptied: bool,
        epoch: int,
    ) -> Made:
        values = self.job.labelled(values, plan.role_set)
        self.items.progress("encode", None)
        layout = frame.Layout(values, host=self._host[plan.role_set])
        return Made(self.job.log_id, plan, layout, *told, padding, emptied, epoch)

    def _samples(
        self,
        plan: BatchPlan,
        at_hand: Mapping[tuple[ItemRef, int], Sample],
        coming: Sequence[ItemRef],
        exits: Exits,
    ) -> dict[tuple[ItemRef, int], Sample]:
        """Return a plan's samples by (item, part): processed here where they are not at hand.

        Those of items that fail, or are not what they were planned as, are not among them.
        """
        found: dict[tuple[ItemRef, int], Sample] = {}
        missing: dict[ItemRef, list[SampleRef]] = {}
        verdicts = None if self.items.verdicts.is_empty else self.items.verdicts
        for row in plan.rows:
            for ref in row:
                if verdicts is not None and verdicts.find("exit", ref.item, plan.lane, plan.offset):
                    exits.count("quarantined:exit")
                    continue
                key = ref[:2]
                if key in at_hand:
                    found[key] = at_hand[key]
                else:
                    missing.setdefault(ref.item, []).append(ref)
        outcomes = self.items.outcomes(list(missing), "exit", coming)
        needs_sizes = self.job.role_sets[plan.role_set].batcher.needs_sizes
        for refs, outcome in zip(missing.values(), outcomes, strict=True):
            if isinstance(outcome, Bad):
                # Removed from its own batch only: no other item moves.
                self.items.judge("exit", refs[0].item, outcome, plan.lane, plan.offset)
                exits.count("quarantined:exit", len(refs))
                continue
            samples = [] if isinstance(outcome, Filtered) else outcome
            for ref in refs:
                if ref.part < len(samples) and not needs_sizes:
                    found[ref[:2]] = samples[ref.part]
                elif (sample := self._fitting.sample(ref, samples, plan, exits)) is not None:
                    found[ref[:2]] = sample
        return found


def epoch_of(plan: BatchPlan) -> int:
    """Return the epoch of the earliest draw of a batch; 0 where it has none."""
    return min([ref.item.epoch for row in plan.rows for ref in row], default=0)


__all__ = ["Maker"]
