"""The samples of a batch: those of its plan that are as they were told, and those that join it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.pipeline.fitting import Exits, Fitting, Found
from penstock.server.pipeline.in_lane import outcomes_in_lane
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.later import Fit, Later
from penstock.server.pipeline.processing import Filtered
from penstock.server.roles.samples import Sample


class Joining:
    """Finds the samples of batches of one job in one process.

    Args:
        items: Fetches and processes what is not in memory.
        fitting: Fits samples to plans.
        goes_on: The batches of a lane are made one after another: what the later ones need of an
            item is kept. Else each is made as if there were no other.
    """

    def __init__(self, items: Items, fitting: Fitting, *, goes_on: bool) -> None:
        self._items, self._fitting = items, fitting
        self._keeps = [goes_on and roles.keeps_pieces for roles in items.job.role_sets]
        self._later = Later(items, self._look)

    def samples(
        self,
        plan: BatchPlan,
        at_hand: Mapping[tuple[ItemRef, int], Sample],
        coming: Sequence[ItemRef],
        exits: Exits,
    ) -> Found:
        """Return a plan's samples: processed here where they are not at hand.

        Those of items that fail, or are not what they were planned as, are not among them.

        Raises:
            BadItem: There is one, and the policy is to stop.
            SourceUnavailable: A read failed to the deadline.
        """
        found = self._processed(plan, at_hand, coming, exits, keeps=self._keeps[plan.role_set])
        if exits.verdicts:
            exits.ask_verdicts()
        return found

    def decided(self, plan: BatchPlan, found: Found, exits: Exits) -> BatchPlan:
        """Return a plan with what joins it, whose samples are then among those found.

        Args:
            plan: The plan.
            found: What `samples` gave for it.
            exits: What it noted there; here it is added to.

        Raises:
            BadItem: A sample has had its last chance here, and the policy is to stop.
            SourceUnavailable: A batch before it cannot be looked at.
        """
        if plan.before is not None:
            plan, counts, left_out = self._later.decide(plan, exits.fit(plan))
            for ref in left_out:
                self._fitting.left_over(ref, plan)
            for name, number in counts.items():
                exits.count(name, number)
            # Who makes it of this alone does not find out again what was counted here.
            every = Counter(dict(plan.accounting)) + Counter(counts)
            plan = plan._replace(accounting=tuple(sorted(every.items())))
        if plan.later:
            own = {ref[:2]: sample for ref, (_, sample) in exits.put_off.items()}
            found |= {ref[:2]: own[ref[:2]] for _, ref in plan.later if ref[:2] in own}
            came = plan._replace(rows=[[ref] for _, ref in plan.later if ref[:2] not in own])
            late = Exits()
            found |= self._processed(came, {}, (), late, comes_later=True)
            late.ask_verdicts()
            for name, number in late.counts.items():
                exits.count(name, number)
        return plan

    def _look(self, plan: BatchPlan) -> Fit:
        """Return what a batch leaves to others: it is judged by whoever makes it."""
        exits = Exits()
        self._processed(plan, {}, (), exits)
        return exits.fit(plan)

    def _processed(
        self,
        plan: BatchPlan,
        at_hand: Mapping[tuple[ItemRef, int], Sample],
        coming: Sequence[ItemRef],
        exits: Exits,
        *,
        comes_later: bool = False,
        keeps: bool = False,
    ) -> Found:
        found: Found = {}
        missing: dict[ItemRef, list[SampleRef]] = {}
        verdicts = None if self._items.verdicts.is_empty else self._items.verdicts
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
        if keeps:
            # Checked like any other below: whoever makes a batch finds the same of its samples.
            kept = plan.lane, list(missing), plan.again
            outcomes = outcomes_in_lane(self._items, *kept, coming)
        else:
            outcomes = self._items.outcomes(list(missing), "exit", coming)
        needs_sizes = self._items.job.role_sets[plan.role_set].batcher.needs_sizes
        for refs, outcome in zip(missing.values(), outcomes, strict=True):
            if isinstance(outcome, Bad):
                # Removed from its own batch only: no other item moves.
                where = plan.lane, plan.offset
                judge = self._items.judge
                exits.verdicts.append(partial(judge, "exit", refs[0].item, outcome, *where))
                exits.count("quarantined:exit", len(refs))
                continue
            samples = [] if isinstance(outcome, Filtered) else outcome
            for ref in refs:
                if ref.part < len(samples) and not needs_sizes:
                    found[ref[:2]] = samples[ref.part]
                    continue
                sample = self._fitting.sample(ref, samples, plan, exits, comes_later=comes_later)
                if sample is not None:
                    found[ref[:2]] = sample
        if exits.put_off:
            self._fitting.rearrange(plan, found, exits)
        return found
