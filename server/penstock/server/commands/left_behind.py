"""Values of samples that reach no batch: a collator takes those that it knows."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.job.job import Job
from penstock.server.pipeline.items import Outcome
from penstock.server.pipeline.known_verdicts import Quarantined
from penstock.server.pipeline.line import Computed
from penstock.server.pipeline.processing import Filtered
from penstock.server.roles.collators import BUILTIN_COLLATORS
from penstock.wire.frame import read_header

READ = frozenset(
    ("input_ids", "labels", "loss_mask", "token_mask", "attention_mask", "pad_token_id", "noted")
)
"""What collators make other values of."""


def left_behind(job: Job, outcomes: Sequence[Outcome], batches: Sequence[Computed]) -> list[str]:
    """Return a sentence about values of samples that no batch has; none for users' collators.

    Args:
        job: The job; of several sets of roles all batches count.
        outcomes: What became of some items.
        batches: Some batches.
    """
    collators = [roles.collator for roles in job.role_sets]
    if not batches or any(type(each) not in BUILTIN_COLLATORS.values() for each in collators):
        return []  # what a user's function makes of a value has any name
    given = dict.fromkeys(
        name
        for outcome in outcomes
        if not isinstance(outcome, Filtered | Quarantined)
        for sample in outcome
        for name in sample
    )
    taken = {entry.name for batch in batches for entry in read_header(batch.header).values}
    lost = [name for name in given if name not in taken | READ]
    if not lost:
        return []
    names, verb = ", ".join(lost), "is" if len(lost) == 1 else "are"
    kinds = " and ".join(dict.fromkeys(str(each.type_name) for each in collators))
    return [
        f"{names} of the samples {verb} in no batch: the collator {kinds} does not take what it "
        "does not know; a collator of your own, as a function, would"
    ]
