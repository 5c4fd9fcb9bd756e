"""The pure half of a line: a plan to the bytes of its batch, alike in any worker of any node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.server.core.refs import BatchPlan, ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.collating import Collating
from penstock.server.pipeline.column_batches import collate_columns
from penstock.server.pipeline.fitting import Exits, Fitting
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.joining import Joining
from penstock.server.pipeline.standin import StandIns
from penstock.server.pipeline.writing import MadeBatch
from penstock.server.roles.distinct_episodes import EPISODES, distinct_episodes
from penstock.server.roles.samples import Sample
from penstock.wire.frame import BodyLayout


class Maker:
    """Makes batches of one job from their plans.

    Args:
        job: The job.
        items: Fetches and processes what is not in memory.
        goes_on: It makes the batches of a lane one after another: what the later ones need of an
            item is kept. Else each is made as if there were no other.

    Glossary:
        maker: Fetches, processes and collates: turns a plan into bytes.
    """

    def __init__(self, job: Job, items: Items, *, goes_on: bool = False) -> None:
        self.job, self.items = job, items
        self._fitting, self._collating = Fitting(items), Collating(items)
        self._joining = Joining(items, self._fitting, goes_on=goes_on)
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
    ) -> MadeBatch:
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
        exits, counted = Exits(), plan.accounting
        found = self._joining.samples(plan, at_hand or {}, coming, exits)
        if plan.before is not None or plan.later:
            plan = self._joining.decided(plan, found, exits)
        kept = plan
        # As many as there are refs: then none is missing.
        if plan.later or len(found) < sum(map(len, plan.rows)):
            left = [
                [ref for ref in row if ref[:2] in found and ref not in exits.refused]
                for row in plan.rows
            ]
            for number, ref in plan.later:
                left[number] += [ref] * (ref[:2] in found)
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
        counts = {**self._episodes(kept), **counts}
        if padding:
            values = self._collating.blank(values, plan)
            counts = dict.fromkeys(counts, 0)
        # Of the plan, not of what is left of it: a batch that quarantine emptied has an epoch, too.
        epoch = epoch_of(plan)
        accounting = {} if blank else dict(counted)
        if exits.counts and not blank:
            accounting = dict(Counter(accounting) + Counter(exits.counts))
        told = counts, accounting, exits.counts
        return self._laid_out(kept, values, told, padding, emptied, epoch, plan)

    def _of_columns(self, plan: BatchPlan) -> MadeBatch | None:
        """Return a batch whose samples need not become objects; None where they must."""
        if not self.job.role_sets[plan.role_set].columns or not self.items.verdicts.is_empty:
            return None
        if plan.before is not None or plan.later:
            return None
        if (found := collate_columns(self.items, plan)) is None:
            return None
        values, counts = found
        counts = {**self._episodes(plan), **counts}
        told = counts, dict(plan.accounting), dict[str, int]()
        return self._laid_out(plan, values, told, False, False, epoch_of(plan), plan)

    def _episodes(self, plan: BatchPlan) -> dict[str, int]:
        """Return from how many episodes the samples of a batch come, as a count; {} = from none."""
        tables = self.job.role_sets[plan.role_set].episode_tables
        if not tables:
            return {}
        refs = (ref.item for row in plan.rows for ref in row)
        return {EPISODES: distinct_episodes(tables, refs)}

    def _laid_out(
        self,
        plan: BatchPlan,
        values: dict[str, Any],
        told: tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]],
        padding: bool,
        emptied: bool,
        epoch: int,
        decided: BatchPlan,
    ) -> MadeBatch:
        values = self.job.labelled(values, plan.role_set)
        self.items.progress("encode", None)
        layout = BodyLayout(values, host=self._host[plan.role_set])
        return MadeBatch(self.job.log_id, plan, layout, *told, padding, emptied, epoch, decided)


def epoch_of(plan: BatchPlan) -> int:
    """Return the epoch of the earliest draw of a batch; 0 where it has none."""
    return min([ref.item.epoch for row in plan.rows for ref in row], default=0)
